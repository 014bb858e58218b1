"""Runs a notebook's cells in a process and a kernel of their own, within limits.

pytest with nbval runs them; `harvest` writes a line a cell, so that whatever ends the
trial, it is known what each cell did until then. Every process that the trial started
carries a token in its environment; when the trial ends, those that are left are ended.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

CELL_LIMIT_S = 120.0
TOKEN = "LABKIT_TRIAL"
# nbval loads jsonschema, which loads a checker of addresses where there is one. That
# takes longer than all the rest together (1.7 of 2.5 s), for what no notebook has.
_PYTEST = (
    "import sys; sys.modules['rfc3987_syntax'] = None; "
    "import pytest; sys.exit(pytest.main())"
)
_TYPES = {
    "cell": int, "ran": bool, "passed": bool, "error": str | None,
    "message": str | None, "seconds": float,
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How long a cell and the whole notebook may run, and how large a file may get."""

    cell_s: float = CELL_LIMIT_S
    notebook_s: float | None = None
    file_bytes: int | None = None


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes:
        records: What `harvest` wrote of each code cell, by its number.
        ended: What ended it before the last cell; "" where nothing did.
    """

    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: str = ""


def run(
    cells: Sequence[Mapping[str, Any]],
    folder: Path,
    limits: Limits,
    *,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trial:
    """Run cells in the order in which they are; the kernel works in `folder`.

    Args:
        cells: Of a notebook of format 4, each with its source as one text.
        folder: Where the kernel works.
        limits: A cell that runs longer is interrupted and has failed; a notebook is
            ended.
        environment: Set for the trial's processes beside what they inherit.
        progress: Called with the number of code cells done and to do.
    """
    total = sum(cell["cell_type"] == "code" for cell in cells)
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(
        prefix="labkit-trial-", ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        notebook, harvest = place / "notebook.ipynb", place / "harvest.jsonl"
        notebook.write_text(_as_text(cells), encoding="utf-8")
        (place / "pytest.ini").write_text("[pytest]\n")
        harvest.touch()
        try:
            with (place / "log").open("wb") as log:
                process = subprocess.Popen(
                    _command(notebook, harvest, folder.resolve(), limits.cell_s),
                    cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**os.environ, **(environment or {}), TOKEN: token},
                    start_new_session=True,
                )  # fmt: skip
                _bound_files(process.pid, limits.file_bytes)
                in_time = _follow(
                    process, lambda: progress(_num_lines(harvest), total), limits
                )
        finally:
            _end_all(token)
        records = {record.pop("cell"): record for record in _records(harvest)}
        return Trial(records, _why_ended(process.returncode, in_time, limits, place))


def _as_text(cells: Sequence[Mapping[str, Any]]) -> str:
    """The notebook as nbval takes it: fresh ids, no outputs."""
    made = copy.deepcopy([dict(cell) for cell in cells])
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}
    return json.dumps(notebook)


def _command(
    notebook: Path, harvest: Path, kernel_folder: Path, cell_limit_s: float
) -> list[str]:
    return [
        sys.executable, "-c", _PYTEST, str(notebook), "-q", "--color=no",
        "-c", str(notebook.parent / "pytest.ini"), "--rootdir", str(notebook.parent),
        "-p", "no:cacheprovider", "-p", "labkit.course.harvest",
        "--harvest", str(harvest), "--kernel-folder", str(kernel_folder),
        "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", str(cell_limit_s),
    ]  # fmt: skip


def _bound_files(pid: int, file_bytes: int | None) -> None:
    """Let no file of the process, and of those it will start, grow without end."""
    if file_bytes is not None and sys.platform == "linux":
        import resource

        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))


def _follow(
    process: subprocess.Popen[bytes], told: Callable[[], None], limits: Limits
) -> bool:
    """Report progress until the process ends; whether it did so in its time."""
    began_s = time.monotonic()
    try:
        while process.poll() is None:
            told()
            ran_s = time.monotonic() - began_s
            if limits.notebook_s is not None and ran_s > limits.notebook_s:
                _take_down(process)
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    except BaseException:
        _take_down(process)
        raise
    return True


def _take_down(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """End pytest as an interrupt would: it stops its kernel, the kernel its ranks."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_all(token: str, attempts: int = 20) -> None:
    """End whatever the trial started and left behind, also what left its group."""
    for _ in range(attempts):
        left = list(_carriers(token))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not left:
            return
        psutil.wait_procs(left, timeout=1)


def _carriers(token: str) -> Iterator[psutil.Process]:
    """The processes that have the token; no process of anybody else does."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = process.environ().get(TOKEN) == token
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _num_lines(harvest: Path) -> int:
    try:
        return harvest.read_bytes().count(b"\n")
    except OSError:
        return 0


def _records(harvest: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole: one may have been cut short, or not be ours."""
    try:
        lines = harvest.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record: Any = json.loads(line)
            if _is_record(record):
                yield record


def _is_record(found: Any) -> bool:
    is_ours = isinstance(found, dict) and found.keys() == _TYPES.keys()
    return is_ours and all(isinstance(found[name], _TYPES[name]) for name in _TYPES)


def _why_ended(code: int, in_time: bool, limits: Limits, place: Path) -> str:
    if not in_time:
        return f"stopped after {limits.notebook_s:g} s, the limit of a notebook"
    # 0: all passed; 1: some failed; 5: there was nothing to run.
    if code in (0, 1, 5):
        return ""
    try:
        words = (place / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
    except OSError:
        words = "(they are gone)"
    return f"pytest ended with {code}. Its last words:\n{words}"
