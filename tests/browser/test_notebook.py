"""A small notebook in a real JupyterLab: opened, run, and read."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.lab import (
    LabServer,
    code_cells,
    open_notebook,
    outputs,
    run_all,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]


def test_run_all_runs_every_cell(lab: LabServer, page: Page) -> None:
    write_notebook(
        lab,
        "small.ipynb",
        "import os\nprint('hello from', os.path.basename(os.getcwd()))",
        *["for n in range(60):\n    print(n)"] * 3,
        "import labkit\nlabkit.__name__",
        "import time\ntime.sleep(1)\n6 * 7",
    )
    open_notebook(page, lab, "small.ipynb")
    run_all(page)
    assert [cell["execution_count"] for cell in code_cells(page)] == [1, 2, 3, 4, 5, 6]
    texts = outputs(page)
    assert texts[0] == "hello from work\n"
    assert texts[3].split() == [str(n) for n in range(60)]
    assert texts[4:] == ["'labkit'", "42"]


def test_an_error_stops_the_run_and_is_read(lab: LabServer, page: Page) -> None:
    write_notebook(lab, "stops.ipynb", "1 / 0", "print('never')")
    open_notebook(page, lab, "stops.ipynb")
    run_all(page)
    assert outputs(page) == ["ZeroDivisionError: division by zero", ""]


def test_no_dialog_is_in_the_way(lab: LabServer, page: Page) -> None:
    write_notebook(lab, "quiet.ipynb", "1")
    open_notebook(page, lab, "quiet.ipynb")
    assert page.locator(".jp-Dialog").count() == 0
    assert page.get_by_text("Would you like to get notified").count() == 0
