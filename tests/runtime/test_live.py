"""A run in a notebook is drawn while it goes on, and a picture of it stays.

The kernel is told that it belongs to a page; messages to that page are read here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.runtime.live import BROKEN
from labkit.view.bundle import PLOTLY
from labkit.view.front_end import SESSION
from tests.runtime.notebook import Notebook, Reply

pytestmark = pytest.mark.slow
WIDGET = "application/vnd.jupyter.widget-view+json"
PROGRAMS = """
import os, time
from ipywidgets.widgets import widget as ipywidgets
from labkit import span
def work(seconds):
    with span("forward"):
        time.sleep(seconds)
    dist.all_reduce(torch.ones(1000))
    return dist.get_rank()
def breaks():
    work(0.6)
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
def straggles():
    while dist.get_rank() == 2:
        pass
    dist.barrier()
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Notebook]:
    """A kernel of a page, with four warm ranks."""
    notebook = Notebook(world_size=4, variables={SESSION: "lesson.ipynb"})
    notebook.run(PROGRAMS).ok()
    yield notebook
    notebook.close()


def shown(reply: Reply) -> list[tuple[str, dict[str, Any]]]:
    """What a cell showed, and showed instead of that."""
    return [
        (output["output_type"], output["data"])
        for output in reply.outputs
        if output["output_type"] != "stream"
    ]


def still(reply: Reply) -> str:
    """The words of the picture that took the live one's place."""
    (first, live), (second, data) = shown(reply)
    assert (first, second) == ("display_data", "update_display_data")
    assert WIDGET in live
    assert set(data) == {PLOTLY, "image/png", "text/plain"}
    ids = {o["transient"]["display_id"] for o in reply.outputs if "transient" in o}
    assert len(ids) == 1
    return data["text/plain"]


def test_a_run_is_drawn_and_its_timeline_stays(page: Notebook) -> None:
    reply = page.run("run = cluster.run(work, 0.6)").ok()
    text = still(reply)
    assert text.startswith("4 ranks, ")
    assert "all_reduce" in text
    assert page.run("str(run.timeline()) == " + repr(text)).ok().outputs[-1]["data"][
        "text/plain"
    ] == "True"  # fmt: skip
    assert reply.stderr == ""


def test_a_cell_that_asks_for_its_run_s_picture_has_one(page: Notebook) -> None:
    """Under the title that it asks for; another picture stands beside it."""
    reply = page.run(
        "run = cluster.run(work, 0.6)\n"
        "display(run.timeline('Asked for'))\n"
        "run.timeline('Once more')"
    ).ok()
    kinds, data = zip(*shown(reply), strict=True)
    assert kinds == (
        "display_data", "update_display_data", "update_display_data", "execute_result"
    )  # fmt: skip
    assert data[2]["text/plain"].startswith("Asked for")
    assert data[3]["text/plain"].startswith("Once more")
    ((kind, _),) = shown(page.run("run.timeline()").ok())
    assert kind == "execute_result"
    page.run("assert cluster.run(lambda: run.seconds).results[3] == run.seconds").ok()


@pytest.mark.parametrize(
    "code",
    ["cluster.run(work, 0.0);", "%%ranks\nx = 3; time.sleep(0.6)",
     "with cluster.undrawn():\n    cluster.run(work, 0.6)"],
    ids=["a short run", "a look around", "undrawn"],
)  # fmt: skip
def test_nothing_is_shown_of(page: Notebook, code: str) -> None:
    assert shown(page.run(code).ok()) == []


def test_what_fails_undrawn_leaves_later_runs_drawn(page: Notebook) -> None:
    page.run("with cluster.undrawn():\n    cluster.run(breaks)")
    assert shown(page.run("cluster.run(work, 0.6);").ok()) != []


def test_a_run_that_fails_leaves_what_was_heard(page: Notebook) -> None:
    reply = page.run("cluster.run(breaks)")
    assert reply.ename == "RankFailed"
    assert "on purpose" in reply.evalue + reply.shown
    assert BROKEN in still(reply)


def test_an_interrupt_leaves_what_was_heard(page: Notebook) -> None:
    page.start("cluster.run(work, 30)")
    while WIDGET not in str(shown(page._reply)):
        page._take(0.1)
    page.interrupt()
    reply = page.finish()
    assert reply.ename == "RunInterrupted"
    assert BROKEN in still(reply)


def test_an_interrupted_wait_reaches_to_the_interrupt(page: Notebook) -> None:
    """Also where the rank that kept the others had told nothing."""
    page.start("cluster.run(straggles)")
    while WIDGET not in str(shown(page._reply)):
        page._take(0.1)
    time.sleep(1.0)
    page.interrupt()
    reply = page.finish()
    assert reply.ename == "RunInterrupted"
    text = still(reply)
    waited_s = dict(re.findall(r"rank (\d): ([\d.]+) s", text))
    assert sorted(waited_s) == ["0", "1", "2", "3"]
    assert float(waited_s.pop("2")) == 0
    assert min(map(float, waited_s.values())) >= 1


def test_a_rank_that_dies_leaves_what_was_heard(page: Notebook) -> None:
    reply = page.run("cluster.run(lambda: (work(0.6), os._exit(3)))")
    assert reply.ename == "RankDied"
    assert BROKEN in still(reply)


def test_wi_09_no_widget_is_left_in_the_kernel(page: Notebook) -> None:
    page.run("cluster.run(work, 0.5)").ok()
    before = page.run("print(len(ipywidgets._instances))").ok().stdout
    for _ in range(3):
        still(page.run("cluster.run(work, 0.5);").ok())
    assert page.run("print(len(ipywidgets._instances))").ok().stdout == before == "0\n"


def test_wi_07_a_broken_widget_is_told_once_and_the_run_goes_on(page: Notebook) -> None:
    page.run(
        "from labkit.view import canvas\n"
        "def broken(*args): raise RuntimeError('hooks have changed')\n"
        "real, canvas.show = canvas.show, broken"
    ).ok()
    reply = page.run("print(cluster.run(work, 0.5).results)").ok()
    assert reply.stdout == "[0, 1, 2, 3]\n"
    assert reply.stderr.count("hooks have changed") == 1
    again = page.run("print(cluster.run(work, 0.5).results); canvas.show = real").ok()
    assert again.stderr == ""
    assert shown(reply) + shown(again) == []


def test_wi_10_a_run_in_the_background_is_drawn_under_its_own_cell(
    page: Notebook,
) -> None:
    page.start("behind = cluster.run(work, 1.0, background=True)")
    own = page._running
    page.finish()
    waiting = page._client.execute("results = behind.wait().results")
    seen = []
    while True:
        message = page._client.get_iopub_msg(timeout=30)
        parent, kind = message["parent_header"]["msg_id"], message["msg_type"]
        if "display" in kind:
            seen.append((kind, parent))
        elif parent == waiting and message["content"].get("execution_state") == "idle":
            break
    assert seen == [("display_data", own), ("update_display_data", own)]
