"""A notebook in JupyterLab, read as a learner sees it.

Cells off the screen are not in the page: read outputs from the notebook's model, never
from the page.
"""

from __future__ import annotations

from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from playwright.sync_api import Page

from labkit.bench.lab import (
    RUN_ALL,
    LabServer,
    lab_server,
    open_notebook,
    run_all,
    wait_idle,
)

__all__ = [
    "RUN_ALL", "LabServer", "code_cells", "lab_server", "open_notebook", "outputs",
    "run_all", "run_cell", "start_cell", "wait_cell", "wait_idle", "write_notebook",
]  # fmt: skip
# The notebook counts its Markdown too. While a cell runs it has no number.
FIND_CELL = """
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const codes = notebook.widgets.filter(each => each.model.type === 'code');
"""
START_CELL = f"""number => {{
    {FIND_CELL}
    codes[number].model.executionCount = null;
    notebook.activeCellIndex = notebook.widgets.indexOf(codes[number]);
    window.jupyterapp.commands.execute('notebook:run-cell');
}}"""
HAS_RUN = f"""number => {{
    {FIND_CELL}
    return codes[number].model.executionCount !== null
        && codes[number].model.executionState !== 'running';
}}"""
CELLS = "() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells"


def write_notebook(server: LabServer, name: str, *sources: str) -> None:
    """Put a notebook into the work folder; the tallest cells push others off screen."""
    cells = [new_markdown_cell("# A small notebook"), *map(new_code_cell, sources)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = new_notebook(cells=cells, metadata=metadata)
    (server.work / name).write_text(nbformat.writes(notebook))


def code_cells(page: Page) -> list[dict[str, Any]]:
    """The code cells of the notebook in front, with outputs, as its model has them."""
    cells: list[dict[str, Any]] = page.evaluate(CELLS)
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs(page: Page) -> list[str]:
    """What each code cell printed or showed, as text."""
    return ["".join(map(_text, cell["outputs"])) for cell in code_cells(page)]


def _text(output: dict[str, Any]) -> str:
    """An output as text: what was printed, an error's words, else text/plain."""
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    text = output.get("text", output.get("data", {}).get("text/plain", ""))
    return text if isinstance(text, str) else "".join(text)


def start_cell(page: Page, number: int) -> None:
    """Start the code cell with this number, from 0, and go on."""
    page.evaluate(START_CELL, number)


def wait_cell(page: Page, number: int, limit_s: float = 60) -> str:
    """Wait until this code cell has run; what it printed or showed, as text."""
    page.wait_for_function(HAS_RUN, arg=number, timeout=limit_s * 1000)
    return outputs(page)[number]


def run_cell(page: Page, number: int, limit_s: float = 60) -> str:
    """Run one code cell, and return what it printed or showed, as text."""
    start_cell(page, number)
    return wait_cell(page, number, limit_s)
