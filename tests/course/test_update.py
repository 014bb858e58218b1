"""A new edition under a learner's answers: nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
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

ROOT = Path(__file__).resolve().parents[2]
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
    assert "must be a Jupyter notebook" in item.what
    assert notebook(at_work).read_text() == content
    assert len(list(at_work.work.iterdir())) == 1


def test_what_was_done_is_one_line(at_work: Course) -> None:
    answer(at_work, 3, "def double(x):\n    return 2 * x")
    [item] = update(at_work)
    assert str(item) == (
        "new edition: 00_first.ipynb: 1 answers and 0 added cells kept, 1 cells of the "
        "lesson say something new; as it was: 00_first.before-1.ipynb"
    )
    assert [str(each) for each in update(at_work)] == ["up to date: 00_first.ipynb"]


def test_points_and_tags_of_the_lesson_are_new_too(at_work: Course) -> None:
    list(update(at_work))
    (at_work.solutions / "00_first.py").write_text(NEW.replace("points=10", "points=9"))
    for item in build(at_work):
        item.write()
    assert [item.state for item in update(at_work)] == ["new edition"]
    check = json.loads(notebook(at_work).read_text())["cells"][4]
    assert check["metadata"]["nbgrader"]["points"] == 9


def test_what_an_editor_keeps_in_a_notebook_stays(at_work: Course) -> None:
    found: Any = json.loads(notebook(at_work).read_text())
    found["metadata"] |= {"widgets": {"a": 1}, "kernelspec": {"name": "mine"}}
    found["metadata"]["labkit"] = {}
    mine = {"cell_type": "code", "id": "m", "metadata": {"collapsed": True},
            "source": "1", "outputs": [], "execution_count": None}  # fmt: skip
    found["cells"].append(mine)
    notebook(at_work).write_text(json.dumps(found))
    notebook(at_work).chmod(0o640)
    list(update(at_work))
    now: Any = json.loads(notebook(at_work).read_text())
    assert now["metadata"]["widgets"] == {"a": 1}
    assert now["metadata"]["kernelspec"] == {"name": "mine"}
    assert now["metadata"]["labkit"]["lesson"] == "00"
    assert now["cells"][-1] == mine
    assert notebook(at_work).stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(at_work: Course, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.ipynb"
    notebook(at_work).rename(elsewhere)
    notebook(at_work).symlink_to(elsewhere)
    [item] = update(at_work)
    assert item.state == "new edition"
    assert notebook(at_work).is_symlink()
    assert "You add and multiply." in written(elsewhere)[0]


def test_half_a_letter_is_no_trouble(at_work: Course) -> None:
    answer(at_work, 3, "double = '\ud800'")
    assert [item.state for item in update(at_work)] == ["new edition"]
    assert written(notebook(at_work))[3] == "double = '?'"


@pytest.mark.slow
def test_a_full_disk_leaves_everything_as_it_was(at_work: Course) -> None:
    before = notebook(at_work).read_bytes()
    longer = f"\n# %% [markdown]\n# {'word ' * 2000}\n"
    (at_work.solutions / "00_first.py").write_text(NEW + longer)
    for item in build(at_work):
        item.write()
    # A limit on file size fails the write midway, as a full disk does.
    code = (
        "import sys; from pathlib import Path\n"
        "from labkit.course.update import update\n"
        "from labkit.course.places import Course\n"
        "list(update(Course(Path(sys.argv[1]))))\n"
    )
    for limit in (100, len(before)):
        done = subprocess.run(
            [sys.executable, "-c", code, str(at_work.root)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=lambda at=limit: resource.setrlimit(
                resource.RLIMIT_FSIZE, (at, at)
            ),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Nothing of yours was changed" in done.stderr
        assert notebook(at_work).read_bytes() == before
    [saved] = [p for p in at_work.work.iterdir() if p != notebook(at_work)]
    assert saved.read_bytes() == before


def test_a_failure_to_replace_is_told(
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
