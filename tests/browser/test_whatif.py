"""The what-if panel in a real JupyterLab: keys move it, and a picture stays."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import LabServer, open_notebook, outputs, run_all, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

# Eight ranks, 480 events each way: about as much as a picture draws.
PANEL = """
from labkit.record.program import Comm, Header, Program, Work
from labkit.replay.catalog import hardware
from labkit.replay.engine import replay
from labkit.view.whatif import Panel, Question, Settings

def events(rank):
    for step in range(120):
        yield Work(rank, 0, 0, 2 * step, "aten.mm", 1e12, 1e6, 1, "bfloat16",
                   None, None, None, None)
        yield Comm(rank, 0, 0, 2 * step + 1, step, "all_reduce", "world", step, None, 0,
                   0, 64 << 20, "float32")

ranks = tuple(range(8))
header = Header(world_size=8, ranks=ranks, source="dry", level="work")
program = Program(header, {"world": ranks}, tuple(tuple(events(r)) for r in ranks))
h100 = hardware("dgx-h100")
start = Settings(h100.link_bytes_per_s, h100.latency_s, h100.flops_per_s, 8)
panel = Panel(Question(
    lambda settings: replay(program, h100.with_(**settings._asdict())),
    start, (1, 2, 4, 8), "a step",
))
panel
"""
DRAWN = "() => document.querySelector('.js-plotly-plot').layout.xaxis.range[1]"


def test_keys_move_a_slider_and_the_picture_follows(lab: LabServer, page: Page) -> None:
    write_notebook(lab, "whatif.ipynb", PANEL)
    open_notebook(page, lab, "whatif.ipynb")
    run_all(page)
    status = page.locator(".jp-OutputArea [role=status]")
    expect(status).to_contain_text("ms")
    expect(page.locator(".js-plotly-plot")).to_be_visible()
    handles = page.locator(".noUi-handle")
    expect(handles).to_have_count(4)
    before = page.evaluate(DRAWN)
    handles.first.focus()
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    expect(status).to_contain_text("times as long as it is")
    page.wait_for_function(f"before => ({DRAWN})() > before", arg=before)
    expect(page.locator(".widget-readout").first).to_have_text("58.6")


def test_what_is_kept_is_in_the_saved_notebook(lab: LabServer, page: Page) -> None:
    write_notebook(lab, "kept.ipynb", PANEL)
    open_notebook(page, lab, "kept.ipynb")
    run_all(page)
    page.locator(".noUi-handle").nth(1).focus()
    page.keyboard.press("PageUp")
    status = page.locator(".jp-OutputArea [role=status]")
    expect(status).to_contain_text("as long as it is")
    page.get_by_role("button", name="keep").click()
    expect(page.locator(".noUi-handle")).to_have_count(0)
    page.keyboard.press("Control+s")
    page.wait_for_function(
        "() => !window.jupyterapp.shell.currentWidget.context.model.dirty"
    )
    assert "as it is" in outputs(page)[0]
    saved = json.loads((lab.work / "kept.ipynb").read_text())
    kept = [output["data"] for output in saved["cells"][1]["outputs"]]
    assert len(kept) == 2
    for data, told in zip(kept, ("as it is", "link bandwidth 370 GB/s"), strict=True):
        assert "image/png" in data
        assert "application/vnd.plotly.v1+json" in data
        assert told in "".join(data["text/plain"])
    open_notebook(page, lab, "kept.ipynb")
    assert page.get_by_text("Error displaying widget").count() == 0
