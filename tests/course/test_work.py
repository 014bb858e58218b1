"""Lessons are handed out once, and never over a learner's file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course import build as builder
from labkit.course.places import Course, find_course
from labkit.course.work import hand_out
from labkit.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
HAND_OUT = (
    "import sys; from pathlib import Path\n"
    "from labkit.course.work import hand_out; from labkit.course.places import Course\n"
    "hand_out(Course(Path(sys.argv[1])))\n"
)


@pytest.fixture
def lessons(course: Course) -> Course:
    """A course whose lessons are built."""
    for item in builder.build(course):
        item.write()
    (course.lessons / "README.txt").write_text("no lesson")
    return course


def test_a_new_lesson_is_copied_as_it_is(lessons: Course) -> None:
    done = hand_out(lessons)
    copied = lessons.work / "00_first.ipynb"
    assert (done.new, done.kept) == ((copied,), ())
    assert copied.read_bytes() == (lessons.lessons / copied.name).read_bytes()
    assert list(lessons.work.iterdir()) == [copied]


@pytest.mark.parametrize("answer", [b"my answer", b""])
def test_an_answer_is_never_written_over(lessons: Course, answer: bytes) -> None:
    hand_out(lessons)
    mine = lessons.work / "00_first.ipynb"
    mine.write_bytes(answer)
    (lessons.lessons / "01_next.ipynb").write_text("{}")
    done = hand_out(lessons)
    assert mine.read_bytes() == answer
    assert [path.name for path in done.new] == ["01_next.ipynb"]
    assert done.kept == (mine,)


def test_something_else_in_the_way_is_told(lessons: Course) -> None:
    lessons.work.write_text("a file")
    with pytest.raises(UsageError, match="must be writable"):
        hand_out(lessons)
    lessons.work.unlink()
    (lessons.work / "00_first.ipynb").mkdir(parents=True)
    with pytest.raises(UsageError, match="something else has its name"):
        hand_out(lessons)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_takes_no_files_is_told(lessons: Course) -> None:
    lessons.work.symlink_to("/proc/self")
    with pytest.raises(UsageError, match=r"must be writable.*00_first"):
        hand_out(lessons)


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_a_lesson(lessons: Course) -> None:
    # A limit on file size fails the write midway, as a full disk does.
    done = subprocess.run(
        [sys.executable, "-c", HAND_OUT, str(lessons.root)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "with room for the lessons; writing 00_first.ipynb gave: File too" in (
        done.stderr
    )
    assert list(lessons.work.iterdir()) == []
    assert [path.name for path in hand_out(lessons).new] == ["00_first.ipynb"]


def test_no_lessons_are_told(course: Course) -> None:
    with pytest.raises(UsageError, match="0 were found"):
        hand_out(course)


def test_the_course_is_found_from_below(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(course.solutions)
    assert find_course().root == course.root.resolve()
    assert find_course(course.lessons) == find_course()


def test_the_course_that_labkit_came_in_is_the_last_resort(tmp_path: Path) -> None:
    assert find_course(tmp_path).root == ROOT


def test_an_unknown_lesson_is_told(lessons: Course) -> None:
    with pytest.raises(UsageError, match=r"one of \['00'\]; '07'"):
        lessons.work_notebook("07")
    with pytest.raises(UsageError, match="not there yet"):
        lessons.work_notebook("00")
    hand_out(lessons)
    assert lessons.work_notebook("00") == lessons.work / "00_first.ipynb"
