"""Each lesson says what its checks do, and runs as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.checks import lesson_00, lesson_01
from labkit.checks.exercise import Exercise
from labkit.course.build import notebook_bytes
from labkit.course.check import check_notebook
from labkit.course.source import Lesson, SourceCell, read_lesson

SOLUTIONS = Path(__file__).parents[2] / "solutions"
LESSONS = {path.stem[:2]: read_lesson(path) for path in sorted(SOLUTIONS.glob("*.py"))}
EXERCISES = {**lesson_00.EXERCISES, **lesson_01.EXERCISES}
FAIL_ON_PURPOSE = {"00": 5, "01": 0}
ONE_SCREEN_LINES = 25

each_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
each_lesson = pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)


def cell(exercise: Exercise, role: str) -> SourceCell:
    cells = LESSONS[f"{int(exercise.id.partition('.')[0]):02d}"].cells
    return next(c for c in cells if (c.exercise, c.role) == (exercise.id, role))


def plain(text: str) -> str:
    """Text without line breaks, quotes and code marks, to be compared."""
    return re.sub(r"\s+", " ", text.replace("`", "").replace('"', "")).strip()


def test_every_exercise_of_a_lesson_has_a_check() -> None:
    cells = [c for lesson in LESSONS.values() for c in lesson.cells]
    assert {c.exercise for c in cells if c.exercise} == set(EXERCISES)


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
    signatures = (exercise.signature, *exercise.also)
    for signature in signatures:
        assert f"def {signature}:" in cell(exercise, "hole").text
    names = ", ".join(signature.partition("(")[0] for signature in signatures)
    assert cell(exercise, "check").text == f'check("{exercise.id}", {names})'


@each_lesson
def test_the_first_cell_to_run_is_on_the_first_screen(lesson: Lesson) -> None:
    first = next(c for c in lesson.cells if c.cell_type == "code")
    assert first.line <= ONE_SCREEN_LINES


@each_lesson
def test_a_learner_can_run_what_the_messages_name(lesson: Lesson) -> None:
    first = next(c for c in lesson.cells if c.cell_type == "code")
    assert {"check", "hint"} <= set(re.findall(r"\w+", first.text))


@each_lesson
def test_a_cell_that_fails_on_purpose_is_announced(lesson: Lesson) -> None:
    for number, one in enumerate(lesson.cells):
        if "raises-exception" in one.tags:
            before = [c.text for c in lesson.cells[number - 3 : number]]
            assert any("fails on purpose" in plain(text) for text in before), one.text
    failing = sum("raises-exception" in one.tags for one in lesson.cells)
    assert failing == FAIL_ON_PURPOSE[lesson.number]


@pytest.mark.slow
@each_lesson
@pytest.mark.timeout(300)
@pytest.mark.parametrize("holes", [False, True], ids=["solution", "lesson"])
def test_the_notebook_runs_and_stops_only_where_it_should(
    lesson: Lesson, holes: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"{lesson.slug}.ipynb"
    path.write_bytes(notebook_bytes(lesson, holes=holes))
    report = check_notebook(path, cell_limit_s=100)
    expected = "not answered" if holes else "passed"
    exercises = [c for c in lesson.cells if c.role == "check"]
    assert [r.status for r in report.exercises] == [expected] * len(exercises)
    assert report.stopped == ()
