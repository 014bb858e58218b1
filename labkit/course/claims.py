"""Tells which of an edition's cells a learner's cell stands for.

Editors, copies and uploads strip a notebook of much, so it is told, in this order,

1. by what the builder wrote into the cell: lesson, exercise, role and ordinal;
2. by nbgrader's id or the cell's own, which say the same;
3. by its words: the edition has a cell that says just this, or asks this question.

Words that the edition has come before 1 and 2 where these point to a cell that says
something else: between editions, the ordinals of texts shift.

Besides, a cell claims each hole whose function it defines. That counts for more than
what is written into it, since a copied cell takes its metadata along to its copy.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from labkit.course.source import HOLE_LINE

Cell: TypeAlias = dict[str, Any]
MAX_PARSED_CHARS = 200_000
_QUESTION = re.compile(r"^predict\(\s*(\"[^\"\n]*\"|'[^'\n]*')", re.M)
_DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.M)


class Key(NamedTuple):
    """What a cell of an edition is for."""

    exercise: str | None
    role: str
    ordinal: int


@dataclass(frozen=True)
class Claim:
    """A learner's cell.

    Attributes:
        cell: It, its source one text.
        told: The edition's cell that it stands for; it may be gone from the edition.
            None for a cell of the learner's own.
        holes: The holes whose functions it defines.
    """

    cell: Cell
    told: Key | None
    holes: tuple[Key, ...]

    @property
    def text(self) -> str:
        """What it says, without space around it."""
        return str(self.cell["source"]).strip("\n").rstrip()

    @property
    def is_code(self) -> bool:
        """Whether it is run."""
        return self.cell["cell_type"] == "code"


@dataclass(frozen=True)
class Edition:
    """A lesson as it is handed out: its number, and its cells by what they are for."""

    lesson: str
    cells: Mapping[Key, Cell]

    @classmethod
    def of(cls, notebook: Mapping[str, Any]) -> Edition:
        """The edition that a built notebook holds."""
        cells = {_key(cell): _as_cell(cell) for cell in notebook["cells"]}
        return cls(notebook["metadata"]["labkit"]["lesson"], cells)

    @cached_property
    def holes(self) -> dict[Key, tuple[str, ...]]:
        """Each hole, and the functions that are to be written there."""
        return {
            key: defined(cell["source"])
            for key, cell in self.cells.items()
            if key.role == "hole"
        }

    @cached_property
    def before(self) -> dict[Key, Key | None]:
        """The cell that stands before each."""
        keys = list(self.cells)
        return dict(zip(keys, [None, *keys], strict=False))

    @cached_property
    def _ids(self) -> dict[str, Key]:
        return {cell["id"]: key for key, cell in self.cells.items()}

    @cached_property
    def _by_words(self) -> dict[tuple[str, str], Key]:
        # Backwards, so that of cells that say the same the first is found.
        return {
            (cell["cell_type"], cell["source"].strip()): key
            for key, cell in reversed(list(self.cells.items()))
        }

    @cached_property
    def _questions(self) -> dict[str, Key]:
        asked = {key: question(c["source"]) for key, c in self.cells.items()}
        return {text: key for key, text in asked.items() if text is not None}

    def claim(self, given: Mapping[str, Any]) -> Claim:
        """What a learner's cell stands for."""
        cell = _as_cell(given)
        names = set(defined(cell["source"])) if cell["cell_type"] == "code" else set()
        told = self._told(cell)
        if told is not None and told.role != "hole" and self.says(told, cell):
            names = set()
        holes = tuple(key for key, wanted in self.holes.items() if names & set(wanted))
        if told is not None and told.role == "hole" and holes and told not in holes:
            told = None
        return Claim(cell, told, holes)

    def says(self, key: Key, cell: Mapping[str, Any]) -> bool:
        """Whether the edition's cell says just what this one says."""
        own = self.cells.get(key)
        return own is not None and own["source"].strip() == cell["source"].strip()

    def _told(self, cell: Cell) -> Key | None:
        told = self._told_by_marks(cell)
        if told is not None and (told.role == "hole" or self.says(told, cell)):
            return told
        words = self._by_words.get((cell["cell_type"], cell["source"].strip()))
        asked = self._questions.get(question(cell["source"]) or "")
        return words or asked or told

    def _told_by_marks(self, cell: Cell) -> Key | None:
        labkit = _dict(cell["metadata"].get("labkit"))
        if labkit.get("lesson", self.lesson) != self.lesson:
            return None
        match [labkit.get(name) for name in Key._fields]:
            case [str() | None as exercise, str(role), int(ordinal)]:
                return Key(exercise, role, ordinal)
            case _:
                pass
        grade_id = _dict(cell["metadata"].get("nbgrader")).get("grade_id")
        ids = (name for name in (grade_id, cell.get("id")) if isinstance(name, str))
        return next((self._ids[name] for name in ids if name in self._ids), None)


def _as_cell(cell: Mapping[str, Any]) -> Cell:
    source = cell["source"]
    text = source if isinstance(source, str) else "".join(source)
    return {**cell, "source": text}


def _key(cell: Mapping[str, Any]) -> Key:
    labkit = cell["metadata"]["labkit"]
    return Key(labkit["exercise"], labkit["role"], labkit["ordinal"])


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def question(source: str) -> str | None:
    """What a cell lets the learner predict; None if nothing."""
    found = _QUESTION.search(source)
    return found[1][1:-1] if found else None


def parsed(source: str) -> ast.Module | None:
    """A cell as Python; None where it is none, or too much to look into."""
    if len(source) > MAX_PARSED_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            # A learner's odd escape is no business of ours.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defined(source: str) -> tuple[str, ...]:
    """The functions and classes that a cell defines, also one that is not valid."""
    module = parsed(source)
    if module is None:
        return tuple(_DEFINITION.findall(source))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(node.name for node in module.body if isinstance(node, kinds))


def unanswered(source: str, pristine: str) -> bool:
    """Whether a hole is as it was handed out, by this edition or another.

    Docstrings and comments do not count, and a function that only raises is no answer
    whatever its arguments are.
    """
    if not source.strip() or source.strip() == pristine.strip():
        return True
    module, original = parsed(source), parsed(pristine)
    if HOLE_LINE not in source or module is None or original is None:
        return False
    try:
        same = ast.dump(_bare(module)) == ast.dump(_bare(original))
    except RecursionError:
        return False
    return same or _only_raises(module.body)


def _bare(module: ast.Module) -> ast.Module:
    """The module without its docstrings."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = _without_docstring(node.body)
    return module


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest] if rest:
            return rest
        case _:
            return body


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    functions = [n for n in body if isinstance(n, ast.FunctionDef)]
    bodies = [_without_docstring(function.body) for function in functions]
    raised = [ast.unparse(body[0]) for body in bodies if len(body) == 1]
    hole = ast.unparse(ast.parse(HOLE_LINE))
    return bool(functions) and raised == [hole] * len(functions)
