"""Where the course keeps its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import UsageError

_NUMBERED = re.compile(r"(?P<lesson>\d\d)_[a-z0-9_]+")


@dataclass(frozen=True)
class Course:
    """The folders of one checkout of the course."""

    root: Path

    @property
    def solutions(self) -> Path:
        """Holds the hand-written sources and the notebooks with answers."""
        return self.root / "solutions"

    @property
    def lessons(self) -> Path:
        """Holds the built notebooks with holes, which nobody edits."""
        return self.root / "lessons"

    @property
    def work(self) -> Path:
        """Holds the learner's own copies."""
        return self.root / "work"

    def sources(self) -> list[Path]:
        """The source of each lesson, in the order of their numbers."""
        return numbered(self.solutions, ".py")

    def work_notebook(self, lesson: str) -> Path:
        """The learner's copy of a lesson: `work_notebook("00")`.

        Raises:
            UsageError: There is no such lesson, or it has not been copied yet.
        """
        known = {lesson_of(path): path for path in numbered(self.lessons, ".ipynb")}
        if lesson not in known:
            raise UsageError(
                f"A lesson must be one of {sorted(known)}; {lesson!r} was asked for. "
                "Try its two digits: `labkit check 00`."
            )
        path = self.work / known[lesson].name
        if not path.exists():
            raise UsageError(
                f"Lesson {lesson} must be in {self.work} to be checked; it is not "
                "there yet. Try `labkit lab`, which copies it, or give --notebook."
            )
        return path


def numbered(folder: Path, suffix: str) -> list[Path]:
    """The files `NN_slug` with this suffix in a folder, in order."""
    found = folder.glob(f"*{suffix}")
    return sorted(path for path in found if _NUMBERED.fullmatch(path.stem))


def lesson_of(path: Path) -> str:
    """The two digits that a lesson's file name starts with.

    Raises:
        UsageError: The name is not of the form `NN_slug`.
    """
    match = _NUMBERED.fullmatch(path.stem)
    if match is None:
        raise UsageError(
            f"A lesson's file must be named NN_slug, in lower case; {path.name!r} is "
            "not. Try a name like 03_memory_and_batches.py."
        )
    return match["lesson"]


def find_course(start: Path | None = None) -> Course:
    """The course that holds `start` (by default here), else the one labkit came in.

    Raises:
        UsageError: Neither is inside a checkout of the course.
    """
    here = (start or Path.cwd()).resolve()
    package_root = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, package_root):
        holds_lessons = any((folder / d).is_dir() for d in ("lessons", "solutions"))
        if holds_lessons and (folder / "pyproject.toml").is_file():
            return Course(folder)
    raise UsageError(
        f"labkit must run inside a checkout of the course; {here} is in none (no "
        "lessons/ beside a pyproject.toml). Try again from the checkout's folder."
    )
