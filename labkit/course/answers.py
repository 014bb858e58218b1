"""Puts a learner's answers into an edition of a lesson: what update and grading share.

Everything of the result is the edition's, but for what a learner writes: the holes, the
guesses, and cells of their own. Whose hole a cell answers is told, in this order,

1. by what the builder wrote into it: exercise, role and ordinal;
2. by its id, or nbgrader's, which say the same;
3. where an editor has stripped both, by the functions that it defines.

Several cells may claim one hole. Of copies, the last that was answered counts. Of a
cell that was split, all parts count, joined in their order.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Cell: TypeAlias = dict[str, Any]
Notebook: TypeAlias = Mapping[str, Any]
WRITTEN_BY_LEARNERS = ("hole", "predict")


class Key(NamedTuple):
    """What a cell of an edition is for."""

    exercise: str | None
    role: str
    ordinal: int


@dataclass(frozen=True)
class Rebuilt:
    """An edition with a learner's answers.

    Attributes:
        notebook: It, without outputs where a cell has changed.
        answered: The exercises whose holes hold something of the learner's.
        num_added: Cells of the learner's own.
    """

    notebook: dict[str, Any]
    answered: tuple[str, ...]
    num_added: int


def rebuild(edition: Notebook, learners: Notebook) -> Rebuilt:
    """An edition with the answers, guesses and added cells of a learner's notebook.

    Args:
        edition: The lesson as it is handed out.
        learners: As `labkit.course.check.read_notebook` reads it: of whatever edition,
            with cells deleted, doubled, split or moved.
    """
    cells = [_as_cell(cell) for cell in edition["cells"]]
    keys = {_key(cell): cell for cell in cells}
    claims, added = _claims(learners["cells"], keys)
    answered: dict[str, None] = {}
    built: list[Cell] = _copies(added[None])
    for cell in cells:
        key = _key(cell)
        source = _answer(claims[key], cell) if key.role in WRITTEN_BY_LEARNERS else None
        if source is not None and source.strip() != cell["source"].strip():
            cell = {**cell, "source": source}
            if key.role == "hole" and key.exercise is not None:
                answered[key.exercise] = None
        built += [_with_outputs(cell, claims[key]), *_copies(added[key])]
    notebook = {**copy.deepcopy(dict(edition)), "cells": _with_ids(built)}
    return Rebuilt(notebook, tuple(answered), sum(map(len, added.values())))


def _as_cell(cell: Mapping[str, Any]) -> Cell:
    source = cell["source"]
    text = source if isinstance(source, str) else "".join(source)
    return {**copy.deepcopy(dict(cell)), "source": text}


def _key(cell: Mapping[str, Any]) -> Key:
    """What an edition's own cell is for."""
    labkit = cell["metadata"]["labkit"]
    return Key(labkit["exercise"], labkit["role"], labkit["ordinal"])


Claims: TypeAlias = "defaultdict[Key, list[Cell]]"
Added: TypeAlias = "defaultdict[Key | None, list[Cell]]"


def _claims(
    learners: Sequence[Mapping[str, Any]], keys: Mapping[Key, Cell]
) -> tuple[Claims, Added]:
    """Which cells claim to be the edition's; the others, by whom they follow."""
    ids = {cell["id"]: key for key, cell in keys.items()}
    names = {
        name: key
        for key, cell in keys.items()
        if key.role == "hole"
        for name in defined(cell["source"])
    }
    claims: Claims = defaultdict(list)
    added: Added = defaultdict(list)
    before: Key | None = None
    for given in learners:
        cell = _as_cell(given)
        key = _claimed(cell, keys, ids, names)
        if key is None:
            added[before].append(cell)
        else:
            claims[key].append(cell)
            before = key
    return claims, added


def _claimed(
    cell: Cell,
    keys: Mapping[Key, Cell],
    ids: Mapping[str, Key],
    names: Mapping[str, Key],
) -> Key | None:
    labkit, nbgrader = (cell["metadata"].get(k) for k in ("labkit", "nbgrader"))
    if isinstance(labkit, dict):
        told: Any = tuple(labkit.get(k) for k in Key._fields)  # pyright: ignore
        key = next((key for key in keys if tuple(key) == told), None)
        if key is not None:
            return key
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None  # pyright: ignore
    for name in (cell.get("id"), grade_id):
        if isinstance(name, str) and name in ids:
            return ids[name]
    if cell["cell_type"] != "code":
        return _same_text(cell, keys)
    by_name = [names[name] for name in defined(cell["source"]) if name in names]
    return by_name[0] if by_name else _same_text(cell, keys)


def _same_text(cell: Cell, keys: Mapping[Key, Cell]) -> Key | None:
    """The edition's cell that says just this: it is none of the learner's own."""
    text = cell["source"].strip()
    return next((k for k, c in keys.items() if c["source"].strip() == text), None)


def defined(source: str) -> tuple[str, ...]:
    """The functions and classes that a cell defines; none where it is no Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return ()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(node.name for node in body if isinstance(node, kinds))


def _answer(claimants: Sequence[Cell], hole: Cell) -> str | None:
    """What the learner wrote into a hole; None where nothing is left of it."""
    pristine = hole["source"].strip()
    parts = [c["source"] for c in claimants if c["source"].strip() != pristine]
    if not parts:
        return None
    wanted = set(defined(hole["source"]))
    definers = [n for n, part in enumerate(parts) if wanted & set(defined(part))]
    superseded = set(definers[:-1])
    kept = [part for n, part in enumerate(parts) if n not in superseded]
    return "\n".join(part.rstrip("\n") for part in dict.fromkeys(kept))


def _with_outputs(cell: Cell, claimants: Sequence[Cell]) -> Cell:
    """The cell with what it showed, where it is as it was run."""
    if cell["cell_type"] != "code":
        return cell
    for old in claimants:
        if old["source"] == cell["source"] and old["cell_type"] == "code":
            shown = {name: old.get(name) for name in ("outputs", "execution_count")}
            return {**cell, **shown, "outputs": shown["outputs"] or []}
    return cell


def _copies(cells: Sequence[Cell]) -> list[Cell]:
    """A learner's own cells, without metadata that could change how they are run."""
    return [{**cell, "metadata": {}} for cell in cells]


def _with_ids(cells: Sequence[Cell]) -> list[Cell]:
    """Every cell with an id of its own, the edition's as they were."""
    return list(_named(cells))


def _named(cells: Sequence[Cell]) -> Iterator[Cell]:
    taken = {cell["id"] for cell in cells if cell["metadata"].get("labkit")}
    number = 0
    for cell in cells:
        if not cell["metadata"].get("labkit"):
            name = cell.get("id")
            while not isinstance(name, str) or name in taken:
                number += 1
                name = f"own-{number}"
            taken.add(name)
            cell = {**cell, "id": name}
        yield cell
