"""Grades a folder of notebooks: a row for every file, whatever it is.

Each notebook is rebuilt from the edition with only the learner's answers and own cells,
and run from top to bottom in a process and a kernel of its own, with limits. `mine()`
gives the reference there, so that an early mistake costs once.

[Note: trust] The verdicts are reached inside the learner's own process. Whoever wants
to can forge them there, and a report says so. Judging by data outside comes later.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from labkit.checks.progress import GRADING
from labkit.course.answers import rebuild
from labkit.course.check import NotebookReport, check_notebook
from labkit.course.notebook import read_notebook
from labkit.course.places import Course, lesson_of, numbered
from labkit.errors import UsageError

Status: TypeAlias = Literal["graded", "not run", "unreadable", "no lesson", "too long"]
CELL_LIMIT_S, NOTEBOOK_LIMIT_S = 120.0, 900.0
MAX_FILE_BYTES = 64 << 20
FORGEABLE = (
    "These verdicts were reached inside each learner's own process, where they can be "
    "forged. Look at an answer yourself before much depends on it."
)


@dataclass(frozen=True)
class Row:
    """What became of one file.

    Attributes:
        file: Its path below the graded folder.
        status: Whether it was run; points are 0 where it was not.
        lesson: Two digits; "" where it could not be told.
        points: By exercise.
        out_of: By exercise.
        note: What there is to say.
    """

    file: str
    status: Status
    lesson: str = ""
    points: Mapping[str, int] | None = None
    out_of: Mapping[str, int] | None = None
    note: str = ""

    @property
    def total(self) -> int:
        """Points of all exercises."""
        return sum((self.points or {}).values())


class _TooLong(Exception):
    """A notebook ran longer than it may."""


@dataclass(frozen=True)
class Limits:
    """How long a cell and a whole notebook may run."""

    cell_s: float = CELL_LIMIT_S
    notebook_s: float = NOTEBOOK_LIMIT_S


def grade(
    course: Course, folder: Path, *, lesson: str | None = None, limits: Limits
) -> Iterator[Row]:
    """Grade every file of a folder and of the folders in it, one after another.

    Args:
        course: Has the editions.
        folder: What came back from learners.
        lesson: Which lesson a file is of that does not say so itself.
        limits: How long each may run.

    Raises:
        UsageError: There is no such folder, or no such lesson.
    """
    editions = {lesson_of(path): path for path in numbered(course.lessons, ".ipynb")}
    if lesson is not None and lesson not in editions:
        raise UsageError(
            f"a lesson must be one of {sorted(editions)}; {lesson!r} was asked for. "
            "Try its two digits: --lesson 01"
        )
    if not folder.is_dir():
        raise UsageError(
            f"what is graded is a folder of notebooks; {folder} is none. Put the files "
            "into one, whatever their names"
        )
    for path in files_of(folder):
        name = str(path.relative_to(folder))
        yield _grade_one(path, name, editions, lesson, limits)


def files_of(folder: Path) -> list[Path]:
    """Everything in a folder, and in the folders in it, but for hidden files."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink() and path.suffix != ".ipynb":
            found += [p for p in sorted(path.iterdir()) if not p.name.startswith(".")]
        else:
            found.append(path)
    return found


def _grade_one(
    path: Path,
    name: str,
    editions: Mapping[str, Path],
    default: str | None,
    limits: Limits,
) -> Row:
    try:
        learners = _read(path)
    except UsageError as error:
        return Row(name, "unreadable", default or "", note=str(error))
    lesson = _lesson_of(learners, path, editions) or default
    if lesson is None:
        note = "nothing in it says of which lesson it is; try --lesson"
        return Row(name, "no lesson", note=note)
    rebuilt = rebuild(read_notebook(editions[lesson]), learners)
    own = rebuilt.num_added
    note = f"{own} cells of the learner's own" if own else ""
    try:
        report = _run(rebuilt.notebook, editions[lesson].name, limits)
    except _TooLong:
        note = f"stopped after {limits.notebook_s:g} s, the limit of a notebook"
        return Row(name, "too long", lesson, note=note)
    except (UsageError, OSError) as error:
        return Row(name, "not run", lesson, note=str(error))
    return Row(
        name, "graded", lesson,
        {result.exercise: result.points for result in report.exercises},
        {result.exercise: result.out_of for result in report.exercises}, note,
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UsageError(f"a file must be readable; got: {error.strerror}") from error
    if size > MAX_FILE_BYTES:
        raise UsageError(
            f"a notebook has at most {MAX_FILE_BYTES >> 20} MiB; this file has "
            f"{size >> 20}. Ask for it without outputs"
        )
    try:
        return read_notebook(path)
    except RecursionError:
        raise UsageError("a notebook must not be nested so deeply") from None


def _lesson_of(
    learners: Mapping[str, Any], path: Path, editions: Mapping[str, Path]
) -> str | None:
    """What the notebook says, else most of its cells, else its name."""
    told = [_said(learners.get("metadata"))]
    for cell in learners["cells"]:
        told.append(_said(cell["metadata"]))
        match = re.match(r"lab(\d\d)-", str(cell.get("id", "")))
        told.append(match[1] if match else None)
    found = re.match(r"\D*(\d\d)_", path.name)
    told.append(found[1] if found else None)
    return next((lesson for lesson in told if lesson in editions), None)


def _said(metadata: Any) -> str | None:
    labkit: Any = metadata.get("labkit") if isinstance(metadata, dict) else None  # pyright: ignore
    lesson: Any = labkit.get("lesson") if isinstance(labkit, dict) else None  # pyright: ignore
    return lesson if isinstance(lesson, str) else None


def _run(notebook: dict[str, Any], name: str, limits: Limits) -> NotebookReport:
    """Run a rebuilt notebook in an empty folder of its own."""
    deadline_s = time.monotonic() + limits.notebook_s

    def watch(done: int, total: int) -> None:
        if time.monotonic() > deadline_s:
            raise _TooLong

    with tempfile.TemporaryDirectory(prefix="labkit-grade-") as folder, _grading():
        path = Path(folder) / name
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return check_notebook(path, cell_limit_s=limits.cell_s, progress=watch)


@contextmanager
def _grading() -> Generator[None]:
    """Processes that are started within know that they grade."""
    before = os.environ.get(GRADING)
    os.environ[GRADING] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[GRADING]
        else:
            os.environ[GRADING] = before


def as_csv(rows: Sequence[Row]) -> str:
    """A line a file: file, lesson, status, points, one column an exercise, note."""
    exercises = sorted({name for row in rows for name in row.points or {}})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["file", "lesson", "status", "points", *exercises, "note"])
    for row in rows:
        by_exercise = [(row.points or {}).get(name, "") for name in exercises]
        cells = [row.file, row.lesson, row.status, row.total, *by_exercise, row.note]
        table.writerow([_harmless(cell) for cell in cells])
    return text.getvalue()


def _harmless(cell: object) -> object:
    """A spreadsheet takes a text that begins so for a formula."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell


def as_json(rows: Sequence[Row]) -> str:
    """The same, with what each exercise is worth, and what the verdicts rest on."""
    told = [
        {
            "file": row.file, "lesson": row.lesson, "status": row.status,
            "points": dict(row.points or {}), "out_of": dict(row.out_of or {}),
            "total": row.total, "note": row.note,
        }
        for row in rows
    ]  # fmt: skip
    return json.dumps({"note": FORGEABLE, "rows": told}, indent=1) + "\n"
