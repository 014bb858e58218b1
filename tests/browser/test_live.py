"""Live pictures in a real JupyterLab; a test names the reports that it holds off.

Nothing here depends on how fast the machine is: counts, not times, are asserted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from labkit.bench.live import measure
from tests.browser.lab import (
    LabServer,
    code_cells,
    open_notebook,
    run_cell,
    start_cell,
    wait_cell,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
FIRST = """
import sys, time
import torch, torch.distributed as dist
from ipywidgets.widgets import widget as ipywidgets
from labkit import Cluster, span
from labkit.view.curve import Curve
cluster = Cluster(4, quiet=True)
def steps(number, pause_s=0.05):
    for _ in range(number):
        with span("step"):
            with span("forward"):
                time.sleep(pause_s * (1 + (dist.get_rank() == 2)) / 2)
            dist.all_reduce(torch.ones(1 << 16))
    return number
"""
CELLS = {
    "first": FIRST,
    "short": "cluster.run(steps, 0);",
    "run": "run = cluster.run(steps, 40)",
    "curve": "with Curve('training', 'step', 'loss') as curve:\n"
    "    for step in range(60):\n"
    "        curve.add('loss', step, 1 / (step + 1))\n"
    "        time.sleep(0.02)",
    "endless": "cluster.run(steps, 100_000)",
    "behind": "behind = cluster.run(steps, 60, background=True)",
    "beside": "for n in range(20):\n    print(n)\n    time.sleep(0.05)",
    "wait": "print(behind.wait().results)",
    "again": "for _ in range(4):\n    cluster.run(steps, 12)",
    "count": "print(len(ipywidgets._instances), "
    "len(get_ipython().kernel.comm_manager.comms))",
    "no server's": "from labkit.view import front_end\n"
    "front_end.front_end.cache_clear()\n"
    "found, front_end._server_folders = front_end._server_folders, lambda: []\n"
    "for _ in range(2):\n    cluster.run(steps, 12)\n"
    "front_end._server_folders = found",
    "no kernel's": "front_end.front_end.cache_clear()\n"
    "kept, sys.modules['anywidget'] = sys.modules.get('anywidget'), None\n"
    "for _ in range(2):\n    cluster.run(steps, 12)\n"
    "sys.modules['anywidget'] = kept\n"
    "front_end.front_end.cache_clear()",
}
NUMBER = {name: number for number, name in enumerate(CELLS)}
LIVE = ".labkit-live"
LIMIT_MS = 30_000
STOP = "Interrupt the kernel"
DATA = "each => ({...each.dataset})"
OPEN = """async path => {
    await window.jupyterapp.restored;
    await window.jupyterapp.commands.execute('docmanager:open', {
        path, kernelPreference: {shouldStart: false, canStart: false,
            autoStartDefault: false}});
}"""


@pytest.fixture(scope="module")
def lesson(lab: LabServer, browser: Browser) -> Iterator[Page]:
    """A page with a notebook of these cells, the first of them run."""
    write_notebook(lab, "live.ipynb", *CELLS.values())
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(LIMIT_MS)
    open_notebook(page, lab, "live.ipynb")
    assert run_cell(page, NUMBER["first"]) == ""
    yield page
    page.close()


def counters(page: Page) -> dict[str, str]:
    """What the live picture on the page tells of itself."""
    return page.eval_on_selector(LIVE, DATA)


def drawn(page: Page, at_least: int) -> None:
    """Wait until so many stretches are on the page."""
    condition = f"() => Number(document.querySelector('{LIVE}')?.dataset.records) >= "
    page.wait_for_function(f"{condition}{at_least}")


def shown(page: Page, name: str) -> list[dict[str, Any]]:
    """What a cell shows beside text, by MIME type."""
    found = code_cells(page)[NUMBER[name]]["outputs"]
    return [output["data"] for output in found if "data" in output]


def check_still(data: dict[str, Any]) -> None:
    """A picture that stays is there in each form, and nothing that does not."""
    assert set(data) == {PLOTLY, "image/png", "text/plain"}
    assert data["text/plain"]


def test_nothing_is_shown_of_a_run_that_is_over_at_once(lesson: Page) -> None:
    assert run_cell(lesson, NUMBER["short"]) == ""
    assert shown(lesson, "short") == []


def test_wi_08_it_is_drawn_while_its_own_cell_runs(lesson: Page) -> None:
    start_cell(lesson, NUMBER["run"])
    drawn(lesson, 20)
    assert counters(lesson)["ended"] == "false"
    assert code_cells(lesson)[NUMBER["run"]]["execution_count"] is None
    expect(lesson.locator(f"{LIVE} .labkit-legend")).to_contain_text("forward")
    expect(lesson.locator(f"{LIVE} .labkit-text")).to_contain_text("Running: 4 ranks")
    label = lesson.locator(f"{LIVE} canvas").get_attribute("aria-label")
    assert label is not None
    assert "rank 3" in label
    text = wait_cell(lesson, NUMBER["run"])
    assert text.startswith("4 ranks, 40 steps")
    expect(lesson.locator(LIVE)).to_have_count(0)
    [data] = shown(lesson, "run")
    check_still(data)


def test_wi_04_messages_are_few_and_small(lesson: Page) -> None:
    start_cell(lesson, NUMBER["run"])
    drawn(lesson, 150)
    seen = counters(lesson)
    wait_cell(lesson, NUMBER["run"])
    assert int(seen["messages"]) <= 5 * int(seen["ms"]) / 1000 + 2
    assert int(seen["largest"]) < 100_000
    assert seen["asks"] == "0"


@pytest.fixture
def endless(lesson: Page) -> Iterator[Page]:
    """A page whose run goes on until the test ends, and is then stopped."""
    start_cell(lesson, NUMBER["endless"])
    yield lesson
    lesson.get_by_role("button", name=STOP).click()
    wait_cell(lesson, NUMBER["endless"])


def test_the_pointer_tells_what_is_there(endless: Page) -> None:
    drawn(endless, 60)
    canvas = endless.locator(f"{LIVE} canvas")
    canvas.scroll_into_view_if_needed()
    endless.wait_for_timeout(300)  # JupyterLab scrolls to the next cell.
    canvas.hover(position={"x": 70, "y": 40})
    tip = endless.locator(f"{LIVE} .labkit-tip")
    expect(tip).to_contain_text("rank 0")
    expect(tip).to_contain_text("from")


def test_the_keys_zoom_and_move(endless: Page) -> None:
    drawn(endless, 60)
    endless.locator(LIVE).focus()
    seen = []
    for key in ("+", "+", "ArrowRight", "Home", "-", "0"):
        endless.keyboard.press(key)
        endless.wait_for_timeout(100)
        now = counters(endless)
        seen.append((float(now["from"]), float(now["to"]) - float(now["from"])))
    (first, wide), (_, narrow), (right, same), home, back, whole = seen
    assert narrow < wide
    assert right > first
    assert same == pytest.approx(narrow)
    assert home == (0.0, pytest.approx(narrow))
    assert back[1] > narrow
    assert whole[0] == 0.0
    assert whole[1] > wide


def test_wi_06_the_stop_button_is_the_notebooks_own(lesson: Page) -> None:
    start_cell(lesson, NUMBER["endless"])
    drawn(lesson, 10)
    assert lesson.locator(f"{LIVE} button, {LIVE} input").count() == 0
    lesson.get_by_role("button", name=STOP).click()
    assert "RunInterrupted" in wait_cell(lesson, NUMBER["endless"])
    [data] = shown(lesson, "endless")
    check_still(data)


def test_wi_07_wi_10_a_thread_draws_under_the_cell_that_began_it(lesson: Page) -> None:
    run_cell(lesson, NUMBER["behind"])
    start_cell(lesson, NUMBER["beside"])
    drawn(lesson, 40)
    assert wait_cell(lesson, NUMBER["beside"]).split() == [str(n) for n in range(20)]
    assert run_cell(lesson, NUMBER["wait"]) == "[60, 60, 60, 60]\n"
    for other in ("beside", "wait"):
        assert shown(lesson, other) == []
    [data] = shown(lesson, "behind")
    check_still(data)
    assert "60 steps" in data["text/plain"]


def test_wi_09_many_runs_leave_no_widget_and_no_comm(lesson: Page) -> None:
    before = run_cell(lesson, NUMBER["count"])
    run_cell(lesson, NUMBER["again"])
    assert len(shown(lesson, "again")) == 4
    assert run_cell(lesson, NUMBER["count"]) == before
    assert lesson.locator(LIVE).count() == 0


@pytest.mark.parametrize("missing", ["no server's", "no kernel's"])
def test_wi_01_wi_03_without_widgets_one_hint_and_still_pictures(
    lesson: Page, missing: str
) -> None:
    text = run_cell(lesson, NUMBER[missing])
    assert text.count("[labkit] live pictures need ipywidgets and anywidget in") == 1
    assert ("JupyterLab's Python" in text) == (missing == "no server's")
    pictures = shown(lesson, missing)
    assert len(pictures) == 2
    for data in pictures:
        check_still(data)


def test_wi_05_each_picture_is_there_without_a_kernel(
    lesson: Page, page: Page, lab: LabServer
) -> None:
    run_cell(lesson, NUMBER["run"])
    run_cell(lesson, NUMBER["curve"])
    [data] = shown(lesson, "curve")
    check_still(data)
    lesson.keyboard.press("Control+s")
    lesson.wait_for_function(
        "() => !window.jupyterapp.shell.currentWidget.context.model.dirty"
    )
    saved = (lab.work / "live.ipynb").read_text()
    assert WIDGET not in saved
    (lab.work / "saved.ipynb").write_text(saved)
    open_without_kernel(page, lab, "saved.ipynb")
    for name in ("run", "curve"):
        cell = page.locator(".jp-CodeCell").nth(NUMBER[name])
        cell.scroll_into_view_if_needed()
        expect(cell.locator(".js-plotly-plot, img").first).to_be_visible()
    for trouble in ("Error displaying widget", "Loading widget"):
        assert page.get_by_text(trouble).count() == 0
    assert converted(lab, "saved.ipynb").count('src="data:image/png;base64') == sum(
        "image/png" in each for name in CELLS for each in shown(lesson, name)
    )


def open_without_kernel(page: Page, lab: LabServer, name: str) -> None:
    """Open a notebook as a reader does who has no kernel for it."""
    page.goto(f"{lab.url}lab/workspaces/reader?token={lab.token}")
    page.wait_for_function("() => window.jupyterapp !== undefined")
    page.evaluate(OPEN, name)
    page.wait_for_function(
        "name => window.jupyterapp.shell.currentWidget?.context?.path === name",
        arg=name,
    )
    kernel = "() => window.jupyterapp.shell.currentWidget.sessionContext.session"
    assert page.evaluate(kernel) is None


def converted(lab: LabServer, name: str) -> str:
    """The notebook as a page, made by nbconvert."""
    command = ["-m", "nbconvert", "--to", "html", "--stdout", str(lab.work / name)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_one_of_many_spans_is_drawn(lab: LabServer, browser: Browser) -> None:
    seen, (num_spans, *_) = measure(browser, lab, 4, 10_000, 2.0, rest_s=1.0)
    assert int(seen["records"]) >= num_spans == 10_000
    assert int(seen["largest"]) < 100_000
    assert seen["asks"] == "0"
    assert int(seen["draws"]) <= int(seen["frames"])
