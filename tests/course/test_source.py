"""A lesson's source is read, or refused with its file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.course.source import SourceError, read_lesson, strip_solution
from labkit.errors import UsageError
from tests.course.conftest import SOURCE

HOLE = 'raise NotImplementedError("write your answer here")'


def read(tmp_path: Path, text: str, name: str = "00_first.py") -> None:
    path = tmp_path / name
    path.write_text(text)
    read_lesson(path)


def test_cells_keep_their_purpose(tmp_path: Path) -> None:
    path = tmp_path / "00_first.py"
    path.write_text(SOURCE)
    lesson = read_lesson(path)
    assert (lesson.number, lesson.slug) == ("00", "00_first")
    assert lesson.title == "00 Your first lesson"
    described = [(c.exercise, c.role, c.ordinal, c.points) for c in lesson.cells]
    assert described == [
        (None, "text", 1, None),
        (None, "code", 1, None),
        ("0.1", "statement", 1, None),
        ("0.1", "hole", 1, None),
        ("0.1", "check", 1, 10),
        ("0.1", "look", 1, None),
        ("0.2", "statement", 1, None),
        ("0.2", "hole", 1, None),
        ("0.2", "check", 1, 5),
        (None, "code", 2, None),
        (None, "code", 3, None),
    ]
    assert lesson.cells[9].tags == ("raises-exception",)
    assert lesson.cells[10].text == "%%timeit -n 1 -r 1\nmath.sqrt(2)"


def test_a_region_becomes_one_line_at_its_indentation() -> None:
    text = (
        "def f(x):\n    if x:\n        # BEGIN SOLUTION\n        y = 1\n\n"
        "        return y\n        # END SOLUTION\n    return 0"
    )
    assert strip_solution(text) == (
        f"def f(x):\n    if x:\n        {HOLE}\n    return 0"
    )


def test_each_region_is_replaced() -> None:
    region = "# BEGIN SOLUTION\na = 1\n# END SOLUTION"
    assert strip_solution(f"{region}\nb = 2\n{region}") == f"{HOLE}\nb = 2\n{HOLE}"


def test_text_without_a_region_is_kept() -> None:
    assert strip_solution("a = 1\n\n# SOLUTION") == "a = 1\n\n# SOLUTION"


def test_a_cell_of_25_lines_is_right_whatever_its_markers(tmp_path: Path) -> None:
    body = "\n".join(f"    x{n} = {n}" for n in range(21))
    read(tmp_path, SOURCE.replace("    return 2 * x", f"{body}\n    return 2 * x"))


# From a change of SOURCE to the rule it breaks and the line that is told.
HOLE_CELL = '# %% exercise="0.1" role="hole"'
CHECK_CELL = '# %% exercise="0.1" role="check" points=10'
LOOK_CELL = '# %% exercise="0.1" role="look"'
STATEMENT_CELL = '# %% [markdown] exercise="0.2" role="statement"'
REPLACED = [
    ("    # END SOLUTION\n\n# %% exercise=\"0.1\"", "\n# %% exercise=\"0.1\"",
     "must be closed", "    # BEGIN SOLUTION"),
    ("    # BEGIN SOLUTION\n    return 2 * x", "    return 2 * x",
     "must follow", "    # END SOLUTION"),
    ("    return 2 * x", "    # BEGIN SOLUTION\n    return 2 * x",
     "must end first", "    # BEGIN SOLUTION"),
    ("    return 2 * x\n", "", "and code", "    # END SOLUTION"),
    ("import math", "# BEGIN SOLUTION\nimport math\n# END SOLUTION",
     "a hole cell, and no other", "# %%"),
    ("    # BEGIN SOLUTION\n    return 2 * x\n    # END SOLUTION", "    return 2 * x",
     "a hole cell, and no other", HOLE_CELL),
    ('exercise="0.2" role="check" points=5', 'role="code"',
     "must have a check", STATEMENT_CELL),
    (STATEMENT_CELL, "# %% [markdown]",
     "must have a statement", HOLE_CELL.replace("0.1", "0.2")),
    ("0.2", "0.1", "its id is taken", STATEMENT_CELL.replace("0.2", "0.1")),
    ('exercise="0.2"', 'exercise="1.2"',
     'must be named "0.N"', STATEMENT_CELL.replace("0.2", "1.2")),
    ('exercise="0.2"', "exercise=2",
     "must be named in quotes", STATEMENT_CELL.replace('"0.2"', "2")),
    (LOOK_CELL, '# %% role="look"', "must name its exercise", '# %% role="look"'),
    (LOOK_CELL, '# %% role="lok"', "role must be in", '# %% role="lok"'),
    (LOOK_CELL, '# %% roles="look"', "keys must be in", '# %% roles="look"'),
    (LOOK_CELL, '# %% role="statement"', "role must be in", '# %% role="statement"'),
    (LOOK_CELL, "# %% [raw]", "must be code or markdown", "# %% [raw]"),
    (" points=10", "", "must have points", CHECK_CELL.removesuffix(" points=10")),
    ("points=10", "points=0", "a whole number", CHECK_CELL.replace("10", "0")),
    (LOOK_CELL, f"{LOOK_CELL} points=3", "must have points", f"{LOOK_CELL} points=3"),
    ("    total = x", "    total = (x", "valid Python", "    total = (x"),
    ("import math", "\n".join(["import math"] * 26), "at most 25", "# %%"),
    ("# # 00 Your first lesson", "# Your first lesson", "# Title", "# %% [markdown]"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "rule", "at"), REPLACED)
def test_a_malformed_source_is_refused_by_line(
    tmp_path: Path, old: str, new: str, rule: str, at: str
) -> None:
    assert old in SOURCE
    text = SOURCE.replace(old, new)
    with pytest.raises(SourceError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert rule in message
    told = re.search(r"00_first\.py, line (\d+):", message)
    assert told is not None
    assert text.splitlines()[int(told[1]) - 1] == at


def test_checks_must_come_after_holes(tmp_path: Path) -> None:
    before, after = (
        SOURCE.index('# %% exercise="0.1" role="hole"'),
        SOURCE.index('# %% exercise="0.1" role="look"'),
    )
    hole, check = SOURCE[before:after].split("\n# %%", 1)
    swapped = SOURCE[:before] + "# %%" + check + hole + "\n" + SOURCE[after:]
    with pytest.raises(SourceError, match="must be in the order"):
        read(tmp_path, swapped)


@pytest.mark.parametrize("text", ["", "import math\n", "x = 1\n\n" + SOURCE])
def test_text_outside_cells_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["first.py", "0_first.py", "00-first.py", "00_A.py"])
def test_a_file_name_says_the_number(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="NN_slug"):
        read(tmp_path, SOURCE, name)
