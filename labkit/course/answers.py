"""Puts a learner's answers into an edition of a lesson: what update and grading share.

Everything of the result is the edition's, but for what a learner writes: the holes, the
guesses, and cells of their own. `claims` tells which cell is which. For each hole,

- a cell that is as it was handed out, or empty, is no answer;
- of the others that are marked as this hole, the last that defines its function is the
  answer, else the last one; parts of a cell that was split, which stand next to each
  other, are joined where that makes valid Python;
- where none is marked so, the last unmarked cell that defines the function is;
- the rest stay the learner's own: older attempts run before the hole, so that they
  never come after the answer that they came before.

A cell of the learner's own stays behind the cell that it followed. A copy of a lesson's
cell is the learner's own once it says something else. A lesson's cell that the learner
has changed is the edition's again; a submission keeps the change, to be run after it,
since an answer may need an import that was added there.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from labkit.course.claims import (
    Cell,
    Claim,
    Edition,
    Key,
    parsed,
    question,
    unanswered,
)
from labkit.course.source import HOLE_LINE

Notebook: TypeAlias = Mapping[str, Any]
_OURS = ("labkit", "nbgrader", "deletable", "editable")
_NBVAL = re.compile(r"^([ \t]*#[#\s]*)(?=NBVAL_|PYTEST_VALIDATE)", re.M)
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Rebuilt:
    """An edition with a learner's answers.

    Attributes:
        notebook: It, without outputs where a cell has changed.
        answered: The exercises whose holes hold something of the learner's.
        num_added: Cells of the learner's own.
        num_replaced: Cells of the lesson that say something else than they did.
    """

    notebook: dict[str, Any]
    answered: tuple[str, ...]
    num_added: int
    num_replaced: int


def rebuild(edition: Notebook, learners: Notebook) -> Rebuilt:
    """An edition with the answers, guesses and added cells of a learner's notebook.

    Args:
        edition: The lesson as it is handed out.
        learners: As `read_notebook` reads it: of whatever edition, with cells deleted,
            doubled, split or moved.
    """
    placed = _place(Edition.of(edition), learners["cells"])
    return _rebuilt(edition, placed, _updated_cells(placed))


def submission(edition: Notebook, learners: Notebook) -> Rebuilt:
    """An edition with a learner's code only, to be graded.

    Nothing that a learner wrote beside the code is in it: no tags, no outputs, no
    comments that nbval obeys, no kernel's name.
    """
    placed = _place(Edition.of(edition), learners["cells"])
    return _rebuilt(edition, placed, _graded_cells(placed))


def _rebuilt(edition: Notebook, placed: _Placed, cells: Iterator[Cell]) -> Rebuilt:
    notebook = {**copy.deepcopy(dict(edition)), "cells": list(_named(list(cells)))}
    answered = {
        key.exercise: None for key in placed.answers
        if key.role == "hole" and key.exercise is not None
    }  # fmt: skip
    num_added = sum(map(len, placed.added.values()))
    return Rebuilt(notebook, tuple(answered), num_added, len(placed.replaced))


def _updated_cells(placed: _Placed) -> Iterator[Cell]:
    for key, cell in placed.cells():
        if key is not None:
            yield _with_outputs(cell, placed.shown[key])
        else:
            kept = {k: v for k, v in cell["metadata"].items() if k not in _OURS}
            yield {**cell, "metadata": kept}


def _graded_cells(placed: _Placed) -> Iterator[Cell]:
    for key, cell in placed.cells():
        own = cell
        if key is not None:
            yield {**cell, "source": _unmarked(cell)} if key.role == "hole" else cell
            own = placed.replaced.get(key) if key.role in ("code", "look") else None
        if own is not None and own["cell_type"] == "code":
            yield {
                "cell_type": "code", "metadata": {}, "outputs": [],
                "execution_count": None, "source": _unmarked(own),
            }  # fmt: skip


def _unmarked(cell: Cell) -> str:
    """What a cell says, without what would tell nbval how to judge it."""
    return _NBVAL.sub(r"\1 not ", cell["source"])


@dataclass
class _Placed:
    """Where everything of a learner's goes in an edition."""

    edition: Edition
    answers: dict[Key, str] = field(default_factory=dict)
    added: defaultdict[Key | None, list[Cell]] = field(
        default_factory=lambda: defaultdict(list)
    )
    replaced: dict[Key, Cell] = field(default_factory=dict)
    shown: defaultdict[Key, list[Cell]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def cells(self) -> Iterator[tuple[Key | None, Cell]]:
        """The cells in order; the learner's own have no key."""
        yield from ((None, cell) for cell in self.added[None])
        for key, cell in self.edition.cells.items():
            source = self.answers.get(key, cell["source"])
            yield key, {**copy.deepcopy(cell), "source": source}
            yield from ((None, own) for own in self.added[key])


@dataclass(frozen=True)
class _Answer:
    """What goes into a hole, and the numbers of the cells that it came from."""

    source: str
    parts: tuple[int, ...]


def _place(edition: Edition, cells: Sequence[Mapping[str, Any]]) -> _Placed:
    claims = [edition.claim(cell) for cell in cells]
    found = {hole: _answer(edition, hole, claims) for hole in edition.holes}
    answers = {hole: answer for hole, answer in found.items() if answer is not None}
    placed = _Placed(edition)
    placed.answers |= {hole: answer.source for hole, answer in answers.items()}
    used = {part: hole for hole, answer in answers.items() for part in answer.parts}
    originals = _originals(edition, claims)
    before: Key | None = None
    for number, claim in enumerate(claims):
        if number in used or number in originals or claim.told in edition.holes:
            before = _behind(edition, claim, number, before, answers, used)
        if claim.told is not None:
            placed.shown[claim.told].append(claim.cell)
        if number in used:
            continue
        if _is_own(edition, claim, number in originals, placed.answers):
            placed.added[before].append(claim.cell)
        elif number in originals:
            _keep_guess_or_change(placed, claim)
    return placed


def _answer(edition: Edition, hole: Key, claims: Sequence[Claim]) -> _Answer | None:
    """What the learner wrote into a hole; None where nothing is."""
    pristine = edition.cells[hole]["source"]
    written = [
        number for number, claim in enumerate(claims)
        if (claim.told == hole or hole in claim.holes)
        and not unanswered(claim.text, pristine)
    ]  # fmt: skip
    # One that an editor made a text of counts only where there is no other.
    written = [n for n in written if claims[n].is_code] or written
    marked = [n for n in written if claims[n].told == hole]
    definers = [n for n in marked if hole in claims[n].holes]
    candidates = definers or [n for n in written if n not in marked] or marked
    return _joined(claims, hole, candidates[-1], pristine) if candidates else None


def _joined(
    claims: Sequence[Claim], hole: Key, at: int, pristine: str
) -> _Answer | None:
    """One cell, with those beside it that were split from it."""
    first = end = at
    while first > 0 and _is_part(claims[first - 1], hole):
        first -= 1
    while end + 1 < len(claims) and _is_part(claims[end + 1], hole):
        end += 1
    parts, whole = range(at, at + 1), claims[at].cell["source"]
    for more in (range(first, end + 1), range(at, end + 1), range(first, at + 1)):
        joined = "\n".join(claims[number].text for number in more)
        if len(more) > 1 and parsed(joined) is not None:
            parts, whole = more, joined
            break
    return None if unanswered(whole, pristine) else _Answer(whole, tuple(parts))


def _is_part(claim: Claim, hole: Key) -> bool:
    """Whether a cell may be a piece of the one beside it that answers a hole."""
    if not claim.is_code or hole in claim.holes:
        return False
    return claim.told == hole or (claim.told is None and claim.text[:1].isspace())


def _originals(edition: Edition, claims: Sequence[Claim]) -> set[int]:
    """Of the cells that stand for one of the lesson's, that which is no copy."""
    found: dict[Key, int] = {}
    for number, claim in enumerate(claims):
        if claim.told is None or claim.told not in edition.cells:
            continue
        same_id = claim.cell.get("id") == edition.cells[claim.told]["id"]
        if claim.told not in found or same_id:
            found[claim.told] = number
    return set(found.values())


def _behind(
    edition: Edition,
    claim: Claim,
    number: int,
    before: Key | None,
    answers: Mapping[Key, _Answer],
    used: Mapping[int, Key],
) -> Key | None:
    """Which of the lesson's cells the learner's own cells come after from here on."""
    hole = used.get(number)
    if hole is not None and claim.told != hole:
        # An answer from elsewhere leaves the cells around it where they are.
        return hole if before in (hole, edition.before[hole]) else before
    if claim.told is None or claim.told not in edition.cells:
        return before
    answer = answers.get(claim.told)
    is_early = answer is not None and number < min(answer.parts)
    return edition.before[claim.told] if is_early else claim.told


def _is_own(
    edition: Edition, claim: Claim, is_original: bool, answers: Mapping[Key, str]
) -> bool:
    """Whether a cell that is no answer is the learner's own, and is to be kept."""
    told = claim.told
    if told is None:
        return True
    if told.role == "hole":
        pristine = edition.cells[told]["source"] if told in edition.cells else HOLE_LINE
        is_copy = claim.text == answers.get(told, "").strip()
        return not is_copy and not unanswered(claim.text, pristine)
    is_copy = told in edition.cells and not is_original and told.role != "predict"
    return is_copy and not edition.says(told, claim.cell)


def _keep_guess_or_change(placed: _Placed, claim: Claim) -> None:
    key, text = claim.told, claim.text
    if key is None or placed.edition.says(key, claim.cell):
        return
    asked = question(placed.edition.cells[key]["source"])
    if key.role == "predict" and question(text) == asked and claim.is_code:
        placed.answers[key] = claim.cell["source"]
    else:
        placed.replaced[key] = claim.cell


def _with_outputs(cell: Cell, claimants: Sequence[Cell]) -> Cell:
    """The cell with what it showed, where it is as it was run."""
    if cell["cell_type"] != "code":
        return cell
    for old in claimants:
        if old["source"] == cell["source"] and old["cell_type"] == "code":
            count, outputs = old.get("execution_count"), old.get("outputs")
            return {**cell, "execution_count": count, "outputs": outputs or []}
    return cell


def _named(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Every cell with an id of its own, the edition's as they were."""
    taken = {cell["id"] for cell in cells if cell["metadata"].get("labkit")}
    number = 0
    for cell in cells:
        if not cell["metadata"].get("labkit"):
            name = cell.get("id")
            while not isinstance(name, str) or name in taken or not _ID.fullmatch(name):
                number += 1
                name = f"own-{number}"
            taken.add(name)
            cell = {**cell, "id": name}
        yield cell
