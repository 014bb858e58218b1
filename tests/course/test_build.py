"""Notebooks are built the same each time, and from nothing but their source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.course import build as builder
from labkit.course.places import Course
from labkit.errors import UsageError
from tests.course.conftest import SOURCE

HOLE = 'raise NotImplementedError("write your answer here")'


def built(course: Course) -> dict[str, dict[str, Any]]:
    """The notebooks of a course by folder."""
    return {
        item.path.parent.name: json.loads(item.content)
        for item in builder.build(course)
    }


def rewrite(course: Course, text: str) -> None:
    (course.solutions / "00_first.py").write_text(text)


def ids(course: Course) -> list[str]:
    return [cell["id"] for cell in built(course)["lessons"]["cells"]]


def test_both_notebooks_are_valid_and_empty_of_outputs(course: Course) -> None:
    for item in builder.build(course):
        notebook = nbformat.reads(item.content.decode(), as_version=4)
        nbformat.validate(notebook)
        assert len(set(ids(course))) == len(notebook.cells)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(c.outputs == [] and c.execution_count is None for c in code)


def test_the_lesson_has_holes_and_the_solution_answers(course: Course) -> None:
    notebooks = built(course)
    sources = {
        folder: ["".join(cell["source"]) for cell in notebook["cells"]]
        for folder, notebook in notebooks.items()
    }
    assert "2 * x" not in "".join(sources["lessons"])
    assert "SOLUTION" not in "".join(sources["lessons"])
    assert sources["lessons"][3].endswith(f'"""Twice x."""\n    {HOLE}')
    assert sources["lessons"][7].endswith(f"        {HOLE}\n    return total")
    assert "    return 2 * x" in sources["solutions"][3]
    same = [n for n in range(len(sources["lessons"])) if n not in (3, 7)]
    for n in same:
        assert sources["lessons"][n] == sources["solutions"][n]


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_process(course: Course) -> None:
    code = (
        "import sys, hashlib; from pathlib import Path\n"
        "from labkit.course.build import build\n"
        "from labkit.course.places import Course\n"
        "for b in build(Course(Path(sys.argv[1]))):\n"
        "    print(hashlib.sha256(b.content).hexdigest())\n"
    )
    root = Path(__file__).resolve().parents[2]
    printed = {
        subprocess.run(
            [sys.executable, "-c", code, str(course.root)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(printed) == 1
    assert len(printed.pop().split()) == 2


def test_json_is_sorted_and_ends_with_a_newline(course: Course) -> None:
    for item in builder.build(course):
        text = item.content.decode()
        again = json.dumps(
            json.loads(text), sort_keys=True, indent=1, ensure_ascii=False
        )
        assert text == again + "\n"


def test_ids_do_not_change_with_the_text(course: Course) -> None:
    before = ids(course)
    rewrite(course, SOURCE.replace("twice", "two times").replace("2 * x", "x + x"))
    assert ids(course) == before
    assert before[3:6] == ["lab00-0-1-hole-1", "lab00-0-1-check-1", "lab00-0-1-look-1"]


def test_ids_of_an_exercise_do_not_change_with_cells_around_it(course: Course) -> None:
    before = [name for name in ids(course) if "-0-" in name]
    rewrite(course, SOURCE.replace("# %%\nimport", "# %%\nx = 1\n\n# %%\nimport"))
    after = ids(course)
    assert len(after) == len(before) + 5
    assert [name for name in after if "-0-" in name] == before


def test_metadata_is_nbgraders_version_3(course: Course) -> None:
    cells = built(course)["lessons"]["cells"]
    described = {c["id"]: c["metadata"].get("nbgrader") for c in cells}
    assert described["lab00-0-1-hole-1"] == {
        "grade": False, "grade_id": "lab00-0-1-hole-1", "locked": False,
        "schema_version": 3, "solution": True, "task": False,
    }  # fmt: skip
    assert described["lab00-0-1-check-1"] == {
        "grade": True, "grade_id": "lab00-0-1-check-1", "locked": True, "points": 10,
        "schema_version": 3, "solution": False, "task": False,
    }  # fmt: skip
    assert described["lab00-x-code-1"] is None
    assert cells[4]["metadata"]["labkit"] == {
        "lesson": "00", "exercise": "0.1", "role": "check", "ordinal": 1,
    }  # fmt: skip
    assert cells[9]["metadata"]["tags"] == ["raises-exception"]


def test_a_written_notebook_is_fresh_until_its_source_changes(course: Course) -> None:
    for item in builder.build(course):
        assert not item.fresh
        item.write()
    assert all(item.fresh for item in builder.build(course))
    rewrite(course, SOURCE.replace("2 * x", "x + x"))
    stale = [i.path.parent.name for i in builder.build(course) if not i.fresh]
    assert stale == ["solutions"]
    assert list(course.root.rglob("*.partial")) == []


def test_a_notebook_without_a_source_is_found(course: Course) -> None:
    stray = course.lessons / "01_gone.ipynb"
    stray.touch()
    assert builder.orphans(course, builder.build(course)) == [stray]


def test_two_lessons_cannot_share_a_number(course: Course) -> None:
    (course.solutions / "00_second.py").write_text(SOURCE)
    with pytest.raises(UsageError, match="both have 00"):
        builder.build(course)


def test_a_course_without_sources_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 were found"):
        builder.build(Course(tmp_path))
