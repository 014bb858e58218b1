"""A learner's answers in an edition, whatever became of the notebook in between."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from labkit.course.answers import rebuild, submission
from labkit.course.build import build
from labkit.course.claims import defined
from labkit.course.notebook import read_notebook
from labkit.course.places import Course
from labkit.course.source import HOLE_LINE

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


def with_own(notebook: Any, role: str, *cells: dict[str, Any]) -> Any:
    """The notebook with cells behind exercise 0.1's cell of a role."""
    made = copy.deepcopy(notebook)
    at = made["cells"].index(find(made, "0.1", role)) + 1
    made["cells"][at:at] = cells
    return made


def copied(notebook: Any, source: str, role: str = "hole") -> dict[str, Any]:
    """A cell as an editor pastes it, its metadata included, with another text."""
    return {**copy.deepcopy(find(notebook, "0.1", role)), "id": "c", "source": source}


def at_hole(notebook: Any, exercise: str = "0.1") -> int:
    return notebook["cells"].index(find(notebook, exercise, "hole"))


def test_a_copied_hole_that_answers_another_exercise_is_that_ones_answer(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    find(learners, "0.2", "hole")["source"] = find(edition, "0.2", "hole")["source"]
    made = with_own(learners, "look", copied(learners, TRIPLE))
    rebuilt = rebuild(edition, made)
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]
    assert rebuilt.num_added == 0


@pytest.mark.parametrize("attempt", ["def double(x:", "1 / 0", "def double(x): x +"])
@pytest.mark.parametrize("role", ["statement", "hole", "look"])
def test_a_broken_copy_does_not_break_the_answer(
    edition: dict[str, Any], learners: dict[str, Any], attempt: str, role: str
) -> None:
    made = with_own(learners, role, copied(learners, attempt))
    source = holes(rebuild(edition, made).notebook)[0]
    if attempt.startswith("def") and role != "statement":
        # The last one that was written counts, right or not.
        assert source == attempt
    else:
        assert source.startswith(DOUBLE) or source.endswith(DOUBLE)


def test_older_attempts_come_before_the_hole(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    older = copied(learners, "def double(x): return x")
    pristine = copied(learners, find(edition, "0.1", "hole")["source"])
    made = with_own(learners, "statement", pristine, older)
    rebuilt = rebuild(edition, made)
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]
    assert (
        rebuilt.notebook["cells"][at_hole(rebuilt.notebook) - 1]["source"]
        == (older["source"])
    )
    again = rebuild(edition, rebuilt.notebook)
    assert sources(again.notebook) == sources(rebuilt.notebook)


def test_an_experiment_with_the_same_name_is_not_the_answer(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    made = with_own(learners, "look", own("def double(x): return 0  # what if?"))
    rebuilt = rebuild(edition, made)
    assert holes(rebuilt.notebook) == [DOUBLE, TRIPLE]
    assert sources(rebuilt.notebook) == sources(made)


@pytest.mark.parametrize("role", ["hole", "check", "look"])
def test_an_answer_below_an_untouched_hole_counts(
    edition: dict[str, Any], role: str
) -> None:
    magic = "%%time\n" + DOUBLE
    made = with_own(edition, role, own("half = 2"), own(magic), own("double(3)"))
    rebuilt = rebuild(edition, made)
    assert holes(rebuilt.notebook)[0] == magic
    mine = [
        s for s in sources(rebuilt.notebook) if s in ("half = 2", "double(3)", magic)
    ]
    assert mine == ["half = 2", magic, "double(3)"] or role != "hole"


def test_both_answers_in_one_cell(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    both = f"{DOUBLE}\n\n{TRIPLE}"
    find(learners, "0.1", "hole")["source"] = both
    find(learners, "0.2", "hole")["source"] = find(edition, "0.2", "hole")["source"]
    assert holes(rebuild(edition, learners).notebook) == [both, both]


def test_a_hole_of_an_older_edition_is_no_answer(edition: dict[str, Any]) -> None:
    older = copy.deepcopy(edition)
    hole = find(older, "0.1", "hole")
    hole["source"] = hole["source"].replace("Twice x.", "Two times x.  # by hand")
    another = find(older, "0.2", "hole")
    another["source"] = f'def triple(number):\n    """x"""\n    {HOLE_LINE}'
    rebuilt = rebuild(edition, older)
    assert holes(rebuilt.notebook) == holes(edition)
    assert rebuilt.answered == ()
    assert rebuilt.num_added == 0


def test_an_answer_above_the_line_that_raises_is_one(edition: dict[str, Any]) -> None:
    made = copy.deepcopy(edition)
    source = f"def double(x):\n    return 2 * x\n    {HOLE_LINE}"
    find(made, "0.1", "hole")["source"] = source
    assert holes(rebuild(edition, made).notebook)[0] == source


def test_a_copy_of_a_lessons_cell_with_another_text_is_the_learners_own(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    look, check = copied(learners, "double(5)", "look"), copied(learners, "1", "check")
    same = copied(learners, find(edition, "0.1", "look")["source"], "look")
    made = with_own(learners, "look", look, check, same)
    rebuilt = rebuild(edition, made)
    assert rebuilt.num_added == 2
    at = rebuilt.notebook["cells"].index(find(rebuilt.notebook, "0.1", "look"))
    new = rebuilt.notebook["cells"][at + 1 : at + 3]
    assert [cell["source"] for cell in new] == ["double(5)", "1"]
    assert all("labkit" not in cell["metadata"] for cell in new)
    assert all("deletable" not in cell["metadata"] for cell in new)


def test_a_hole_that_became_a_text_is_still_the_answer(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    find(learners, "0.1", "hole")["cell_type"] = "markdown"
    rebuilt = rebuild(edition, learners).notebook
    assert holes(rebuilt)[0] == DOUBLE
    assert find(rebuilt, "0.1", "hole")["cell_type"] == "code"


GUESSES = """
# %% role="predict"
predict("the first", ...)

# %% role="predict"
predict("the second", ...)
"""


def test_a_guess_stays_with_its_question(course: Course) -> None:
    from tests.course.conftest import SOURCE

    path = course.solutions / "00_first.py"
    editions = []
    for text in (GUESSES, GUESSES.replace("first", 'zeroth", ...)\npredict("first')):
        path.write_text(SOURCE + text)
        for item in build(course):
            item.write()
        editions.append(read_notebook(course.lessons / "00_first.ipynb"))
    learners = copy.deepcopy(editions[0])
    learners["cells"][-2]["source"] = 'predict("the first", 1)'
    learners["cells"][-1]["source"] = "predict('the second', 2)  # sure"
    assert sources(rebuild(editions[0], learners).notebook) == sources(learners)
    rebuilt = rebuild(editions[1], learners)
    assert sources(rebuilt.notebook)[-2] == editions[1]["cells"][-2]["source"]
    assert sources(rebuilt.notebook)[-1] == "predict('the second', 2)  # sure"


def test_texts_whose_numbers_shifted_keep_what_followed_them(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    newer = copy.deepcopy(edition)
    for cell in newer["cells"]:
        labkit = cell["metadata"]["labkit"]
        if labkit["role"] == "code":
            labkit["ordinal"] += 1
            cell["id"] = f"lab00-x-code-{labkit['ordinal']}"
    code = copy.deepcopy(newer["cells"][1])
    code["metadata"]["labkit"]["ordinal"], code["id"] = 1, "lab00-x-code-1"
    code["source"] = "import sys"
    newer["cells"].insert(1, code)
    learners["cells"].insert(2, own("after_math = 1"))
    rebuilt = rebuild(newer, learners).notebook
    assert sources(rebuilt)[1:4] == ["import sys", "import math", "after_math = 1"]


def test_a_submission_has_the_learners_code_and_nothing_else(
    edition: dict[str, Any], learners: dict[str, Any]
) -> None:
    tagged = {**own("# NBVAL_SKIP\nhelp_me = 1"), "outputs": [{"x": 1}]}
    tagged["metadata"] = {"tags": ["nbval-skip"]}
    look = find(learners, "0.1", "look")
    look["source"] = "import sys"
    find(learners, "0.1", "hole")["source"] = f"#  # NBVAL_SKIP\n{DOUBLE}"
    find(learners, "0.1", "check")["source"] = "pass"
    made = with_own(learners, "hole", tagged, own("a note", "markdown"))
    graded = submission(edition, made).notebook
    assert "a note" not in sources(graded)
    at = at_hole(graded)
    assert sources(graded)[at : at + 5] == [
        f"#  #  not NBVAL_SKIP\n{DOUBLE}", "#  not NBVAL_SKIP\nhelp_me = 1",
        find(edition, "0.1", "check")["source"], find(edition, "0.1", "look")["source"],
        "import sys",
    ]  # fmt: skip
    bare = next(cell for cell in graded["cells"] if not cell["metadata"])
    assert bare["outputs"] == []
    assert graded["metadata"] == edition["metadata"]


@pytest.mark.parametrize(
    "source",
    ["(" * 5000, "-" * 300_000 + "1", "1+" * 50_000 + "1", "x" * 2_000_000, "\x00",
     "def double(x):\n" + "".join(f"{' ' * n}if x:\n" for n in range(1, 200)),
     '"\\d"\ndef double(x): return x is 3', "\udc80"],
    ids=range(8),
)  # fmt: skip
@pytest.mark.parametrize("ending", ["", f"\n{HOLE_LINE}"])
def test_no_text_is_too_odd_to_be_placed(
    edition: dict[str, Any], learners: dict[str, Any], source: str, ending: str
) -> None:
    find(learners, "0.1", "hole")["source"] = source + ending
    learners["cells"].append(own(source + ending))
    rebuilt = rebuild(edition, learners)
    assert holes(rebuilt.notebook) == [source + ending, TRIPLE]


ROOT = Path(__file__).resolve().parents[2]
REAL = sorted(path.stem for path in (ROOT / "lessons").glob("*.ipynb"))


def bare(cells: list[Any]) -> list[Any]:
    return [{**cell, "metadata": {}, "id": f"x{n}"} for n, cell in enumerate(cells)]


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("seed", range(4))
def test_answers_of_real_lessons_are_found_again(name: str, seed: int) -> None:
    edition = read_notebook(ROOT / "lessons" / f"{name}.ipynb")
    solved = read_notebook(ROOT / "solutions" / f"{name}.ipynb")
    draw = random.Random(seed)
    pasted = draw.sample(edition["cells"], 5)
    cells = [*copy.deepcopy(solved["cells"]), *copy.deepcopy(pasted)]
    draw.shuffle(cells)
    for given in (cells, bare(cells)):
        rebuilt = rebuild(edition, {"cells": given, "metadata": {}})
        assert sources(rebuilt.notebook) == sources(solved)
        assert rebuilt.num_added == 0
