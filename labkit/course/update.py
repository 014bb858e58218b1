"""Puts a new edition under a learner's answers, and loses nothing of theirs.

Before: `work/` holds notebooks of whatever edition. After: each holds the newest, with
the learner's answers, guesses and added cells; the notebook as it was lies beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from labkit.course.answers import rebuild
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
        why: Why it was left alone.
    """

    path: Path
    state: State
    saved: Path | None = None
    why: str = ""


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
        return Updated(path, "left alone", why=str(error))
    rebuilt = rebuild(edition, learners).notebook
    if _said(rebuilt) == _said(learners):
        return Updated(path, "up to date")
    try:
        saved = _save(path)
        _replace(path, rebuilt)
    except OSError as error:
        raise UsageError(
            f"{path.parent} must be writable, with room for its notebooks; writing "
            f"{path.name} gave: {error.strerror}. Nothing was changed: free some "
            "space, then run `labkit update` again"
        ) from error
    return Updated(path, "new edition", saved)


def _said(notebook: Any) -> list[tuple[Any, ...]]:
    """What its cells say and are for, whatever they showed."""
    return [
        (cell["cell_type"], cell["source"], cell["metadata"].get("labkit"))
        for cell in notebook["cells"]
    ]


def _save(path: Path) -> Path:
    """Copy a notebook beside itself, under a name that is not taken."""
    number = 1
    while True:
        saved = path.with_name(f"{path.stem}.before-{number}.ipynb")
        try:
            with saved.open("xb") as file:
                file.write(path.read_bytes())
        except FileExistsError:
            number += 1
            continue
        return saved


def _replace(path: Path, notebook: Any) -> None:
    """At once: whoever opens it finds the old notebook or the new one, never half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    text = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False)
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
