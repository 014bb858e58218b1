"""The live timeline in a browser: frames a second, how late it is, what it costs.

Ranks in a notebook in JupyterLab tell of 50,000 spans in 8 s; what is new goes to the
page ten times a second. Frames are counted by the page itself.
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
# The kernel prints how many spans it was, the processor seconds of a run that is not
# drawn and of one that is, the seconds of that one, and of drawing what stays of it.
CELL = """
import json, time
from labkit import Cluster
from labkit.bench.played import play
from labkit.view.live import LiveView
cluster = Cluster({num_ranks}, quiet=True)
end, cpu_s, lasted_s = LiveView.end, [], []
def noted(view, draw=None):
    if draw is not None:
        cpu_s.append(time.process_time() - began_s)
        lasted_s.append(-time.monotonic())
    end(view, draw)
LiveView.end = noted
for cluster.live in (False, True):
    began_s = time.process_time()
    run = cluster.run(play, {num_spans} // {num_ranks}, {duration_s}, {rest_s})
    ended_s, quiet_s = time.monotonic(), time.process_time() - began_s
    if not cluster.live:
        cpu_s.append(quiet_s)
print(json.dumps([sum(run.results), *cpu_s[:2], run.seconds, ended_s + lasted_s[0]]))
"""
# The live picture is replaced at its end: its counters are kept from frame to frame.
KEEP = """() => {
    const keep = () => {
        const live = document.querySelector('.labkit-live');
        if (live) window.labkitKept = {...live.dataset};
        requestAnimationFrame(keep);
    };
    keep();
}"""
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
    rest_s: float = 0.0,
) -> tuple[dict[str, str], list[float]]:
    """The page's counters when the run ended, and what the kernel printed.

    With a rest at the end of the run even a slow page has drawn all by then.
    """
    code = CELL.format(
        num_ranks=num_ranks, num_spans=num_spans, duration_s=duration_s, rest_s=rest_s
    )
    cell = nbformat.v4.new_code_cell(code)
    name = f"live_{num_ranks}.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (server.work / name).write_text(nbformat.writes(notebook))
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    open_notebook(page, server, name)
    page.evaluate(KEEP)
    page.evaluate(RUN_ALL)
    page.wait_for_function(f"() => ({OUTPUT})().includes(']')", timeout=LIMIT_MS)
    played = json.loads(page.evaluate(OUTPUT))
    counters = page.evaluate("() => window.labkitKept")
    page.close()
    return counters, played


def _judged(
    num_ranks: int, counters: Mapping[str, str], played: list[float]
) -> list[Figure]:
    num_spans, quiet_s, cpu_s, seconds, still_s = played
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
        "of that, without drawing": (100 * quiet_s / seconds, "%"),
        "drawing what stays": (still_s, "s"),
    }
    return [
        Figure(f"{name}: {what}", unit, value) for what, (value, unit) in values.items()
    ]
