"""A new edition under a learner's answers: nothing of theirs is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from labkit.course import update as updating
from labkit.course.build import build
from labkit.course.places import Course
from labkit.course.update import update
from labkit.course.work import hand_out
from labkit.errors import UsageError
from tests.course.conftest import SOURCE

NEW = SOURCE.replace("You add numbers.", "You add and multiply.")


@pytest.fixture
def at_work(course: Course) -> Course:
    """A learner has the first edition, and there is a second one."""
    for item in build(course):
        item.write()
    hand_out(course)
    (course.solutions / "00_first.py").write_text(NEW)
    for item in build(course):
        item.write()
    return course


def notebook(course: Course) -> Path:
    return course.work / "00_first.ipynb"


def written(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def answer(course: Course, number: int, text: str) -> None:
    found: Any = json.loads(notebook(course).read_text())
    found["cells"][number]["source"] = text
    notebook(course).write_text(json.dumps(found))


def test_the_answer_stays_and_the_text_is_new(at_work: Course) -> None:
    hole = next(n for n, s in enumerate(written(notebook(at_work))) if "def dou" in s)
    answer(at_work, hole, "def double(x):\n    return 2 * x")
    before = notebook(at_work).read_bytes()
    [item] = update(at_work)
    assert item.state == "new edition"
    assert item.saved is not None
    assert item.saved.read_bytes() == before
    now = written(notebook(at_work))
    assert now[hole] == "def double(x):\n    return 2 * x"
    assert "You add and multiply." in now[0]
    assert [each.state for each in update(at_work)] == ["up to date"]
    assert len(list(at_work.work.iterdir())) == 2


def test_no_save_is_ever_written_over(at_work: Course) -> None:
    earlier = at_work.work / "00_first.before-1.ipynb"
    earlier.write_text("an older one")
    [item] = update(at_work)
    assert item.saved == at_work.work / "00_first.before-2.ipynb"
    assert earlier.read_text() == "an older one"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}'])
def test_what_cannot_be_read_is_left_alone_and_named(
    at_work: Course, content: str
) -> None:
    notebook(at_work).write_text(content)
    [item] = update(at_work)
    assert item.state == "left alone"
    assert "must be a Jupyter notebook" in item.why
    assert notebook(at_work).read_text() == content
    assert len(list(at_work.work.iterdir())) == 1


def test_a_full_disk_changes_nothing(
    at_work: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, notebook: Any) -> None:
        raise OSError(28, "No space left on device")

    before = notebook(at_work).read_bytes()
    monkeypatch.setattr(updating, "_replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        list(update(at_work))
    assert notebook(at_work).read_bytes() == before


@pytest.mark.parametrize("seed", range(20))
def test_every_line_that_was_written_is_there_afterwards(
    at_work: Course, seed: int
) -> None:
    source = random.Random(seed)
    found: Any = json.loads(notebook(at_work).read_text())
    for number in range(source.randint(1, 8)):
        at = source.randrange(len(found["cells"]))
        match source.choice(("edit", "add", "delete", "double", "strip", "swap")):
            case "edit":
                found["cells"][at]["source"] = f"line_{number} = {seed}"
            case "add":
                cell = {"cell_type": "code", "metadata": {}, "outputs": [],
                        "execution_count": None, "id": f"c{number}",
                        "source": f"added_{number} = {seed}"}  # fmt: skip
                found["cells"].insert(at, cell)
            case "delete" if len(found["cells"]) > 1:
                del found["cells"][at]
            case "double":
                found["cells"].insert(at, dict(found["cells"][at]))
            case "strip":
                found["cells"][at]["metadata"] = {}
            case _:
                source.shuffle(found["cells"])
    notebook(at_work).write_text(json.dumps(found))
    lines = {line for text in written(notebook(at_work)) for line in text.splitlines()}
    [item] = update(at_work)
    now = {line for text in written(notebook(at_work)) for line in text.splitlines()}
    if item.saved is not None:
        now |= {line for text in written(item.saved) for line in text.splitlines()}
    assert lines <= now
