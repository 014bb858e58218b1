"""A folder of submissions: a row for every file, the right points for honest ones."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.course import grade as grading
from labkit.course.build import build
from labkit.course.grade import Limits, Row, as_csv, as_json, grade
from labkit.course.places import Course
from labkit.errors import UsageError

DOUBLE = "def double(x: int) -> int:\n    return 2 * x\n"
LIMITS = Limits(cell_s=2.5, notebook_s=60)


@pytest.fixture
def built(course: Course) -> Course:
    for item in build(course):
        item.write()
    return course


@pytest.fixture
def solved(built: Course) -> dict[str, Any]:
    return json.loads((built.solutions / "00_first.ipynb").read_text())


def hole(notebook: Any, exercise: str) -> dict[str, Any]:
    return next(
        cell for cell in notebook["cells"]
        if cell["metadata"]["labkit"]["exercise"] == exercise
        and cell["metadata"]["labkit"]["role"] == "hole"
    )  # fmt: skip


def with_answer(solved: dict[str, Any], source: str) -> dict[str, Any]:
    made = copy.deepcopy(solved)
    hole(made, "0.1")["source"] = source
    return made


def without(notebook: Any, role: str) -> Any:
    kept = [c for c in notebook["cells"] if c["metadata"]["labkit"]["role"] != role]
    return {**notebook, "cells": kept}


def stripped(notebook: Any) -> Any:
    made = copy.deepcopy(notebook)
    for number, cell in enumerate(made["cells"]):
        cell["metadata"], cell["id"] = {}, f"x{number}"
    return {**made, "metadata": {}}


def doubled(notebook: Any) -> Any:
    return {**notebook, "cells": [c for c in notebook["cells"] for _ in range(2)]}


# Name, and how it is made of the solved lesson; with the points that it must get.
NOTEBOOKS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "honest.ipynb": (lambda n: n, 15),
    "Résumé (3) final!.ipynb": (lambda n: n, 15),
    "wrong answer.ipynb": (lambda n: with_answer(n, "def double(x):\n  return x"), 5),
    "no checks.ipynb": (lambda n: without(n, "check"), 15),
    "no texts.ipynb": (lambda n: without(n, "statement"), 15),
    "no holes.ipynb": (lambda n: without(n, "hole"), 0),
    "no cells.ipynb": (lambda n: {**n, "cells": []}, 0),
    "doubled.ipynb": (doubled, 15),
    "backwards.ipynb": (lambda n: {**n, "cells": n["cells"][::-1]}, 15),
    "00_stripped.ipynb": (stripped, 15),
    "wrong kernel.ipynb": (
        lambda n: {**n, "metadata": {**n["metadata"], "kernelspec": {"name": "r"}}},
        15,
    ),
    "endless loop.ipynb": (
        lambda n: with_answer(n, "def double(x):\n    while True: pass"), 5,
    ),
    "dead kernel.ipynb": (
        lambda n: with_answer(n, "import os\ndef double(x): os._exit(3)"), 0,
    ),
    "prints.ipynb": (
        lambda n: with_answer(n, "def double(x):\n    while True: print('x' * 999)"), 5,
    ),
    "raises.ipynb": (lambda n: with_answer(n, "raise SystemExit(3)"), 5),
    "syntax.ipynb": (lambda n: with_answer(n, "def double(x:"), 5),
    "deep.ipynb": (
        lambda n: with_answer(n, "def double(x): return double(x) + 1"), 5,
    ),
    "magic.ipynb": (lambda n: with_answer(n, f"%%time\n{DOUBLE}"), 15),
}  # fmt: skip
ODD_FILES: dict[str, bytes] = {
    "empty.ipynb": b"", "broken.ipynb": b'{"cells": [', "list.ipynb": b"[]",
    "null.ipynb": b"null", "number.ipynb": b"7", "text.txt": b"I did it.",
    "latin.ipynb": b"\xe9\xff", "picture.png": b"\x89PNG\r\n\x1a\n\0\0",
    "v3.ipynb": b'{"nbformat": 3, "worksheets": [{"cells": []}]}',
    "cells.ipynb": b'{"cells": {"a": 1}}', "celltype.ipynb":
    b'{"cells": [{"cell_type": "video", "source": "", "metadata": {}}]}',
    "source.ipynb": b'{"cells": [{"cell_type": "code", "source": 7}]}',
    "metadata.ipynb": b'{"cells": [{"cell_type": "code", "source": "", '
    b'"metadata": 3}]}',
    "nested.ipynb": b'{"cells": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nan.ipynb": b'{"cells": [], "metadata": {"x": NaN}}',
    "script.py": b"print(1)", "archive.zip": b"PK\x03\x04",
    "unsaid.ipynb": b'{"cells": [], "metadata": {}, "nbformat": 4}',
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_forty_odd_files_get_forty_rows_and_honest_ones_their_points(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "came back"
    (folder / "student 7").mkdir(parents=True)
    for name, (make, _) in NOTEBOOKS.items():
        (folder / name).write_text(json.dumps(make(solved)))
    for name, content in ODD_FILES.items():
        (folder / name).write_bytes(content)
    bom = b"\xef\xbb\xbf" + json.dumps(solved).encode().replace(b"\n", b"\r\n")
    (folder / "student 7" / "with a mark.ipynb").write_bytes(bom)
    (folder / "folder.ipynb").mkdir()
    (folder / "circle.ipynb").symlink_to(folder / "circle.ipynb")
    (folder / "nowhere.ipynb").symlink_to(folder / "not there")
    (folder / ".hidden.ipynb").write_text("{}")
    rows = {row.file: row for row in grade(built, folder, limits=LIMITS)}
    assert len(rows) == len(NOTEBOOKS) + len(ODD_FILES) + 4 == 40
    wrong = {
        name: rows[name] for name, (_, points) in NOTEBOOKS.items()
        if rows[name].total != points or rows[name].status != "graded"
    }  # fmt: skip
    assert wrong == {}
    odd = [row for name, row in rows.items() if name not in NOTEBOOKS]
    assert all(row.total == 0 and row.note for row in odd if "mark" not in row.file)
    assert grading.GRADING not in os.environ


def test_a_file_with_a_mark_of_its_encoding_is_read(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "00_x.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(solved).encode())
    [row] = grade(built, _only(path), limits=LIMITS)
    assert row.total == 15


def _only(path: Path) -> Path:
    folder = path.parent / "only"
    folder.mkdir()
    path.rename(folder / path.name)
    return folder


@pytest.mark.slow
def test_a_notebook_that_takes_too_long_is_stopped(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "slow.ipynb"
    path.write_text(json.dumps(with_answer(solved, "import time\ntime.sleep(60)")))
    limits = Limits(cell_s=50, notebook_s=4)
    [row] = grade(built, _only(path), limits=limits)
    assert (row.status, row.total) == ("too long", 0)
    assert "the limit of a notebook" in row.note


def test_a_folder_that_is_none_and_a_lesson_that_is_none(
    built: Course, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is none"):
        list(grade(built, tmp_path / "no", limits=LIMITS))
    with pytest.raises(UsageError, match="'77' was asked for"):
        list(grade(built, tmp_path, lesson="77", limits=LIMITS))


ROWS = [
    Row("a.ipynb", "graded", "00", {"0.1": 10, "0.2": 0}, {"0.1": 10, "0.2": 5}),
    Row("=cmd()", "unreadable", note='it said "no", twice'),
]


def test_rows_as_a_table_and_as_data() -> None:
    head, first, second = csv.reader(io.StringIO(as_csv(ROWS)))
    assert head == ["file", "lesson", "status", "points", "0.1", "0.2", "note"]
    assert first == ["a.ipynb", "00", "graded", "10", "10", "0", ""]
    assert second[0] == "'=cmd()"
    assert second[-1] == 'it said "no", twice'
    told = json.loads(as_json(ROWS))
    assert "can be forged" in told["note"]
    assert told["rows"][0]["out_of"] == {"0.1": 10, "0.2": 5}
