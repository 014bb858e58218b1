"""A learner's notebook is run and judged cell by cell, whatever its cells do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.checks.verdict import Fault, Property, judge
from labkit.course import build as builder
from labkit.course import harvest
from labkit.course.check import (
    CellResult,
    NotebookReport,
    check_notebook,
    points_told,
)
from labkit.course.places import Course
from labkit.errors import UsageError

Edit = Callable[[dict[str, Any]], None]
pytestmark = [pytest.mark.timeout(100)]


@pytest.fixture
def notebook(course: Course) -> Path:
    """The first lesson with its answers, as a learner's file in a folder of its own."""
    _, solved = builder.build(course)
    course.work.mkdir()
    path = course.work / "00_first.ipynb"
    path.write_bytes(solved.content)
    return path


def edit(path: Path, cell_id: str, source: str) -> None:
    """Put other text into one cell, as JupyterLab would save it."""
    content = json.loads(path.read_text())
    (cell,) = [cell for cell in content["cells"] if cell["id"] == cell_id]
    cell["source"] = source
    path.write_text(json.dumps(content))


def statuses(report: NotebookReport) -> dict[str, str]:
    return {result.exercise: result.status for result in report.exercises}


@pytest.mark.slow
def test_right_answers_pass_and_the_notebook_is_only_read(notebook: Path) -> None:
    (notebook.parent / "beside.py").write_text("value = 7\n")
    edit(notebook, "lab00-x-code-1", "import math, beside\nassert beside.value == 7")
    before = notebook.read_bytes()
    told: list[tuple[int, int]] = []
    report = check_notebook(notebook, progress=lambda *pair: told.append(pair))
    assert report.ok
    assert report.stopped == ()
    assert [(r.exercise, r.points, r.out_of, r.status) for r in report.exercises] == [
        ("0.1", 10, 10, "passed"),
        ("0.2", 5, 5, "passed"),
    ]
    assert notebook.read_bytes() == before
    assert told[0] == (0, 8)
    assert {path.name for path in notebook.parent.iterdir()} <= {
        notebook.name, "beside.py", "__pycache__"
    }  # fmt: skip


@pytest.mark.slow
def test_a_lesson_as_handed_out_stops_only_at_its_holes(
    course: Course, notebook: Path
) -> None:
    handed_out, _ = builder.build(course)
    notebook.write_bytes(handed_out.content)
    report = check_notebook(notebook)
    assert statuses(report) == {"0.1": "not answered", "0.2": "not answered"}
    assert report.stopped == ()
    assert not report.ok


@pytest.mark.slow
def test_a_wrong_answer_fails_alone_with_its_message(notebook: Path) -> None:
    edit(notebook, "lab00-0-2-hole-1", "def triple(x): return x + 1")
    edit(notebook, "lab00-x-code-3", "1 / 0")
    report = check_notebook(notebook)
    assert statuses(report) == {"0.1": "passed", "0.2": "failed"}
    wrong = report.exercises[1]
    assert wrong.message == "AssertionError: values: triple(4) must be 12, got 5"
    assert (wrong.points, wrong.out_of) == (0, 5)
    assert [cell.error for cell in report.stopped] == ["ZeroDivisionError"]


@pytest.mark.slow
def test_upto_runs_nothing_after(notebook: Path) -> None:
    edit(notebook, "lab00-x-code-3", "open('ran', 'w')")
    report = check_notebook(notebook, upto="0.1")
    assert statuses(report) == {"0.1": "passed"}
    assert not (notebook.parent / "ran").exists()
    with pytest.raises(UsageError, match=r"'0.9' is not among \['0.1', '0.2'\]"):
        check_notebook(notebook, upto="0.9")


@pytest.mark.slow
def test_after_a_cell_without_end_later_checks_are_still_judged(notebook: Path) -> None:
    edit(notebook, "lab00-0-1-look-1", "while True:\n    print('again' * 100)")
    edit(notebook, "lab00-0-2-hole-1", "def triple(x): return 0")
    report = check_notebook(notebook, cell_limit_s=2)
    assert statuses(report) == {"0.1": "passed", "0.2": "failed"}
    (stopped,) = report.stopped
    assert stopped.role == "look"
    assert "Timeout of 2 seconds" in (stopped.message or "")


@pytest.mark.slow
def test_a_dead_kernel_is_noticed_and_the_rest_is_not_run(notebook: Path) -> None:
    edit(notebook, "lab00-0-1-look-1", "import os; os.kill(os.getpid(), 9)")
    report = check_notebook(notebook, cell_limit_s=1000)
    assert statuses(report) == {"0.1": "passed", "0.2": "not run"}
    assert "the kernel's process ended" in (report.stopped[0].message or "")


@pytest.mark.slow
def test_an_interrupt_leaves_no_process(notebook: Path) -> None:
    edit(notebook, "lab00-0-1-look-1", "import time; time.sleep(1000)")
    before = set(psutil.Process().children(recursive=True))
    started: list[psutil.Process] = []

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            now = psutil.Process().children(recursive=True)
            started.extend(process for process in now if process not in before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_notebook(notebook, progress=interrupt)
    assert len(started) >= 2
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


@pytest.mark.slow
def test_small_faults_of_a_file_do_not_matter(notebook: Path) -> None:
    content = json.loads(notebook.read_text())
    for cell in content["cells"]:
        cell["id"] = "the same"
        cell.pop("execution_count", None)
        if cell["metadata"]["labkit"]["role"] == "check":
            cell["metadata"]["tags"] = ["raises-exception", "nbval-skip"]
    content["cells"].append({"cell_type": "code", "source": "", "metadata": {}})
    content["metadata"] = {"kernelspec": {"name": "gone", "display_name": "gone"}}
    notebook.write_text(json.dumps(content))
    assert statuses(check_notebook(notebook)) == {"0.1": "passed", "0.2": "passed"}


@pytest.mark.slow
def test_a_check_cell_cannot_excuse_itself(notebook: Path) -> None:
    content = json.loads(notebook.read_text())
    cell = content["cells"][4]
    cell["metadata"]["tags"] = ["raises-exception"]
    cell["source"] = "# NBVAL_SKIP\n" + "".join(cell["source"])
    notebook.write_text(json.dumps(content))
    edit(notebook, "lab00-0-1-hole-1", "def double(x): return 0")
    report = check_notebook(notebook, upto="0.1")
    assert statuses(report) == {"0.1": "failed"}


@pytest.mark.slow
def test_a_cell_with_the_tag_for_it_is_left_out(notebook: Path) -> None:
    content = json.loads(notebook.read_text())
    content["cells"][1]["metadata"]["tags"] = ["nbval-skip"]
    notebook.write_text(json.dumps(content))
    edit(notebook, "lab00-x-code-1", "open('ran', 'w')")
    edit(notebook, "lab00-x-code-3", "2 * 2")
    report = check_notebook(notebook)
    assert report.ok
    assert not (notebook.parent / "ran").exists()


@pytest.mark.parametrize("limit", [0, -1.5])
def test_a_limit_must_be_above_zero(notebook: Path, limit: float) -> None:
    with pytest.raises(UsageError, match="above 0 s"):
        check_notebook(notebook, cell_limit_s=limit)


def test_points_are_read_from_what_a_check_says() -> None:
    verdict = judge(
        "0.1",
        "Speak in order",
        {Property.VALUES: 3, Property.TRAFFIC: 4, Property.SCHEDULE: 3},
        [Fault(Property.TRAFFIC, "p = 4", "5 messages; 3 are enough", kept=1)],
        "3 cases",
    )
    told = CellResult(4, "0.1", "check", False, "CheckFailed", verdict.complaint(), 0.1)
    assert points_told(told) == verdict.points == 7
    assert points_told(replace(told, error="ValueError")) == 0
    assert points_told(replace(told, message=None)) == 0


class FloodingKernel:
    """Answers every read of the output with another kilobyte."""

    def __init__(self) -> None:
        self.kc = self

    def get_iopub_msg(self, timeout: float) -> dict[str, Any]:
        return {"msg_type": "stream", "content": {"text": "x" * 1000}}


def test_what_a_cell_prints_is_kept_up_to_a_bound() -> None:
    kernel = harvest.BoundedKernel(FloodingKernel())
    for _ in range(20):
        kernel._read_ahead()
    kept = sum(len(message["content"]["text"]) for message in kernel._ahead)
    assert harvest.MAX_OUTPUT_BYTES - 1000 <= kept <= harvest.MAX_OUTPUT_BYTES
