"""Lesson 00 says what its checks do, and runs as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.checks.exercise import Exercise
from labkit.checks.lesson_00 import EXERCISES
from labkit.course.build import notebook_bytes
from labkit.course.check import check_notebook
from labkit.course.source import SourceCell, read_lesson

SOURCE = Path(__file__).parents[2] / "solutions" / "00_your_cluster.py"
LESSON = read_lesson(SOURCE)
ONE_SCREEN_LINES = 25

each_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)


def cell(exercise: Exercise, role: str) -> SourceCell:
    return next(c for c in LESSON.cells if (c.exercise, c.role) == (exercise.id, role))


def plain(text: str) -> str:
    """Text without line breaks, quotes and code marks, to be compared."""
    return re.sub(r"\s+", " ", text.replace("`", "").replace('"', "")).strip()


def test_every_exercise_of_the_lesson_has_a_check() -> None:
    assert {c.exercise for c in LESSON.cells if c.exercise} == set(EXERCISES)


@each_exercise
def test_the_folded_hints_are_those_of_the_check(exercise: Exercise) -> None:
    text = cell(exercise, "statement").text
    number = len(exercise.hints)
    hints = re.split(rf"<details><summary>Hint \d of {number}</summary>", text)[1:]
    told = [plain(hint.replace("</details>", "")) for hint in hints]
    assert told == [plain(hint) for hint in exercise.hints]
    assert text.count("</details>") == number >= 3


@each_exercise
def test_the_header_has_the_title_and_the_points(exercise: Exercise) -> None:
    title, header = cell(exercise, "statement").text.splitlines()[:2]
    assert title == f"### Exercise {exercise.id} · {exercise.title}"
    total = sum(exercise.points.values())
    parts = ", ".join(f"{on.value} {points}" for on, points in exercise.points.items())
    assert f"{total} points: {parts}" in header
    assert "minutes (unmeasured)" in header
    assert cell(exercise, "check").points == total


@each_exercise
def test_the_hole_and_the_check_name_the_function(exercise: Exercise) -> None:
    name = exercise.signature.partition("(")[0]
    assert f"def {exercise.signature}:" in cell(exercise, "hole").text
    assert cell(exercise, "check").text == f'check("{exercise.id}", {name})'


def test_the_first_cell_to_run_is_on_the_first_screen() -> None:
    first = next(c for c in LESSON.cells if c.cell_type == "code")
    assert first.line <= ONE_SCREEN_LINES


def test_a_cell_that_fails_on_purpose_is_announced() -> None:
    for number, one in enumerate(LESSON.cells):
        if "raises-exception" in one.tags:
            before = [c.text for c in LESSON.cells[number - 3 : number]]
            assert any("fails on purpose" in plain(text) for text in before), one.text
    assert sum("raises-exception" in one.tags for one in LESSON.cells) == 5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("holes", [False, True], ids=["solution", "lesson"])
def test_the_notebook_runs_and_stops_only_where_it_should(
    holes: bool, tmp_path: Path
) -> None:
    path = tmp_path / "00_your_cluster.ipynb"
    path.write_bytes(notebook_bytes(LESSON, holes=holes))
    report = check_notebook(path, cell_limit_s=100)
    expected = "not answered" if holes else "passed"
    assert [result.status for result in report.exercises] == [expected] * 3
    assert report.stopped == ()
