"""A row a submission: what it is, its points by exercise, and the table of all rows."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from labkit.course.check import ExerciseResult
from labkit.errors import UsageError

Status: TypeAlias = Literal[
    "graded", "cut short", "unreadable", "no lesson", "not looked at", "not run"
]
FORGEABLE = (
    "These verdicts were reached inside each learner's own process, where they can be "
    "forged. Look at an answer yourself before much depends on it."
)


@dataclass(frozen=True)
class Row:
    """What became of one file.

    Attributes:
        file: Its path below the graded folder.
        status: "graded" where it ran to its end, "cut short" where it did not and the
            exercises until then count; in all other cases nothing was judged.
        lesson: Two digits; "" where it could not be told.
        exercises: What each earned, and why not more.
        note: What else there is to say.
    """

    file: str
    status: Status
    lesson: str = ""
    exercises: tuple[ExerciseResult, ...] = ()
    note: str = ""

    @property
    def points(self) -> int:
        """Points of all exercises."""
        return sum(result.points for result in self.exercises)

    @property
    def out_of(self) -> int:
        """What they are worth."""
        return sum(result.out_of for result in self.exercises)

    def __str__(self) -> str:
        """A line for a terminal."""
        judged = f"{self.points} of {self.out_of}" if self.exercises else ""
        line = f"{judged:>10}  {self.status:13}  {self.file}"
        return f"{line}: {_line(self.note)}" if self.note else line


def as_csv(rows: Sequence[Row]) -> str:
    """A line a file: what it is, points, one column an exercise, status, note.

    Points are empty where nothing was judged: whether that is a 0 is for people to say.
    """
    exercises = sorted(
        {result.exercise for row in rows for result in row.exercises}, key=_number
    )
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    head = ("file", "lesson", "points", "out_of", *exercises, "status", "note")
    table.writerow(head)
    for row in rows:
        earned = {result.exercise: result.points for result in row.exercises}
        totals = (row.points, row.out_of) if row.exercises else ("", "")
        columns = [earned.get(name, "") for name in exercises]
        table.writerow(
            [_harmless(row.file), row.lesson, *totals, *columns, row.status,
             _harmless(_line(row.note))]
        )  # fmt: skip
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """The same with what each exercise's check said, and what the verdicts rest on."""
    told = [
        {
            "file": row.file, "lesson": row.lesson, "points": row.points,
            "out_of": row.out_of, "status": row.status, "note": row.note,
            "exercises": {
                result.exercise: {
                    "points": result.points, "out_of": result.out_of,
                    "status": result.status, "message": result.message,
                }
                for result in row.exercises
            },
        }
        for row in rows
    ]  # fmt: skip
    return json.dumps({"note": FORGEABLE, "rows": told}, indent=1) + "\n"


def _number(exercise: str) -> tuple[int, ...]:
    """Puts 1.10 behind 1.9."""
    return tuple(int(part) for part in re.findall(r"\d+", exercise))


def _line(text: str, most: int = 500) -> str:
    """A text as one line; what a learner's code said may hold anything."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."


def _harmless(text: str) -> str:
    """A spreadsheet takes a text that begins so for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


@dataclass
class Gradebook:
    """The rows so far, and the files that hold them: whole at any time."""

    csv_file: Path | None = None
    json_file: Path | None = None
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A file that cannot be written is to be told now, not after an hour's work.
        self._write()

    def add(self, row: Row) -> None:
        """Keep a row.

        Raises:
            UsageError: A file cannot be written.
        """
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        files: list[tuple[Path | None, Callable[[Sequence[Row]], str]]] = [
            (self.csv_file, as_csv), (self.json_file, as_json)
        ]  # fmt: skip
        for path, as_text in files:
            if path is not None:
                _replace(path, as_text(self.rows))


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # With its mark, without which Excel takes the letters for another encoding's.
        encoding = "utf-8-sig" if path.suffix == ".csv" else "utf-8"
        beside.write_text(text, encoding=encoding)
        beside.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} must be a file that can be written; got: {error.strerror}. Try "
            "another name, or a folder of your own."
        ) from error
    finally:
        beside.unlink(missing_ok=True)
