"""Lesson 01 in a real JupyterLab: pictures that grow while a cell runs, and stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page

from labkit.course.places import find_course
from tests.browser.lab import (
    LabServer,
    code_cells,
    open_notebook,
    outputs,
    run_cell,
    start_cell,
    wait_cell,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]
NAME = "01_collectives.ipynb"
LIMIT_MS = 60_000
# The last cell of the lesson that runs here: the naive all-reduce.
LAST = 'naive.timeline("All-reduce, everything through rank 0")'
LONG = """
def again_and_again(number):
    for _ in range(number):
        on_an_array(collectives.all_reduce_ring)

run = cluster.run(again_and_again, 150)
"""
LIVE = ".labkit-live"


@pytest.fixture(scope="module")
def first_part(lab: LabServer) -> Path:
    """The solved lesson up to its first timeline, then a ring for some seconds."""
    course = find_course()
    notebook: Any = nbformat.read(course.solutions / NAME, as_version=4)
    last = next(n for n, cell in enumerate(notebook.cells) if LAST in cell.source)
    notebook.cells = notebook.cells[: last + 1]
    notebook.cells.append(nbformat.v4.new_code_cell(LONG))
    target = lab.work / NAME
    nbformat.write(notebook, target)
    return target


def test_it_is_drawn_while_a_ring_runs_and_the_saved_notebook_keeps_it(
    lab: LabServer, page: Page, first_part: Path
) -> None:
    page.set_default_timeout(LIMIT_MS)
    open_notebook(page, lab, NAME)
    number = len(code_cells(page)) - 1
    for each in range(number):
        run_cell(page, each)
    assert [c for c in code_cells(page)[:number] if _failed(c)] == []
    shown = "\n".join(outputs(page))
    assert "ranks with the whole sum after a reduce-scatter: it is 0" in shown
    assert "arrays sent by the naive all-reduce, 4 ranks: it is 6" in shown

    start_cell(page, number)
    seen = [_drawn(page, at_least=1)]
    seen.append(_drawn(page, at_least=seen[0] + 20))
    assert code_cells(page)[number]["execution_count"] is None
    assert seen[1] > seen[0]
    assert wait_cell(page, number).startswith("4 ranks")

    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    saved = json.loads(first_part.read_text())
    pictures = [
        output["data"]
        for cell in saved["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert all(data["text/plain"] for data in pictures)


def _failed(cell: dict[str, Any]) -> bool:
    return any(output["output_type"] == "error" for output in cell["outputs"])


def _drawn(page: Page, at_least: int) -> int:
    """Wait until so many stretches are on the page; how many there are."""
    records = f"Number(document.querySelector('{LIVE}')?.dataset.records)"
    page.wait_for_function(f"() => {records} >= {at_least}")
    return page.evaluate(f"() => {records}")
