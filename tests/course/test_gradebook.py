"""Rows as a table and as data, whole in their files at any time."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from labkit.course.check import ExerciseResult
from labkit.course.gradebook import Gradebook, Row, as_csv, as_json
from labkit.errors import UsageError

EARNED = (
    ExerciseResult("0.2", 4, 5, "failed", "AssertionError: values: =1"),
    ExerciseResult("0.10", 10, 10, "passed", ""),
)
ROWS = [
    Row("a.ipynb", "graded", "00", EARNED),
    Row("=cmd()", "unreadable", note='it said "no",\n\x1b[31mtwice'),
]


def test_a_table_has_a_column_an_exercise() -> None:
    head, first, second = csv.reader(io.StringIO(as_csv(ROWS)))
    assert head == [
        "file", "lesson", "points", "out_of", "0.2", "0.10", "status", "note"
    ]  # fmt: skip
    assert first == ["a.ipynb", "00", "14", "15", "4", "10", "graded", ""]
    assert second == [
        "'=cmd()", "", "", "", "", "", "unreadable", 'it said "no",  [31mtwice'
    ]  # fmt: skip


def test_data_say_why_and_what_they_rest_on() -> None:
    told = json.loads(as_json(ROWS))
    assert "can be forged" in told["note"]
    assert told["rows"][0]["exercises"]["0.2"] == {
        "points": 4, "out_of": 5, "status": "failed",
        "message": "AssertionError: values: =1",
    }  # fmt: skip


def test_a_line_on_a_terminal_is_one_line() -> None:
    assert [str(row) for row in ROWS] == [
        "  14 of 15  graded         a.ipynb",
        '            unreadable     =cmd(): it said "no",  [31mtwice',
    ]
    assert len(str(Row("a", "not run", note="word " * 1000))) < 600


def test_the_files_are_whole_after_each_row(tmp_path: Path) -> None:
    table, data = tmp_path / "rows.csv", tmp_path / "rows.json"
    book = Gradebook(table, data)
    for number, row in enumerate(ROWS):
        assert table.read_text("utf-8-sig") == as_csv(ROWS[:number])
        assert (
            json.loads(data.read_text())["rows"]
            == (json.loads(as_json(ROWS[:number]))["rows"])
        )
        book.add(row)
    assert sorted(tmp_path.iterdir()) == [table, data]


def test_a_file_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "rows.csv"):
        with pytest.raises(UsageError, match="must be a file that can be written"):
            Gradebook(path)
    assert list(tmp_path.iterdir()) == []
