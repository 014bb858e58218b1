"""Runs a learner's notebook from top to bottom and says which exercises hold.

nbval runs the cells, in a process and a kernel of their own; `harvest` writes down what
each of them did. The notebook itself is only read.
"""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import nbformat

from labkit.course.notebook import read_notebook
from labkit.course.source import HOLE_LINE
from labkit.errors import UsageError

Status: TypeAlias = Literal["passed", "failed", "not answered", "not run"]
CELL_LIMIT_S = 120.0
_NOT_ANSWERED = HOLE_LINE.split('"')[1]


@dataclass(frozen=True)
class CellResult:
    """What one code cell did; `exercise` and `role` are None for a learner's own."""

    number: int
    exercise: str | None
    role: str | None
    passed: bool
    error: str | None
    message: str | None
    seconds: float


@dataclass(frozen=True)
class ExerciseResult:
    """How one exercise stands, by its check cell: `points` earned of `out_of`."""

    exercise: str
    points: int
    out_of: int
    status: Status
    message: str


@dataclass(frozen=True)
class NotebookReport:
    """Every exercise, and each other cell that stopped though it should not."""

    path: Path
    exercises: tuple[ExerciseResult, ...]
    stopped: tuple[CellResult, ...]

    @property
    def ok(self) -> bool:
        """All exercises hold and no other cell stopped."""
        held = all(result.status == "passed" for result in self.exercises)
        return held and not self.stopped


def check_notebook(
    path: Path,
    *,
    upto: str | None = None,
    cell_limit_s: float = CELL_LIMIT_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NotebookReport:
    """Run a notebook's code cells in a fresh kernel and judge its exercises.

    Args:
        path: The notebook, which is not changed. The kernel works in its folder.
        upto: Stop after this exercise's check.
        cell_limit_s: A cell that runs longer is interrupted and has failed.
        progress: Called with the number of cells done and to do.

    Raises:
        UsageError: The notebook cannot be read, has no exercise `upto`, or could not
            be run at all.
    """
    if cell_limit_s <= 0:
        raise UsageError(
            f"A cell's limit must be above 0 s; {cell_limit_s} was given. "
            "Try leaving it out."
        )
    notebook = _runnable(read_notebook(path), path, upto)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    records = _run(notebook, path, len(cells), cell_limit_s, progress)
    results = [
        CellResult(number, *_purpose(cell), **record)
        for number, cell in enumerate(cells)
        if (record := records.get(number)) is not None and record.pop("ran")
    ]
    return NotebookReport(
        path,
        tuple(_judge(cell, results) for cell in cells if _purpose(cell)[1] == "check"),
        tuple(r for r in results if not r.passed and not _excused(r, results)),
    )


def _runnable(notebook: dict[str, Any], path: Path, upto: str | None) -> dict[str, Any]:
    """A copy without outputs that nbval takes: fresh ids, no tags on checks."""
    cells = copy.deepcopy(notebook["cells"])
    if upto is not None:
        cells = cells[: _end_of(cells, path, upto)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        if _purpose(cell)[1] == "check":
            # nbval lets a cell with this tag pass whatever it does.
            cell["metadata"].pop("tags", None)
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}


def _end_of(cells: Sequence[Mapping[str, Any]], path: Path, exercise: str) -> int:
    checks = {
        _purpose(cell)[0]: number
        for number, cell in enumerate(cells)
        if _purpose(cell)[1] == "check"
    }
    if exercise not in checks:
        raise UsageError(
            f"{path} must have the exercise it is checked up to; {exercise!r} is not "
            f"among {sorted(filter(None, checks))}. Try one of these."
        )
    return checks[exercise] + 1


def _purpose(cell: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The exercise and role that the builder wrote into a cell."""
    labkit = cell["metadata"].get("labkit")
    if not isinstance(labkit, dict):
        return None, None
    return labkit.get("exercise"), labkit.get("role")  # pyright: ignore


def _run(
    notebook: dict[str, Any],
    path: Path,
    total: int,
    cell_limit_s: float,
    progress: Callable[[int, int], None],
) -> dict[int, dict[str, Any]]:
    """Run the notebook under pytest; return a record for each cell that ended."""
    with tempfile.TemporaryDirectory(prefix="labkit-check-") as name:
        folder = Path(name)
        copied, harvest = folder / path.name, folder / "harvest.jsonl"
        copied.write_text(nbformat.writes(nbformat.from_dict(notebook)))
        (folder / "pytest.ini").write_text("[pytest]\n")
        harvest.touch()
        command = _command(copied, harvest, path.resolve().parent, cell_limit_s)
        with (folder / "log").open("w+") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            _follow(process, harvest, total, progress)
            # 0: all passed; 1: some failed; anything else: it did not run.
            if process.returncode not in (0, 1):
                log.seek(0)
                raise UsageError(
                    f"{path.name} must run under pytest to be checked; pytest ended "
                    f"with {process.returncode}. Its last words:\n{log.read()[-2000:]}"
                )
        records = [json.loads(line) for line in harvest.read_text().splitlines()]
    return {record.pop("cell"): record for record in records}


def _command(
    notebook: Path, harvest: Path, kernel_folder: Path, cell_limit_s: float
) -> list[str]:
    return [
        sys.executable, "-m", "pytest", str(notebook), "-q", "--color=no",
        "-c", str(notebook.parent / "pytest.ini"), "--rootdir", str(notebook.parent),
        "-p", "no:cacheprovider", "-p", "labkit.course.harvest",
        "--harvest", str(harvest), "--kernel-folder", str(kernel_folder),
        "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", str(cell_limit_s),
    ]  # fmt: skip


def _follow(
    process: subprocess.Popen[bytes],
    harvest: Path,
    total: int,
    progress: Callable[[int, int], None],
) -> None:
    """Report progress until the process ends; take it down when interrupted."""
    try:
        while process.poll() is None:
            progress(harvest.read_bytes().count(b"\n"), total)
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
    except BaseException:
        _take_down(process)
        raise


def _take_down(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """End pytest as an interrupt would: it stops its kernel, the kernel its ranks."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _judge(cell: Mapping[str, Any], results: Sequence[CellResult]) -> ExerciseResult:
    """An exercise's standing, from its check cell's result."""
    exercise, _ = _purpose(cell)
    nbgrader = cell["metadata"].get("nbgrader", {})
    found = [r for r in results if r.exercise == exercise and r.role == "check"]
    out_of = int(nbgrader.get("points", 0))
    name = exercise or "?"
    if not found:
        reason = "the cells before it took the kernel down"
        return ExerciseResult(name, 0, out_of, "not run", reason)
    if found[0].passed:
        return ExerciseResult(name, out_of, out_of, "passed", "")
    if _NOT_ANSWERED in (found[0].message or ""):
        reason = "its hole is as it was handed out"
        return ExerciseResult(name, 0, out_of, "not answered", reason)
    points = min(points_told(found[0]), out_of)
    return ExerciseResult(name, points, out_of, "failed", _complaint(found[0]))


def points_told(result: CellResult) -> int:
    """The points that a failed check gave for the properties that hold."""
    head = (result.message or "").partition("\n")[0]
    told = re.search(r"(\d+) of \d+ points$", head)
    return int(told[1]) if result.error == "CheckFailed" and told else 0


def _complaint(result: CellResult, most: int = 6) -> str:
    """The first lines of what a check said, without the headline that counts points."""
    lines = (result.message or "").strip().splitlines() or [""]
    if result.error == "CheckFailed" and len(lines) > 1:
        return "\n".join(lines[1 : most + 1])
    return "\n".join([f"{result.error}: {lines[0]}", *lines[1:most]])


def _excused(failed: CellResult, results: Sequence[CellResult]) -> bool:
    """A check is told as an exercise; what needs a missing answer may stop."""
    if failed.role == "check" or _NOT_ANSWERED in (failed.message or ""):
        return True
    checks = [r for r in results if r.role == "check" and not r.passed]
    return failed.role == "look" and failed.exercise in {r.exercise for r in checks}
