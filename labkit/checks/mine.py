"""Your code becomes the library: a passed answer is kept, and used in later lessons.

`mine("1.3")` is the learner's own ring all-reduce once it has passed, else the
reference; a line says which. While a submission is graded it is always the reference,
so that one early mistake costs once.
"""

from __future__ import annotations

import pickle
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.checks import progress
from labkit.checks.exercise import find
from labkit.errors import UsageError


def mine(exercise_id: str) -> Callable[..., Any]:
    """The learner's passed answer to an exercise, or the reference.

    Raises:
        UsageError: There is no such exercise, or no lesson builds on it.
    """
    exercise = find(exercise_id)
    if exercise.reference is None:
        raise UsageError(
            f"later lessons use answers that have a reference; {exercise_id} has none. "
            "Call your own function by its name"
        )
    kept, why = _kept(exercise_id)
    if kept is None:
        print(f"{exercise_id}: the reference ({why})")
        return exercise.reference
    print(f"{exercise_id}: your own answer, which passed")
    return kept


def keep(exercise_id: str, answer: Callable[..., Any]) -> None:
    """Keep an answer that has passed, with what it uses of its notebook."""
    place = progress.folder()
    if place is None:
        return
    try:
        content = pickle.dumps((_versions(), cloudpickle.dumps(answer)))
        (place / progress.PASSED).mkdir(exist_ok=True)
        progress.replace_file(_path(place, exercise_id), content)
    except Exception as error:
        warnings.warn(
            f"a passed answer must be picklable to be used in later lessons; "
            f"{exercise_id} gave {type(error).__name__}: {error}. The reference takes "
            "its place there",
            stacklevel=3,
        )


def _kept(exercise_id: str) -> tuple[Callable[..., Any] | None, str]:
    """The kept answer, or why there is none."""
    if progress.is_grading():
        return None, "as always while grading"
    place = progress.folder()
    if place is None or not _path(place, exercise_id).is_file():
        return None, "no answer of yours has passed here yet"
    try:
        versions, content = pickle.loads(_path(place, exercise_id).read_bytes())
        if versions != _versions():
            return None, f"yours was kept with {versions}, this is {_versions()}"
        return cloudpickle.loads(content), ""
    except Exception as error:
        return None, f"yours cannot be read: {type(error).__name__}: {error}"


def _path(place: Path, exercise_id: str) -> Path:
    return place / progress.PASSED / f"{exercise_id}.pkl"


def _versions() -> str:
    """Code travels between processes of one Python only."""
    return f"Python {'.'.join(platform.python_version_tuple()[:2])}"
