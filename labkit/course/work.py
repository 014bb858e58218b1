"""Hands the lessons out: copies into the learner's folder, never over an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.course.places import Course, numbered
from labkit.errors import UsageError


@dataclass(frozen=True)
class HandedOut:
    """What one hand-out did: the copies made, and those that were there before."""

    new: tuple[Path, ...]
    kept: tuple[Path, ...]


def hand_out(course: Course) -> HandedOut:
    """Copy each lesson that is not in the learner's folder yet.

    Raises:
        UsageError: There is no lesson, or the folder cannot be written.
    """
    lessons = numbered(course.lessons, ".ipynb")
    if not lessons:
        raise UsageError(
            f"{course.lessons} must hold the built lessons; 0 were found. "
            "Try `labkit build`."
        )
    new: list[Path] = []
    kept: list[Path] = []
    for lesson in lessons:
        target = course.work / lesson.name
        (new if _copy_once(lesson, target) else kept).append(target)
    return HandedOut(tuple(new), tuple(kept))


def _copy_once(source: Path, target: Path) -> bool:
    """Copy unless `target` exists; say whether a copy was made."""
    content = source.read_bytes()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # "x" refuses an existing file, also one that appeared a moment ago.
        file = target.open("xb")
    except FileExistsError:
        if target.is_file():
            return False
        raise _cannot_write(target, "something else has its name") from None
    except OSError as error:
        raise _cannot_write(target, error.strerror) from error
    try:
        with file:
            file.write(content)
    except OSError as error:
        # Half a notebook would be kept for ever as if it were the learner's.
        target.unlink(missing_ok=True)
        raise _cannot_write(target, error.strerror) from error
    return True


def _cannot_write(target: Path, reason: str | None) -> UsageError:
    return UsageError(
        f"The folder {target.parent} must be writable, with room for the lessons; "
        f"writing {target.name} gave: {reason}. Try freeing space, or a checkout in a "
        "folder of your own."
    )
