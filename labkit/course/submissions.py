"""Lists what came back from learners, and tells of which lesson each notebook is.

A folder as a learning platform exports it: files, or a folder of files for each
learner. Everything in it is listed, also what is no notebook; no link is followed,
since it may lead to anything.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.claims import Edition, defined
from labkit.course.notebook import read_notebook
from labkit.course.places import Course, lesson_of, numbered

_BY_ID = re.compile(r"lab(\d\d)-")
_BY_NAME = re.compile(r"(\d\d)[_-]")
_LEFT_BY_PROGRAMS = ("__MACOSX", "Thumbs.db", "desktop.ini")


@dataclass(frozen=True)
class Release:
    """A lesson as it was handed out, by the name of its file."""

    slug: str
    notebook: Mapping[str, Any]
    edition: Edition


def releases(course: Course) -> dict[str, Release]:
    """What was handed out, by the lesson's two digits."""
    found: dict[str, Release] = {}
    for path in numbered(course.lessons, ".ipynb"):
        notebook = read_notebook(path)
        found[lesson_of(path)] = Release(path.stem, notebook, Edition.of(notebook))
    return found


@dataclass(frozen=True)
class Submission:
    """One entry of the folder; where it is not to be read, `why`."""

    path: Path
    name: str
    why: str = ""


def submissions(folder: Path) -> list[Submission]:
    """Everything in a folder, and in the folders in it, in the order of names.

    Raises:
        OSError: The folder itself cannot be listed.
    """
    return list(_listed(folder, folder))


def _listed(folder: Path, top: Path) -> Iterator[Submission]:
    for path in sorted(folder.iterdir()):
        name = _printable(str(path.relative_to(top)))
        if path.name.startswith(".") or path.name in _LEFT_BY_PROGRAMS:
            yield Submission(path, name, "left there by a program; not looked at")
        elif path.is_symlink():
            yield Submission(path, name, "a link, which is not followed")
        elif not path.is_dir():
            yield Submission(path, name)
        elif path.suffix == ".ipynb":
            yield Submission(path, name, "a folder with the name of a notebook")
        elif folder != top:
            yield Submission(path, name, "a folder within a learner's folder")
        else:
            yield from _listed_below(path, top, name)


def _listed_below(path: Path, top: Path, name: str) -> Iterator[Submission]:
    try:
        found = list(_listed(path, top))
    except OSError as error:
        found = [Submission(path, name, f"a folder: {error.strerror}")]
    yield from found or [Submission(path, name, "an empty folder")]


def _printable(name: str) -> str:
    """A file's name may hold bytes that are no text, and ends of lines."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def lesson_of_notebook(
    notebook: Mapping[str, Any], path: Path, handed_out: Mapping[str, Release]
) -> str | None:
    """What the notebook itself says, else most of its cells, else the file's name."""
    told = [_told_by(notebook["metadata"])]
    cells = Counter(filter(None, map(_told_by_cell, notebook["cells"])))
    told += [lesson for lesson, _ in cells.most_common()]
    told += _told_by_name(path, handed_out)
    return next((lesson for lesson in told if lesson in handed_out), None)


def lesson_by_functions(
    notebook: Mapping[str, Any], handed_out: Mapping[str, Release]
) -> str | None:
    """The lesson most of whose holes' functions the notebook defines, if only one."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {name for cell in code for name in defined(cell["source"])}
    found: Counter[str] = Counter()
    for lesson, release in handed_out.items():
        wanted = {name for hole in release.edition.holes.values() for name in hole}
        found[lesson] = len(names & wanted)
    (best, most), *others = [*found.most_common(2), ("", 0)]
    return best if most > others[0][1] else None


def _told_by(metadata: Mapping[str, Any]) -> str | None:
    labkit: Any = metadata.get("labkit")
    lesson: Any = labkit.get("lesson") if isinstance(labkit, dict) else None  # pyright: ignore
    return lesson if isinstance(lesson, str) else None


def _told_by_cell(cell: Mapping[str, Any]) -> str | None:
    nbgrader: Any = cell["metadata"].get("nbgrader")
    grade_id: Any = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None  # pyright: ignore
    ids = [_BY_ID.match(str(name)) for name in (grade_id, cell.get("id"))]
    found = [match[1] for match in ids if match is not None]
    return _told_by(cell["metadata"]) or next(iter(found), None)


def _told_by_name(path: Path, handed_out: Mapping[str, Release]) -> list[str]:
    """The lesson's own name, whatever a platform put around it, else its number."""
    name = re.sub(r"[^a-z0-9]+", "_", path.stem.lower())
    found = [n for n, release in handed_out.items() if release.slug in name]
    match = _BY_NAME.match(path.name)
    return [*found, *([match[1]] if match else [])]
