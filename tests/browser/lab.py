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
    "run_all", "wait_idle", "write_notebook",
]  # fmt: skip
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
