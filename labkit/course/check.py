"""Runs a learner's notebook from top to bottom and says which exercises hold.

nbval runs the cells, in a process and a kernel of their own; `harvest` writes down what
each of them did. The notebook itself is only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from labkit.checks.exercise import UNANSWERED
from labkit.course.notebook import read_notebook
from labkit.course.trial import CELL_LIMIT_S, Limits, Trial, run
from labkit.errors import UsageError

_LEFT_OUT = "Skipped"
Status: TypeAlias = Literal["passed", "failed", "not answered", "not run"]


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
    cells = _upto(read_notebook(path)["cells"], path, upto)
    limits = Limits(cell_s=cell_limit_s)
    trial = run(_runnable(cells), path.resolve().parent, limits, progress=progress)
    if trial.ended:
        raise UsageError(
            f"{path.name} must run under pytest to be checked; {trial.ended}"
        )
    return judge_cells(path, cells, trial)


def grade_notebook(
    notebook: Mapping[str, Any],
    folder: Path,
    limits: Limits,
    *,
    environment: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> tuple[NotebookReport, str]:
    """Run a rebuilt notebook in `folder`; the report, and what ended it early if any.

    See `labkit.course.trial.run` for the arguments.
    """
    cells = notebook["cells"]
    trial = run(
        _runnable(cells), folder, limits, environment=environment, progress=progress
    )
    return judge_cells(folder, cells, trial), trial.ended


def judge_cells(
    path: Path, cells: Sequence[Mapping[str, Any]], trial: Trial
) -> NotebookReport:
    """Judge the exercises of a notebook by what came of its cells."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    results = [
        CellResult(number, *_purpose(cell), **_but_ran(record))
        for number, cell in enumerate(code)
        if (record := trial.records.get(number)) is not None and record["ran"]
    ]
    return NotebookReport(
        path,
        tuple(_judge(cell, results) for cell in code if _purpose(cell)[1] == "check"),
        tuple(r for r in results if not r.passed and not _excused(r, results)),
    )


def _but_ran(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "ran"}


def _runnable(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells without tags on checks, with which nbval lets a cell always pass."""
    return [
        {**cell, "metadata": {}} if _purpose(cell)[1] == "check" else dict(cell)
        for cell in cells
    ]


def _upto(
    cells: Sequence[dict[str, Any]], path: Path, exercise: str | None
) -> Sequence[dict[str, Any]]:
    return cells if exercise is None else cells[: _end_of(cells, path, exercise)]


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
    if UNANSWERED in (found[0].message or ""):
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
    """A check is told as an exercise; what needs a missing answer may stop.

    A cell that nbval leaves out by its tag has not stopped.
    """
    if failed.role == "check" or UNANSWERED in (failed.message or ""):
        return True
    if failed.error == _LEFT_OUT:
        return True
    checks = [r for r in results if r.role == "check" and not r.passed]
    return failed.role == "look" and failed.exercise in {r.exercise for r in checks}
