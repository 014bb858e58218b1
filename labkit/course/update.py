"""Puts a new edition under a learner's answers, and loses nothing of theirs.

Before: `work/` holds notebooks of whatever edition. After: each holds the newest, with
the learner's answers, guesses and added cells; the notebook as it was lies beside it.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from labkit.course.answers import Rebuilt, rebuild
from labkit.course.notebook import read_notebook
from labkit.course.places import Course, numbered
from labkit.errors import UsageError

State: TypeAlias = Literal["new edition", "up to date", "left alone"]


@dataclass(frozen=True)
class Updated:
    """What became of one notebook.

    Attributes:
        path: The learner's notebook.
        state: Whether it was rewritten.
        saved: The notebook as it was; None where it was not rewritten.
        what: What was kept, or why it was left alone.
    """

    path: Path
    state: State
    saved: Path | None = None
    what: str = ""

    def __str__(self) -> str:
        """A line: what became of the notebook, and where it is as it was."""
        saved = f"; as it was: {self.saved.name}" if self.saved else ""
        what = f": {self.what}" if self.what else ""
        return f"{self.state}: {self.path.name}{what}{saved}"


def update(course: Course) -> Iterator[Updated]:
    """Bring each notebook of the learner's up to the edition in `lessons/`.

    Raises:
        UsageError: The folder cannot be written.
    """
    for lesson in numbered(course.lessons, ".ipynb"):
        path = course.work / lesson.name
        if path.exists():
            yield _update_one(lesson, path)


def _update_one(lesson: Path, path: Path) -> Updated:
    edition = read_notebook(lesson)
    try:
        learners = read_notebook(path)
    except UsageError as error:
        return Updated(path, "left alone", what=str(error))
    rebuilt = rebuild(edition, learners)
    if _said(rebuilt.notebook) == _said(learners):
        return Updated(path, "up to date")
    try:
        saved = _save(path)
        _replace(path, {**rebuilt.notebook, "metadata": _metadata(edition, learners)})
    except OSError as error:
        raise UsageError(
            f"{path.parent} must be writable, with room for its notebooks; writing "
            f"{path.name} gave: {error.strerror}. Nothing of yours was changed. Try "
            "freeing some space, then run `labkit update` again."
        ) from error
    return Updated(path, "new edition", saved, _counted(rebuilt))


def _counted(rebuilt: Rebuilt) -> str:
    """What is the learner's in it, and how much of the lesson is not as it was."""
    return (
        f"{len(rebuilt.answered)} answers and {rebuilt.num_added} added cells kept, "
        f"{rebuilt.num_replaced} cells of the lesson say something new"
    )


def _said(notebook: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What its cells say and are for, whatever they showed."""
    kept = ("labkit", "nbgrader", "tags", "deletable")
    return [
        (cell["cell_type"], cell["source"], [cell["metadata"].get(k) for k in kept])
        for cell in notebook["cells"]
    ]


def _metadata(edition: Mapping[str, Any], learners: Mapping[str, Any]) -> Any:
    """The edition's, beside what the learner's editor keeps there: kernel, widgets."""
    return {**edition["metadata"], **learners["metadata"]} | {
        "labkit": edition["metadata"]["labkit"]
    }


def _save(path: Path) -> Path:
    """Copy a notebook beside itself, under a name that is not taken."""
    content = path.read_bytes()
    for number in itertools.count(1):
        saved = path.with_name(f"{path.stem}.before-{number}.ipynb")
        try:
            # "x" refuses an older save, also one that appeared a moment ago.
            file = saved.open("xb")
        except FileExistsError:
            continue
        try:
            with file:
                _write(file, content)
        except BaseException:
            saved.unlink(missing_ok=True)
            raise
        return saved
    raise AssertionError("the numbers do not end")


def _replace(path: Path, notebook: Mapping[str, Any]) -> None:
    """At once: whoever opens it finds the old notebook or the new one, never half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    text = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False)
    try:
        with beside.open("wb") as file:
            _write(file, (text + "\n").encode())
        beside.chmod(stat.S_IMODE(path.stat().st_mode))
        beside.replace(path.resolve())
    finally:
        beside.unlink(missing_ok=True)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    # What is not on the disk yet is lost when the machine goes down.
    os.fsync(file.fileno())
