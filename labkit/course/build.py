"""Builds the notebooks of a lesson from its source, byte for byte the same each time.

`lessons/NN_slug.ipynb` has holes where the answers were; `solutions/NN_slug.ipynb` has
the answers. Neither has outputs. Cells carry nbgrader's metadata (schema version 3), so
that a school that grades with nbgrader can take the lessons as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.places import Course
from labkit.course.source import Lesson, SourceCell, read_lesson, strip_solution
from labkit.errors import UsageError


@dataclass(frozen=True)
class Built:
    """One notebook as it should be on disk; `fresh` where it already is."""

    path: Path
    content: bytes

    @property
    def fresh(self) -> bool:
        """The file on disk holds exactly these bytes."""
        return self.path.is_file() and self.path.read_bytes() == self.content

    def write(self) -> None:
        """Put the bytes on disk in one step, so that a reader never sees half."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_bytes(self.content)
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)


def build(course: Course) -> list[Built]:
    """Build every notebook of the course in memory; write none.

    Raises:
        UsageError: There is no source, a source is malformed, or two lessons share a
            number.
    """
    sources = course.sources()
    if not sources:
        raise UsageError(
            f"{course.solutions} must hold sources named NN_slug.py; 0 were found. "
            "Try again from a complete checkout."
        )
    lessons = [read_lesson(path) for path in sources]
    _check_numbers(lessons)
    return [built for lesson in lessons for built in build_lesson(course, lesson)]


def build_lesson(course: Course, lesson: Lesson) -> Iterator[Built]:
    """Build the two notebooks of a lesson in memory."""
    name = f"{lesson.slug}.ipynb"
    yield Built(course.lessons / name, notebook_bytes(lesson, holes=True))
    yield Built(course.solutions / name, notebook_bytes(lesson, holes=False))


def orphans(course: Course, built: list[Built]) -> list[Path]:
    """Notebooks on disk, beside the built ones, that no source makes any more."""
    wanted = {item.path for item in built}
    on_disk = [*course.lessons.glob("*.ipynb"), *course.solutions.glob("*.ipynb")]
    return sorted(path for path in on_disk if path not in wanted)


def notebook_bytes(lesson: Lesson, *, holes: bool) -> bytes:
    """The notebook as JSON: keys sorted, no outputs, a newline at the end."""
    notebook = {
        "cells": [_cell(lesson, cell, holes=holes) for cell in lesson.cells],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
                "name": "python3",
            },
            "labkit": {"lesson": lesson.number, "title": lesson.title},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


def cell_id(lesson: str, cell: SourceCell) -> str:
    """The cell's id, from what the cell is for and never from what it says."""
    exercise = cell.exercise.replace(".", "-") if cell.exercise else "x"
    return f"lab{lesson}-{exercise}-{cell.role}-{cell.ordinal}"


def _cell(lesson: Lesson, cell: SourceCell, *, holes: bool) -> dict[str, Any]:
    text = strip_solution(cell.text) if holes else cell.text
    built: dict[str, Any] = {
        "cell_type": cell.cell_type,
        "id": cell_id(lesson.number, cell),
        "metadata": _cell_metadata(lesson, cell),
        "source": text.splitlines(keepends=True),
    }
    if cell.cell_type == "code":
        built |= {"execution_count": None, "outputs": []}
    return built


def _cell_metadata(lesson: Lesson, cell: SourceCell) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "labkit": {
            "lesson": lesson.number,
            "exercise": cell.exercise,
            "role": cell.role,
            "ordinal": cell.ordinal,
        }
    }
    if cell.tags:
        metadata["tags"] = list(cell.tags)
    if cell.role in ("statement", "hole", "check"):
        metadata["nbgrader"] = _nbgrader(cell_id(lesson.number, cell), cell)
        metadata["deletable"] = False
    return metadata


def _nbgrader(grade_id: str, cell: SourceCell) -> dict[str, Any]:
    """Describe the cell as nbgrader does, schema version 3."""
    described: dict[str, Any] = {
        "grade": cell.role == "check",
        "grade_id": grade_id,
        "locked": cell.role != "hole",
        "schema_version": 3,
        "solution": cell.role == "hole",
        "task": False,
    }
    if cell.points is not None:
        described["points"] = cell.points
    return described


def _check_numbers(lessons: list[Lesson]) -> None:
    taken: dict[str, str] = {}
    for lesson in lessons:
        if lesson.number in taken:
            raise UsageError(
                f"A lesson's number must be its own; {taken[lesson.number]}.py and "
                f"{lesson.slug}.py both have {lesson.number}. Try renaming one."
            )
        taken[lesson.number] = lesson.slug
