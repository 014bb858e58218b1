"""Grades a folder of notebooks: a row for every file, whatever it is.

Each notebook is rebuilt from the edition with only the learner's code, and run from
top to bottom in a process and a kernel of its own, with limits. `mine()` gives the
reference there, so that an early mistake costs once.

[Note: trust] The verdicts are reached inside the learner's own process. Whoever wants
to can forge them there, and a report says so. Judging by data outside comes later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from labkit.checks.progress import GRADING
from labkit.course.answers import Rebuilt, submission
from labkit.course.check import grade_notebook
from labkit.course.gradebook import Row
from labkit.course.notebook import read_notebook
from labkit.course.places import Course
from labkit.course.submissions import (
    Release,
    Submission,
    lesson_by_functions,
    lesson_of_notebook,
    releases,
    submissions,
)
from labkit.course.trial import Limits
from labkit.errors import UsageError

LIMITS = Limits(cell_s=120.0, notebook_s=900.0, file_bytes=1 << 30)
MAX_NOTEBOOK_BYTES = 64 << 20


def grade(
    course: Course,
    folder: Path,
    *,
    lesson: str | None = None,
    limits: Limits = LIMITS,
    but: Collection[Path] = (),
    progress: Callable[[str], None] = lambda told: None,
) -> Iterator[Row]:
    """Grade everything in a folder and in the folders in it, one after another.

    Args:
        course: Has the editions.
        folder: What came back from learners.
        lesson: Which lesson a file is of that does not say so itself.
        limits: How long each may run.
        but: Files that are none of it: where the rows are written to.
        progress: Called with a line that says how far it is.

    Raises:
        UsageError: There is no such folder, or no such lesson.
    """
    handed_out = releases(course)
    if lesson is not None and lesson not in handed_out:
        raise UsageError(
            f"a lesson must be one of {sorted(handed_out)}; {lesson!r} was asked for. "
            "Try its two digits: --lesson 01"
        )
    apart = {path.resolve() for path in but}
    found = [each for each in _found(folder) if each.path not in apart]
    for number, each in enumerate(found):
        told = partial(_tell, progress, f"{number + 1} of {len(found)}: {each.name}")
        yield _grade_one(each, handed_out, lesson, limits, told)


def _tell(progress: Callable[[str], None], what: str, done: int, total: int) -> None:
    progress(f"{what}, cell {done} of {total}")


def _found(folder: Path) -> list[Submission]:
    try:
        # Resolved, since what lies in it is never reached through a link.
        return submissions(folder.resolve())
    except OSError as error:
        raise UsageError(
            f"what is graded must be a folder of notebooks; {folder} is none "
            f"({error.strerror}). Try putting the files into one, whatever their names."
        ) from error


def _grade_one(
    each: Submission,
    handed_out: Mapping[str, Release],
    default: str | None,
    limits: Limits,
    progress: Callable[[int, int], None],
) -> Row:
    if each.why:
        return Row(each.name, "not looked at", note=each.why)
    progress(0, 0)
    try:
        learners = _read(each.path)
    except UsageError as error:
        return Row(each.name, "unreadable", default or "", note=str(error))
    lesson = lesson_of_notebook(learners, each.path, handed_out)
    lesson = lesson or default or lesson_by_functions(learners, handed_out)
    if lesson is None:
        note = "nothing in it says of which lesson it is; try --lesson"
        return Row(each.name, "no lesson", note=note)
    row = Row(each.name, "not run", lesson)
    try:
        return _judged(row, handed_out[lesson], learners, limits, progress)
    except OSError as error:
        return replace(row, note=f"the grader itself failed: {error}")


def _read(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UsageError(f"a file must be readable; got: {error.strerror}") from error
    if size > MAX_NOTEBOOK_BYTES:
        raise UsageError(
            f"a notebook must have at most {MAX_NOTEBOOK_BYTES} bytes; this file has "
            f"{size}. Try asking for it without outputs."
        )
    return read_notebook(path)


def _judged(
    row: Row,
    release: Release,
    learners: Mapping[str, Any],
    limits: Limits,
    progress: Callable[[int, int], None],
) -> Row:
    """Run a submission in an empty folder of its own, without the grader's settings."""
    rebuilt = submission(release.notebook, learners)
    with tempfile.TemporaryDirectory(
        prefix="labkit-grade-", ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        (place / "here").mkdir()
        # A notebook could leave something in IPython's folder for those after it.
        report, ended = grade_notebook(
            rebuilt.notebook, place / "here", limits, progress=progress,
            environment={GRADING: "1", "IPYTHONDIR": str(place / "ipython")},
        )  # fmt: skip
    note = "; ".join(filter(None, [ended, _note(rebuilt)]))
    dead = any(result.status == "not run" for result in report.exercises)
    status = "cut short" if ended or dead else "graded"
    return replace(row, status=status, exercises=report.exercises, note=note)


def _note(rebuilt: Rebuilt) -> str:
    own = rebuilt.num_added
    return f"{own} cells of the learner's own" if own else ""
