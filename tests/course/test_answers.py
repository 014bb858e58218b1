"""A learner's answers in an edition, whatever became of the notebook in between."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from labkit.course.answers import rebuild
from labkit.course.claims import defined
from labkit.course.build import build
from labkit.course.check import read_notebook
from labkit.course.places import Course

DOUBLE = "def double(x: int) -> int:\n    return x + x"
TRIPLE = "def triple(x: int) -> int:\n    return x + x + x"


@pytest.fixture
def edition(course: Course) -> dict[str, Any]:
    for item in build(course):
        item.write()
    return read_notebook(course.lessons / "00_first.ipynb")


def find(notebook: Any, exercise: str, role: str) -> dict[str, Any]:
    return next(
        cell for cell in notebook["cells"]
        if cell["metadata"].get("labkit", {}).get("exercise") == exercise
        and cell["metadata"]["labkit"]["role"] == role
    )  # fmt: skip


@pytest.fixture
def learners(edition: dict[str, Any]) -> dict[str, Any]:
    """The edition with both exercises answered."""
    made = copy.deepcopy(edition)
    find(made, "0.1", "hole")["source"] = DOUBLE
    find(made, "0.2", "hole")["source"] = TRIPLE
    return made


def holes(notebook: Any) -> list[str]:
    return [find(notebook, name, "hole")["source"] for name in ("0.1", "0.2")]


def sources(notebook: Any) -> list[str]:
    return [cell["source"] for cell in notebook["cells"]]


def own(source: str, kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "id": "mine", "metadata": {}, "source": source}


def test_answers_go_into_the_holes_and_nothing_else_changes(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    rebuilt = rebuild(edition, learners)
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]
    assert rebuilt.answered == ("0.1", "0.2")
    assert sources(rebuilt.notebook) == sources(learners)
    assert [c["id"] for c in rebuilt.notebook["cells"]] == [
        c["id"] for c in edition["cells"]
    ]


def test_an_untouched_lesson_comes_back_as_it_is(edition: dict[str, Any]) -> None:
    rebuilt = rebuild(edition, copy.deepcopy(edition))
    assert rebuilt.notebook["cells"] == edition["cells"]
    assert (rebuilt.answered, rebuilt.num_added) == ((), 0)


def test_checks_and_texts_are_always_the_editions(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    find(learners, "0.1", "check")["source"] = "pass"
    find(learners, "0.1", "check")["metadata"]["tags"] = ["raises-exception"]
    find(learners, "0.1", "statement")["source"] = "easy"
    rebuilt = rebuild(edition, learners).notebook
    for role in ("check", "statement"):
        assert find(rebuilt, "0.1", role) == find(edition, "0.1", role)


@pytest.mark.parametrize("by", ["id", "grade_id", "function"])
def test_an_answer_is_found_by_whatever_is_left_to_tell_it(
    edition: dict[str, Any], learners: dict[str, Any], by: str
) -> None:
    for number, cell in enumerate(learners["cells"]):
        cell["metadata"].pop("labkit")
        if by != "grade_id":
            cell["metadata"] = {}
        if by != "id":
            cell["id"] = f"another-{number}"
    rebuilt = rebuild(edition, learners)
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]
    assert rebuilt.num_added == 0


def test_deleted_cells_come_back(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    kept = [find(learners, "0.2", "hole")]
    rebuilt = rebuild(edition, {**learners, "cells": kept})
    pristine = find(edition, "0.1", "hole")["source"]
    assert holes(rebuilt.notebook) == [pristine, TRIPLE]
    assert rebuilt.answered == ("0.2",)
    assert len(rebuilt.notebook["cells"]) == len(edition["cells"])


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_cells_does_not_matter(
    edition: dict[str, Any], learners: dict[str, Any], seed: int
) -> None:
    random.Random(seed).shuffle(learners["cells"])
    assert holes(rebuild(edition, learners).notebook) == [DOUBLE, TRIPLE]


def test_of_copies_the_last_answered_one_counts(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    hole = find(learners, "0.1", "hole")
    better = {**copy.deepcopy(hole), "source": DOUBLE.replace("x + x", "2 * x")}
    again = copy.deepcopy(find(edition, "0.1", "hole"))
    at = learners["cells"].index(hole)
    learners["cells"][at + 1 : at + 1] = [better, again]
    assert holes(rebuild(edition, learners).notebook)[0] == better["source"]


@pytest.mark.parametrize("at_line", [1, 2])
def test_parts_of_a_split_cell_are_joined(
    edition: dict[str, Any], learners: dict[str, Any], at_line: int
) -> None:
    whole = "import math\n" + DOUBLE
    lines = whole.split("\n")
    hole = find(learners, "0.1", "hole")
    second = copy.deepcopy(hole)
    hole["source"] = "\n".join(lines[:at_line])
    second["source"] = "\n".join(lines[at_line:])
    learners["cells"].insert(learners["cells"].index(hole) + 1, second)
    assert holes(rebuild(edition, learners).notebook)[0] == whole


def test_added_cells_stay_behind_the_cell_they_followed(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    learners["cells"].insert(0, own("first = 1"))
    at = learners["cells"].index(find(learners, "0.2", "statement"))
    learners["cells"][at + 1 : at + 1] = [own("one = 1"), own("*two*", "markdown")]
    rebuilt = rebuild(edition, learners)
    assert rebuilt.num_added == 3
    assert sources(rebuilt.notebook) == sources(learners)
    ids = [cell["id"] for cell in rebuilt.notebook["cells"]]
    assert len(set(ids)) == len(ids)


def test_what_a_cell_showed_stays_while_it_says_the_same(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    shown = [{"output_type": "stream", "name": "stdout", "text": "twice 42\n"}]
    find(learners, "0.1", "look").update(outputs=shown, execution_count=7)
    find(learners, "0.1", "check").update(source="pass", outputs=shown)
    rebuilt = rebuild(edition, learners).notebook
    assert find(rebuilt, "0.1", "look")["outputs"] == shown
    assert find(rebuilt, "0.1", "look")["execution_count"] == 7
    assert find(rebuilt, "0.1", "check")["outputs"] == []


@pytest.mark.parametrize(
    "metadata",
    [{"labkit": 3}, {"labkit": {"exercise": ["x"], "role": {}, "ordinal": None}},
     {"nbgrader": "x"}, {"nbgrader": {"grade_id": 5}}],
)  # fmt: skip
def test_odd_metadata_claim_nothing(
    edition: dict[str, Any], learners: dict[str, Any], metadata: dict[str, Any]
) -> None:
    learners["cells"].append({**own("odd = 1"), "metadata": metadata})
    rebuilt = rebuild(edition, learners)
    assert rebuilt.num_added == 1
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]


@pytest.mark.parametrize(
    ("source", "names"),
    [("def a(): pass\nclass B: pass", ("a", "B")), ("def (", ()), ("\x00", ()),
     ("%%ranks 0\nx = 1", ()), ("(" * 5000, ())],
)  # fmt: skip
def test_what_a_cell_defines(source: str, names: tuple[str, ...]) -> None:
    assert defined(source) == names
