"""The live timeline in a browser: frames a second, how late it is, what it costs.

A notebook in JupyterLab draws 50,000 spans in 8 s, sent ten times a second, of 4 and of
8 ranks. Frames are counted by the page itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

from labkit.bench.figures import Figure
from labkit.bench.lab import (
    CHROMIUM_FLAGS,
    RUN_ALL,
    LabServer,
    find_chromium,
    lab_server,
    open_notebook,
)
from labkit.errors import UsageError

NUM_RANKS = (4, 8)
NUM_SPANS, DURATION_S = 50_000, 8.0
LIMIT_MS = 60_000
# The kernel writes what playing cost into the page, where the picture was.
CELL = """
import json, time
from labkit.bench.played import play
from labkit.view.live import LiveView
view = LiveView(range({num_ranks}))
played = play(view, {num_ranks}, {num_spans}, {duration_s})
time.sleep(2)
view.end()
print(json.dumps([played.num_spans, played.cpu_s, played.seconds]))
"""
OUTPUT = """() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells
    .flatMap(cell => cell.outputs ?? []).filter(each => each.name === 'stdout')
    .map(each => [each.text].flat().join('')).join('')"""


def figures() -> list[Figure]:
    """Measure it, in a browser of its own.

    Raises:
        UsageError: There is no Chromium or no Playwright.
    """
    path = find_chromium()
    if path is None or find_spec("playwright") is None:
        missing = "Chromium" if path is None else "Playwright"
        raise UsageError(
            "the live timeline is measured in Chromium, driven by Playwright; there "
            f"is no {missing} here. Try apt install chromium, pip install playwright"
        )
    from playwright.sync_api import sync_playwright

    found: list[Figure] = []
    with (
        TemporaryDirectory(prefix="labkit-bench-") as folder,
        lab_server(Path(folder)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=path, args=list(CHROMIUM_FLAGS)
        )
        for num_ranks in NUM_RANKS:
            sys.stderr.write(f"live: {num_ranks} ranks\n")
            found += _judged(num_ranks, *measure(browser, server, num_ranks))
        browser.close()
    return found


def measure(
    browser: Any,
    server: LabServer,
    num_ranks: int,
    num_spans: int = NUM_SPANS,
    duration_s: float = DURATION_S,
) -> tuple[dict[str, str], list[float]]:
    """The page's counters when the last span was drawn; spans, CPU s and s it took."""
    code = CELL.format(num_ranks=num_ranks, num_spans=num_spans, duration_s=duration_s)
    cell = nbformat.v4.new_code_cell(code)
    name = f"live_{num_ranks}.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (server.work / name).write_text(nbformat.writes(notebook))
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    open_notebook(page, server, name)
    page.evaluate(RUN_ALL)
    page.wait_for_selector(".labkit-live[data-ended=true]", timeout=LIMIT_MS)
    counters = page.eval_on_selector(".labkit-live", "each => ({...each.dataset})")
    page.wait_for_function(f"() => ({OUTPUT})().includes(']')", timeout=LIMIT_MS)
    played = json.loads(page.evaluate(OUTPUT))
    page.close()
    return counters, played


def _judged(
    num_ranks: int, counters: Mapping[str, str], played: list[float]
) -> list[Figure]:
    num_spans, cpu_s, seconds = played
    name = f"live timeline, {num_ranks} ranks, {num_spans:,.0f} spans"
    page_s = int(counters["ms"]) / 1e3
    values = {
        "drawn": (int(counters["records"]), "spans"),
        "frames": (int(counters["frames"]) / page_s, "frames/s"),
        "last picture late by": (int(counters["lagMs"]) / 1e3, "s"),
        "latest picture late by": (int(counters["maxLagMs"]) / 1e3, "s"),
        "messages": (int(counters["messages"]) / seconds, "a second"),
        "largest message": (int(counters["largest"]), "bytes"),
        "kernel's processor time": (100 * cpu_s / seconds, "%"),
    }
    return [
        Figure(f"{name}: {what}", unit, value) for what, (value, unit) in values.items()
    ]
