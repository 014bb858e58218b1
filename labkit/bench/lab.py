"""JupyterLab in a browser: starts the server, opens a notebook, runs it, reads it.

[Note: traps] "Run all" before the session is ready opens a Select Kernel dialog, and
the run hangs: wait for the session and an idle kernel first. The command ends at the
first error, also at one on purpose, while the kernel goes on with the other cells: wait
for those.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from labkit.course.launch import lab_command, lab_environment

START_LIMIT_S = 60
ROOT = Path(__file__).resolve().parents[2]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
# Without these Chromium needs rights and a screen that containers do not have.
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu")

READY = """name => {
    const panel = window.jupyterapp?.shell.currentWidget;
    const session = panel?.sessionContext;
    return panel?.context?.path === name && panel.context.isReady && session?.isReady
        && session.session?.kernel?.status === 'idle';
}"""
RUN_ALL = """() => {
    window.labkitRun = null;
    window.jupyterapp.commands.execute('notebook:run-all-cells').then(
        result => { window.labkitRun = {result}; },
        error => { window.labkitRun = {error: String(error)}; });
}"""
IS_IDLE = """() => window.jupyterapp.shell.currentWidget.sessionContext.session
    .kernel.status === 'idle'"""
IDLE_LOOKS = 8  # So often in a row, a quarter of a second apart: then it is idle.


def find_chromium() -> str | None:
    """Chromium's path; LABKIT_CHROMIUM names another than the one on PATH."""
    found = [os.environ.get("LABKIT_CHROMIUM"), *map(shutil.which, CHROMIUMS)]
    return next(filter(None, found), None)


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab whose files are in `work`."""

    url: str
    token: str
    work: Path


@contextmanager
def lab_server(folder: Path) -> Generator[LabServer]:
    """Run JupyterLab on `folder / "work"`, with no settings but its own."""
    work, token = folder / "work", secrets.token_hex(16)
    work.mkdir(parents=True)
    extra = [
        "--no-browser", "--ServerApp.port=0", f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (folder / "lab.log").open("w") as log:
        process = subprocess.Popen(
            lab_command(work, extra), cwd=work, env=_environment(folder),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield LabServer(_wait_for_url(folder, process), token, work)
    finally:
        _end(process)


def open_notebook(page: Page, server: LabServer, name: str) -> None:
    """Open a notebook of the work folder and wait until its kernel is idle."""
    # A workspace of its own, or JupyterLab would first open what was open before.
    workspace = f"{server.url}lab/workspaces/{secrets.token_hex(4)}"
    page.goto(f"{workspace}/tree/{name}?token={server.token}")
    wait_idle(page, name)


def wait_idle(page: Page, name: str, limit_s: float = 60) -> None:
    """Wait until this notebook is in front, with a session and an idle kernel."""
    page.wait_for_function(READY, arg=name, timeout=limit_s * 1000)


def run_all(page: Page, limit_s: float = 60) -> None:
    """Run every cell of the notebook in front and wait for the last one's end."""
    page.evaluate(RUN_ALL)
    page.wait_for_function("() => window.labkitRun !== null", timeout=limit_s * 1000)
    ended = page.evaluate("() => window.labkitRun")
    assert "error" not in ended, ended
    deadline, seen_idle = time.monotonic() + limit_s, 0
    while seen_idle < IDLE_LOOKS:
        assert time.monotonic() < deadline, f"cells still run after {limit_s} s"
        page.wait_for_timeout(250)
        seen_idle = seen_idle + 1 if page.evaluate(IS_IDLE) else 0


def _environment(folder: Path) -> dict[str, str]:
    own = {
        name: str(folder / name.lower())
        for name in (
            "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR",
            "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR",
        )
    }  # fmt: skip
    return lab_environment({**os.environ, **own, "PYTHONPATH": str(ROOT)})


def _wait_for_url(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The URL that the server writes into its runtime folder once it listens."""
    told = folder / "jupyter_runtime_dir" / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return json.loads(told.read_text())["url"]
        except (OSError, ValueError):
            time.sleep(0.1)
    log = (folder / "lab.log").read_text()[-3000:]
    raise AssertionError(f"JupyterLab did not start within {START_LIMIT_S} s:\n{log}")


def _end(process: subprocess.Popen[bytes], grace_s: float = 20) -> None:
    """Ask the server to end, which ends its kernels; then end its own group."""
    process.terminate()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
