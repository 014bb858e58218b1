"""A folder of submissions: a row for every file, the right points for honest ones."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.checks.progress import GRADING
from labkit.course.build import build
from labkit.course.grade import grade
from labkit.course.gradebook import Row
from labkit.course.places import Course
from labkit.course.trial import Limits
from labkit.errors import UsageError

DOUBLE = "def double(x: int) -> int:\n    return 2 * x\n"
LIMITS = Limits(cell_s=2, notebook_s=60, file_bytes=1 << 20)


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


def doubled(notebook: Any) -> Any:
    return {**notebook, "cells": [c for c in notebook["cells"] for _ in range(2)]}


def no_metadata(notebook: Any) -> Any:
    """Only the words are left, as where a notebook went through other editors."""
    made = copy.deepcopy(notebook)
    for number, cell in enumerate(made["cells"]):
        cell["metadata"] = {}
        cell["id"] = f"x{number}"
    return {**made, "metadata": {}}


def shuffled(notebook: Any) -> Any:
    cells = list(notebook["cells"])
    random.Random(3).shuffle(cells)
    return {**notebook, "cells": cells}


def split(notebook: Any) -> Any:
    """The first hole cut within its function, as an editor does it."""
    made = copy.deepcopy(notebook)
    first = hole(made, "0.1")
    lines = "".join(first["source"]).splitlines(keepends=True)
    second = {**copy.deepcopy(first), "id": "second", "source": lines[2:]}
    first["source"] = lines[:2]
    made["cells"].insert(made["cells"].index(first) + 1, second)
    return made


def with_helper(notebook: Any) -> Any:
    """The answer needs an added cell, and an import in one of the lesson's."""
    made = with_answer(notebook, "def double(x): return twice(x) if cmath else 0")
    at = made["cells"].index(hole(made, "0.1"))
    helper = {"cell_type": "code", "source": "def twice(x): return 2 * x",
              "metadata": {}, "outputs": [], "execution_count": None}  # fmt: skip
    made["cells"].insert(at, helper)
    made["cells"][1]["source"] = "import math, cmath"
    return made


def cheating(notebook: Any) -> Any:
    """A wrong answer, and checks that would pass."""
    made = with_answer(notebook, "def double(x): return x")
    for cell in made["cells"]:
        if cell["metadata"]["labkit"]["role"] == "check":
            cell["source"] = "pass"
            cell["metadata"]["tags"] = ["raises-exception", "nbval-skip"]
            cell["metadata"]["nbgrader"]["points"] = 1000
    return made


IGNORES = """import signal
def double(x):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True: pass"""
LEAVES = """import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                 start_new_session=True)
def double(x): return 2 * x"""
FILLS = """def double(x):
    with open("large", "wb") as file:
        while True: file.write(bytes(1 << 16))"""
SEGFAULTS = "import ctypes\ndef double(x): ctypes.string_at(0)"
KILLS = "import os, signal\ndef double(x): os.kill(os.getppid(), signal.SIGKILL)"
ANSWER = {
    "wrong answer": ("def double(x):\n  return x", 5),
    "endless loop": ("def double(x):\n    while True: pass", 5),
    "ignores interrupts": (IGNORES, 0),
    "dead kernel": ("import os\ndef double(x): os._exit(3)", 0),
    "segfaults": (SEGFAULTS, 0),
    "kills its parent": (KILLS, 0),
    "prints": ("def double(x):\n    while True: print('x' * 999)", 5),
    "large output": ("def double(x):\n    print('x' * 30_000_000); return 2 * x", 15),
    "fills the disk": (FILLS, 5),
    "leaves a process": (LEAVES, 15),
    "raises": ("raise SystemExit(3)", 5),
    "syntax": ("def double(x:", 5),
    "deep": ("def double(x): return double(x) + 1", 5),
    "magic": (f"%%time\n{DOUBLE}", 15),
    "asks": ("def double(x): return input('?')", 5),
}
# Name, and how it is made of the solved lesson; with the points that it must get.
NOTEBOOKS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "honest.ipynb": (lambda n: n, 15),
    "Résumé (3) final!.ipynb": (lambda n: n, 15),
    "no checks.ipynb": (lambda n: without(n, "check"), 15),
    "no holes.ipynb": (lambda n: without(n, "hole"), 0),
    "no cells.ipynb": (lambda n: {**n, "cells": []}, 0),
    "doubled.ipynb": (doubled, 15),
    "split.ipynb": (split, 15),
    "shuffled.ipynb": (shuffled, 15),
    "renamed, no metadata.ipynb": (no_metadata, 15),
    "helper.ipynb": (with_helper, 15),
    "cheating.ipynb": (cheating, 5),
    "wrong kernel.ipynb": (
        lambda n: {**n, "metadata": {**n["metadata"], "kernelspec": {"name": "r"}}},
        15,
    ),
    **{
        f"{name}.ipynb": (lambda n, source=source: with_answer(n, source), points)
        for name, (source, points) in ANSWER.items()
    },
}
CUT_SHORT = {"dead kernel.ipynb", "segfaults.ipynb", "ignores interrupts.ipynb",
             "kills its parent.ipynb"}  # fmt: skip
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


# Each takes two seconds at least; `make test-all` runs these too.
LEFT_OUT = {
    "asks.ipynb", "cheating.ipynb", "deep.ipynb", "doubled.ipynb", "magic.ipynb",
    "no checks.ipynb", "no holes.ipynb", "prints.ipynb", "raises.ipynb",
    "segfaults.ipynb", "syntax.ipynb", "wrong kernel.ipynb",
}  # fmt: skip
MOST = sorted(NOTEBOOKS.keys() - LEFT_OUT)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "names", [MOST, pytest.param(list(NOTEBOOKS), marks=pytest.mark.grid)], ids=len
)
def test_odd_files_get_a_row_each_and_honest_ones_their_points(
    built: Course, solved: dict[str, Any], tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "came back"
    (folder / "student 7").mkdir(parents=True)
    (folder / "student 8").mkdir()
    for name in names:
        (folder / name).write_text(json.dumps(NOTEBOOKS[name][0](solved)))
    for name, content in ODD_FILES.items():
        (folder / name).write_bytes(content)
    accented = with_answer(solved, f"# née\n{DOUBLE}")
    latin = json.dumps(accented, ensure_ascii=False).encode("latin-1")
    (folder / "student 7" / "latin.ipynb").write_bytes(latin)
    (folder / "folder.ipynb").mkdir()
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "circle.ipynb").symlink_to(folder / "circle.ipynb")
    (folder / "endless.ipynb").symlink_to("/dev/zero")
    (folder / ".hidden.ipynb").write_text("{}")
    before = set(psutil.Process().children(recursive=True))
    rows = {row.file: row for row in grade(built, folder, limits=LIMITS)}
    assert len(rows) == len(names) + len(ODD_FILES) + 7 >= 40
    wrong = {
        name: rows[name] for name in names
        if (rows[name].points, rows[name].out_of) != (NOTEBOOKS[name][1], 15)
        or rows[name].status != ("cut short" if name in CUT_SHORT else "graded")
    }  # fmt: skip
    assert wrong == {}
    assert rows["student 7/latin.ipynb"].points == 15
    assert rows["student 8"].note == "an empty folder"
    odd = rows.keys() - NOTEBOOKS.keys() - {"student 7/latin.ipynb"}
    assert all(rows[name].note and not rows[name].exercises for name in odd)
    assert GRADING not in os.environ
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not [p for p in psutil.process_iter() if "time.sleep(600)" in command(p)]


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _only(path: Path) -> Path:
    folder = path.parent / "only"
    folder.mkdir()
    path.rename(folder / path.name)
    return folder


@pytest.mark.slow
def test_a_notebook_that_takes_too_long_keeps_what_it_earned(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "slow.ipynb"
    hole(solved, "0.2")["source"] = "import time\ntime.sleep(60)"
    path.write_text(json.dumps(solved))
    limits = Limits(cell_s=50, notebook_s=8)
    [row] = grade(built, _only(path), limits=limits)
    assert (row.status, row.points, row.out_of) == ("cut short", 10, 15)
    assert row.note == "stopped after 8 s, the limit of a notebook"


@pytest.mark.slow
def test_a_submission_knows_that_it_is_graded_and_leaves_nothing_for_the_next(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    spies = (
        "import os\n"
        f"assert os.environ[{GRADING!r}] == '1' and os.listdir() == []\n"
        "from IPython.paths import get_ipython_dir\n"
        f"assert os.listdir({str(tmp_path)!r}) and get_ipython_dir().startswith("
        f"os.path.dirname(os.getcwd()))\n{DOUBLE}"
    )
    path = tmp_path / "spies.ipynb"
    path.write_text(json.dumps(with_answer(solved, spies)))
    [row] = grade(built, _only(path), limits=LIMITS)
    assert (row.points, row.exercises[0].message) == (15, "")


@pytest.mark.slow
def test_an_interrupt_keeps_the_rows_so_far_and_leaves_no_process(
    built: Course, solved: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "back"
    folder.mkdir()
    (folder / "a.ipynb").write_text("no notebook")
    sleeps = with_answer(solved, "import time\ntime.sleep(600)")
    (folder / "b.ipynb").write_text(json.dumps(sleeps))
    command = [sys.executable, "-m", "labkit", "grade", str(folder), "--csv", "x.csv"]
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen(
        command, cwd=built.root, env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    started: list[psutil.Process] = []
    while len(started) < 2 and process.poll() is None:
        time.sleep(0.1)
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in output
    assert "can be forged" in output
    assert "unreadable" in (built.root / "x.csv").read_text()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_a_folder_that_is_none_and_a_lesson_that_is_none(
    built: Course, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="must be a folder"):
        list(grade(built, tmp_path / "no", limits=LIMITS))
    with pytest.raises(UsageError, match="'77' was asked for"):
        list(grade(built, tmp_path, lesson="77", limits=LIMITS))


def test_where_rows_are_written_to_is_no_submission(
    built: Course, tmp_path: Path
) -> None:
    for name in ("a.txt", "rows.csv"):
        (tmp_path / name).write_text("x")
    told: list[str] = []
    rows = list(
        grade(built, tmp_path, but=[tmp_path / "rows.csv"], progress=told.append)
    )
    assert [row.file for row in rows if row.file.startswith(("a", "r"))] == ["a.txt"]
    assert f"1 of {len(rows)}: a.txt, cell 0 of 0" in told


def test_a_large_file_is_not_read(built: Course, tmp_path: Path) -> None:
    folder = tmp_path / "back"
    folder.mkdir()
    with (folder / "large.ipynb").open("wb") as file:
        file.truncate(65 << 20)
    [row] = grade(built, folder)
    assert row == Row("large.ipynb", "unreadable", note=row.note)
    assert "at most 67108864 bytes; this file has 68157440" in row.note


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_lesson_gets_its_points(tmp_path: Path) -> None:
    real = Course(Path(__file__).resolve().parents[2])
    solution = json.loads((real.solutions / "00_your_cluster.ipynb").read_text())
    hole(solution, "0.1")["source"] = "def speak_in_order(say, group):\n    say()\n"
    (tmp_path / "ada.ipynb").write_text(json.dumps(no_metadata(solution)))
    rows = {row.file: row for row in grade(real, tmp_path)}
    row = rows["ada.ipynb"]
    assert (row.status, row.lesson) == ("graded", "00")
    earned = {result.exercise: result.points for result in row.exercises}
    # It was said by every rank, without a message, and in no order.
    assert 0 < earned.pop("0.1") < 10
    assert earned == {"0.2": 10, "0.3": 10}
