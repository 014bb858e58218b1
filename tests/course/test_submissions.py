"""Everything of a folder is listed, and each notebook's lesson is found."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from labkit.course.build import build
from labkit.course.places import Course
from labkit.course.submissions import (
    Release,
    lesson_by_functions,
    lesson_of_notebook,
    releases,
    submissions,
)


@pytest.fixture
def handed_out(course: Course) -> dict[str, Release]:
    second = (course.solutions / "00_first.py").read_text()
    second = second.replace('"0.', '"1.').replace("# 00 ", "# 01 ")
    second = second.replace("double", "twice").replace("triple", "thrice")
    (course.solutions / "01_second.py").write_text(second)
    for item in build(course):
        item.write()
    return releases(course)


def test_every_entry_is_listed_once(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "ada" / "deeper").mkdir(parents=True)
    (top / "bob").mkdir()
    (top / "x.ipynb").mkdir()
    (top / "__MACOSX").mkdir()
    for name in ("b.txt", "ada/a.ipynb", ".hidden", "x.ipynb/inside", "bob/._a"):
        (top / name).touch()
    (top / "link").symlink_to(top)
    (top / "line\nend").touch()
    (Path(os.fsdecode(os.fsencode(top) + b"/caf\xe9.ipynb"))).touch()
    found = {each.name: each.why for each in submissions(top)}
    assert found == {
        "ada/a.ipynb": "", "b.txt": "", "line\\nend": "", "caf\\xe9.ipynb": "",
        "ada/deeper": "a folder within a learner's folder",
        ".hidden": "left there by a program; not looked at",
        "__MACOSX": "left there by a program; not looked at",
        "bob/._a": "left there by a program; not looked at",
        "link": "a link, which is not followed",
        "x.ipynb": "a folder with the name of a notebook",
    }  # fmt: skip


def test_a_folder_that_cannot_be_listed_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "b.txt").touch()
    plain = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert {each.name: each.why for each in submissions(tmp_path)} == {
        "b.txt": "", "locked": "a folder: Permission denied"
    }  # fmt: skip


def without(notebook: Any, *what: str) -> dict[str, Any]:
    """The notebook without its ids, its metadata, or its cells'."""
    made = copy.deepcopy(dict(notebook))
    if "metadata" in what:
        made["metadata"] = {}
    for cell in made["cells"]:
        for name in {"labkit", "nbgrader"} & set(what):
            cell["metadata"].pop(name, None)
        if "ids" in what:
            cell["id"] = "x"
    return made


@pytest.mark.parametrize(
    "what",
    [(), ("metadata",), ("metadata", "labkit"), ("metadata", "labkit", "nbgrader"),
     ("metadata", "labkit", "ids")],
)  # fmt: skip
def test_the_notebook_itself_tells_its_lesson(
    handed_out: dict[str, Release], what: tuple[str, ...]
) -> None:
    made = without(handed_out["01"].notebook, *what)
    # One cell of another lesson does not matter.
    made["cells"].append(handed_out["00"].notebook["cells"][0])
    assert lesson_of_notebook(made, Path("00_first.ipynb"), handed_out) == "01"


@pytest.mark.parametrize(
    ("name", "lesson"),
    [("01_second.ipynb", "01"), ("doejane_12345_9_01_second-1.ipynb", "01"),
     ("Ada L - 00 First (2).ipynb", "00"), ("01-mine.ipynb", "01"),
     ("2026-01-03 mine.ipynb", None), ("07_other.ipynb", None)],
)  # fmt: skip
def test_else_its_name_does(
    handed_out: dict[str, Release], name: str, lesson: str | None
) -> None:
    bare = {"metadata": {"labkit": {"lesson": ["x"]}}, "cells": []}
    assert lesson_of_notebook(bare, Path(name), handed_out) == lesson


def test_else_the_functions_that_it_defines_do(
    handed_out: dict[str, Release],
) -> None:
    for lesson, release in handed_out.items():
        assert lesson_by_functions(release.notebook, handed_out) == lesson
    both = [c for r in handed_out.values() for c in r.notebook["cells"]]
    for cells in ([], both):
        assert lesson_by_functions({"cells": cells}, handed_out) is None
