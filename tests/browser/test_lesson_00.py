"""Lesson 00 in a real JupyterLab: run from top to bottom, read as a learner would."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from labkit.course.places import find_course
from tests.browser.lab import LabServer, code_cells, open_notebook, outputs, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]
NAME = "00_your_cluster.ipynb"
RUN_LIMIT_S = 200

# What the story says, beat by beat: each must be on screen after "run all".
MESSAGES = [
    "4 ranks on gloo, CPU",  # the cluster says what it chose
    "I am rank 3 of 4",  # 1: a rank is a process
    "One name, five variables",
    "cores, 4 ranks: max(1,",  # 2: what this machine is
    "hello from rank 2",  # 3: order is not free
    "CyclicWaitError",  # 4: a deadlock on purpose
    "Ranks wait for each other in a circle",
    "MismatchError",  # 5: the same calls everywhere
    "every rank must make the same call",
    "all-reduce",  # 6: the slow rank looks fast
    "rank 1 raised InjectedFailure",  # 7: ranks fail
    "still here: [101.0, 101.0, 101.0]",  # a typo costs nothing
    "an open file belongs to the process that opened it",
]


@pytest.fixture(scope="module")
def solved(lab: LabServer) -> Path:
    """The solved lesson, in the learner's folder."""
    course = find_course()
    assert course is not None
    target = lab.work / NAME
    shutil.copy(course.solutions / NAME, target)
    return target


def test_the_solved_lesson_runs_and_fails_only_on_purpose(
    lab: LabServer, page: Page, solved: Path
) -> None:
    open_notebook(page, lab, solved.name)
    run_all(page, RUN_LIMIT_S)
    cells = code_cells(page)
    assert [c["source"] for c in cells if _failed(c)] == [
        c["source"] for c in cells if _fails_on_purpose(c)
    ]
    assert all(cell["execution_count"] for cell in cells)
    text = "\n".join(outputs(page))
    assert [message for message in MESSAGES if message not in text] == []
    _check_pictures(cells)


def _failed(cell: dict[str, Any]) -> bool:
    return any(output["output_type"] == "error" for output in cell["outputs"])


def _fails_on_purpose(cell: dict[str, Any]) -> bool:
    return "raises-exception" in cell["metadata"].get("tags", [])


def _check_pictures(cells: list[dict[str, Any]]) -> None:
    """Each timeline is drawn, and stays in the saved notebook as a picture."""
    pictures = [
        output["data"]
        for cell in cells
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 4
    for data in pictures:
        assert "application/vnd.plotly.v1+json" in data
        assert data["text/plain"]
