"""Reads a lesson's source: percent cells, their roles, the regions of a solution.

A source is a Python file in jupytext's percent form. Each cell says what it is for:

    # %% [markdown] exercise="0.1" role="statement"
    # %% exercise="0.1" role="hole"
    # %% exercise="0.1" role="check" points=10
    # %% exercise="0.1" role="look"
    # %% tags=["raises-exception"]

A markdown cell without a role is "text", a code cell without one is "code". In a hole
the answer stands between `# BEGIN SOLUTION` and `# END SOLUTION`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import jupytext  # pyright: ignore[reportMissingTypeStubs]
from IPython.core.inputtransformer2 import TransformerManager

from labkit.checks.exercise import UNANSWERED
from labkit.course.places import lesson_of
from labkit.errors import UsageError

CellType: TypeAlias = Literal["code", "markdown"]
Role: TypeAlias = Literal[
    "text", "code", "predict", "statement", "hole", "check", "look"
]

BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"
HOLE_LINE = f'raise NotImplementedError("{UNANSWERED}")'
MAX_CODE_LINES = 25

_ROLES: dict[CellType, frozenset[str]] = {
    "markdown": frozenset({"text", "predict", "statement"}),
    "code": frozenset({"code", "predict", "hole", "check", "look"}),
}
_IN_EXERCISE = ("statement", "hole", "check", "look")
_KEYS = frozenset({"exercise", "role", "points", "tags"})
_JUPYTEXT_KEYS = frozenset({"lines_to_next_cell", "lines_to_end_of_cell_marker"})
_CELL_LINE = re.compile(r"# %%(\s|$)")
_EXERCISE = re.compile(r"(\d{1,2})\.(\d{1,2})")


class SourceError(UsageError):
    """A lesson's source is malformed; the message names its file and line."""


@dataclass(frozen=True)
class SourceCell:
    """One cell of a lesson. `ordinal` counts within the same exercise and role."""

    cell_type: CellType
    role: Role
    exercise: str | None
    ordinal: int
    points: int | None
    tags: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson as its source says it: number, file name without suffix, cells."""

    number: str
    slug: str
    title: str
    cells: tuple[SourceCell, ...]


def read_lesson(path: Path) -> Lesson:
    """Read and check one source file.

    Raises:
        SourceError: The file breaks one of the rules; the first breach is told.
        UsageError: The file's name is not `NN_slug.py`.
    """
    number = lesson_of(path)
    cells = tuple(_read_cells(path, path.read_text(encoding="utf-8")))
    for cell in cells:
        _check_cell(path, number, cell)
    for exercise in _exercises(cells):
        _check_exercise(path, exercise, cells)
    return Lesson(number, path.stem, _title(path, cells), cells)


def strip_solution(text: str) -> str:
    """Replace each region of a hole by one line that raises, at its indentation."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        marker = line.strip()
        if marker == BEGIN:
            kept.append(line[: len(line) - len(line.lstrip())] + HOLE_LINE)
        inside = (inside or marker == BEGIN) and marker != END
        if not inside and marker != END:
            kept.append(line)
    return "\n".join(kept)


def _read_cells(path: Path, text: str) -> Iterator[SourceCell]:
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines, 1) if _CELL_LINE.match(line)]
    notebook = cast(Any, jupytext).reads(text, fmt="py:percent")
    if len(starts) != len(notebook.cells):
        raise SourceError(
            f"{path}: every line must belong to a cell that starts with `# %%`; "
            f"{len(starts)} such lines were seen, {len(notebook.cells)} cells were "
            "read. Try moving stray text into a cell."
        )
    ordinals: Counter[tuple[str | None, str]] = Counter()
    for start, cell in zip(starts, notebook.cells, strict=True):
        metadata = _metadata(path, start, cell.cell_type, cell.metadata)
        key = (metadata["exercise"], metadata["role"])
        ordinals[key] += 1
        yield SourceCell(
            cell.cell_type, ordinal=ordinals[key], text=cell.source, line=start,
            **metadata,
        )  # fmt: skip


def _metadata(
    path: Path, line: int, cell_type: str, raw: Mapping[str, Any]
) -> dict[str, Any]:
    """Sort a cell's metadata into SourceCell's fields; refuse what is unknown."""
    if cell_type not in get_args(CellType):
        raise _error(path, line, "a cell must be code or markdown", cell_type)
    kind = cast(CellType, cell_type)
    unknown = sorted(set(raw) - _KEYS - _JUPYTEXT_KEYS)
    if unknown:
        raise _error(path, line, f"a cell's keys must be in {sorted(_KEYS)}", unknown)
    role = raw.get("role", "text" if kind == "markdown" else "code")
    if role not in _ROLES[kind]:
        raise _error(
            path, line, f"a {kind} cell's role must be in {sorted(_ROLES[kind])}", role
        )
    exercise = raw.get("exercise")
    if not isinstance(exercise, str | None):
        # A number it would be without quotes, and 0.10 the same as 0.1.
        raise _error(path, line, "an exercise must be named in quotes", exercise)
    return {
        "role": role,
        "exercise": exercise,
        "points": raw.get("points"),
        "tags": tuple(raw.get("tags", ())),
    }


def _check_cell(path: Path, lesson: str, cell: SourceCell) -> None:
    """Hold a cell to the rules that need no other cell."""
    _check_exercise_name(path, lesson, cell)
    is_check = cell.role == "check"
    if is_check != (cell.points is not None):
        raise _error(
            path, cell.line, "a check cell, and no other, must have points", cell.role
        )
    if is_check and (not isinstance(cell.points, int) or cell.points < 1):
        raise _error(path, cell.line, "points must be a whole number", cell.points)
    _check_regions(path, cell)
    if cell.cell_type == "code":
        _check_code(path, cell)


def _check_exercise_name(path: Path, lesson: str, cell: SourceCell) -> None:
    if cell.exercise is None:
        if cell.role in _IN_EXERCISE:
            raise _error(
                path, cell.line, f"a {cell.role} cell must name its exercise", None
            )
        return
    match = _EXERCISE.fullmatch(cell.exercise)
    if match is None or int(match[1]) != int(lesson):
        raise _error(
            path,
            cell.line,
            f'an exercise of lesson {lesson} must be named "{int(lesson)}.N"',
            cell.exercise,
        )


def _check_regions(path: Path, cell: SourceCell) -> None:
    """Every region opens, closes, holds something, and stands in a hole."""
    opened = inside = regions = 0
    for number, line in enumerate(cell.text.splitlines(), cell.line + 1):
        marker = line.strip()
        if marker == BEGIN:
            if opened:
                raise _error(
                    path, number, f"`{BEGIN}` of line {opened} must end first", marker
                )
            opened, inside, regions = number, 0, regions + 1
        elif marker == END:
            if not opened or not inside:
                raise _error(
                    path, number, f"`{END}` must follow `{BEGIN}` and code", marker
                )
            opened = 0
        else:
            inside += bool(opened and marker)
    if opened:
        raise _error(path, opened, f"`{BEGIN}` must be closed by `{END}`", "no end")
    if (regions > 0) != (cell.role == "hole"):
        raise _error(
            path,
            cell.line,
            "a hole cell, and no other, must hold a solution region",
            f"role {cell.role!r} with {regions} regions",
        )


def _check_code(path: Path, cell: SourceCell) -> None:
    """A code cell is short, and valid Python with and without its solution."""
    lines = [
        line for line in cell.text.splitlines() if line.strip() not in (BEGIN, END)
    ]
    if len(lines) > MAX_CODE_LINES:
        raise _error(
            path,
            cell.line,
            f"a code cell must have at most {MAX_CODE_LINES} lines",
            f"{len(lines)} lines",
        )
    for text in {cell.text, strip_solution(cell.text)}:
        python = TransformerManager().transform_cell(text)
        try:
            compile(python, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        except SyntaxError as error:
            line = cell.line + (error.lineno or 1)
            raise _error(path, line, "a cell must be valid Python", error.msg) from None


def _exercises(cells: Iterable[SourceCell]) -> list[str]:
    """The exercises in the order in which they first appear."""
    named = (cell.exercise for cell in cells if cell.exercise is not None)
    return list(dict.fromkeys(named))


def _check_exercise(path: Path, exercise: str, cells: tuple[SourceCell, ...]) -> None:
    """An exercise is one statement, holes, one check, looks: once, in this order."""
    mine = [cell for cell in cells if cell.exercise == exercise]
    mine = [cell for cell in mine if cell.role in _IN_EXERCISE]
    first = mine[0].line if mine else 1
    counts = Counter(cell.role for cell in mine)
    for role in ("statement", "hole", "check"):
        if counts[role] == 0:
            rule = f"exercise {exercise} must have a {role} cell"
            raise _error(path, first, rule, dict(counts))
    for role in ("statement", "check"):
        if counts[role] > 1:
            again = [cell.line for cell in mine if cell.role == role][1]
            rule = f"exercise {exercise} must have one {role} cell; its id is taken"
            raise _error(path, again, rule, f"{counts[role]} of them")
    roles = [_IN_EXERCISE.index(cell.role) for cell in mine]
    if roles != sorted(roles):
        rule = f"exercise {exercise} must be in the order {', '.join(_IN_EXERCISE)}"
        raise _error(path, first, rule, [cell.role for cell in mine])


def _title(path: Path, cells: tuple[SourceCell, ...]) -> str:
    first = cells[0].text.splitlines()[0] if cells and cells[0].text else ""
    if not cells or cells[0].cell_type != "markdown" or not first.startswith("# "):
        raise _error(path, 1, "a lesson must open with a markdown `# Title`", first)
    return first.removeprefix("# ").strip()


def _error(path: Path, line: int, rule: str, seen: object) -> SourceError:
    return SourceError(
        f"{path}, line {line}: {rule}; seen: {seen!r}. "
        "Try comparing the cell with the head of labkit/course/source.py."
    )
