"""A trial ends within its limits, and leaves no process behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.course import trial
from labkit.course.trial import Limits, Trial, run

pytestmark = pytest.mark.timeout(100)


def code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": source}


DETACHED = """import os, subprocess, sys
kept = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                        start_new_session=True)
open("pid", "w").write(str(kept.pid))"""


def runs(pid: int) -> bool:
    """Whether there is such a process, and not only what it leaves for its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pass", "import time; time.sleep(600)", "crash"])
def test_what_left_its_group_is_ended_too(tmp_path: Path, ending: str) -> None:
    last = "import os; os.kill(os.getppid(), 9)" if ending == "crash" else ending
    found = run([code(DETACHED), code(last)], tmp_path, Limits(notebook_s=6))
    assert not runs(int((tmp_path / "pid").read_text()))
    assert found.records[0]["passed"]
    words = {"pass": "", "crash": "pytest ended with -9. Its last words:\n"}
    until = "stopped after 6 s, the limit of a notebook"
    assert found.ended.startswith(words.get(ending, until))


@pytest.mark.slow
def test_an_error_without_end_is_cut(tmp_path: Path) -> None:
    found = run([code("raise ValueError('x' * 1_000_000)")], tmp_path, Limits())
    assert found.records[0]["error"] == "ValueError"
    assert found.records[0]["message"] == "x" * 10_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's limits")
def test_no_file_grows_beyond_its_limit(tmp_path: Path) -> None:
    write = "open('large', 'wb').write(bytes(1 << 20))"
    found = run([code(write)], tmp_path, Limits(file_bytes=1 << 19))
    assert found.records[0]["error"] == "OSError"
    assert (tmp_path / "large").stat().st_size <= 1 << 19


def test_lines_that_are_not_whole_or_not_ours_do_not_count(tmp_path: Path) -> None:
    good = {"cell": 1, "ran": True, "passed": True, "error": None, "message": None,
            "seconds": 0.1}  # fmt: skip
    odd = [{**good, "message": 3}, {**good, "cell": "1"}, {**good, "more": 1}, [], None]
    lines = [json.dumps(line) for line in (*odd, good)] + ["[" * 99_999, "\udcff", "{"]
    harvest = tmp_path / "harvest"
    harvest.write_text("\n".join(lines), errors="surrogateescape")
    assert list(trial._records(harvest)) == [good]
    harvest.unlink()
    assert list(trial._records(harvest)) == []
    assert trial._num_lines(harvest) == 0


def test_nothing_to_run_is_no_trouble(tmp_path: Path) -> None:
    assert run([], tmp_path, Limits()) == Trial()
