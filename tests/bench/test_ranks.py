"""The benchmark of ranks: what it computes, and that it leaves nothing behind.

No test here judges how fast anything is.
"""

from __future__ import annotations

import ast
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import psutil
import pytest

from labkit.bench import processes, ranks, taken, tools
from labkit.bench.extra import Extra, in_turn, ratio_interval
from labkit.bench.kernel import Kernel
from labkit.bench.session import Session
from labkit.bench.taken import Killed, Taken
from labkit.bench.tools import LABKIT, PROGRAMS, Tool
from labkit.errors import RunError, UsageError

SHARED_MEMORY = Path("/dev/shm")
# One "rank" that is the kernel itself, and a child that outlives it.
LEAVES_A_CHILD = """
import os, subprocess
from pathlib import Path
def blocks_with_company():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    for rank in range(4):
        Path(os.environ["LABKIT_BENCH_FOLDER"], f"blocked-{rank}").write_text("1.0")
    time.sleep(600)
"""
ALONE = Tool("a kernel", LEAVES_A_CHILD, "nothing()", "{}()")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves a process or a folder."""
    before, folders = set(processes.below(psutil.Process().pid)), set(_folders())
    yield
    new = set(processes.below(psutil.Process().pid)) - before
    assert processes.alive(new) == []
    assert set(_folders()) <= folders


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("labkit-bench-*"))


def folders_of(pid: int) -> list[Path]:
    """What labkit has left in memory for a kernel."""
    return list(SHARED_MEMORY.glob(f"labkit-{pid}-*"))


def test_every_measure_is_taken_once_a_round_and_the_first_rotates() -> None:
    calls: list[int] = []

    def measure(index: int) -> float:
        calls.append(index)
        return 10.0 * index + calls.count(index)

    taken_s = in_turn([lambda k=k: measure(k) for k in range(3)], 4)
    assert calls == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert taken_s[2] == (21.0, 22.0, 23.0, 24.0)


def test_the_ratio_of_times_above_an_empty_cell_bears_noise_below_0() -> None:
    ours_s = (-0.001, 0.002, 0.003, 0.002, 0.002)
    figure = Extra(ours_s, (0.02,) * 5, (0.02,) * 5).figure("run", against="other 1")
    assert figure.name == "run (5 pairs)"
    assert (figure.ours, figure.theirs, figure.unit) == (0.002, 0.02, "s")
    assert figure.ratio == pytest.approx(0.1)
    assert figure.aa_interval == (1.0, 1.0)
    assert figure.interval is not None
    assert figure.interval[0] <= 0.1 <= figure.interval[1]


def test_a_ratio_to_nothing_has_no_interval() -> None:
    assert ratio_interval([1.0, 1.0], [0.0, 0.0]) is None
    with pytest.raises(UsageError, match="2 and 1 were"):
        ratio_interval([1.0, 1.0], [1.0])


def test_the_cell_defines_every_program_that_is_measured() -> None:
    tree = ast.parse(PROGRAMS)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"nothing", "one_all_reduce", "clocked", "raises", "blocks"} < defined
    assert {"blocks_with_company", "mismatch", "absent", "circle"} < defined


def test_a_report_must_name_the_rank_and_the_line_that_raised() -> None:
    line = ranks.RAISING_LINE
    assert "raise ValueError" in PROGRAMS.splitlines()[line - 1]
    assert ranks.names_the_line(f"rank 2 raised ValueError\nCell In[1], line {line}")
    assert ranks.names_the_line(f"\x1b[31mrank      : 2\x1b[0m (x)\nx.py:{line}")
    assert not ranks.names_the_line(f"rank 1 raised\nCell In[1], line {line}")
    assert not ranks.names_the_line(f"rank 2 raised\nCell In[1], line {line + 1}")
    assert not ranks.names_the_line(f"rank 20 raised\nCell In[1], line {line}1")


def test_a_missing_tool_is_told_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tools, "version", missing)
    assert tools.rivals() == []
    told = capsys.readouterr().err
    assert told.count("pip install 'labkit[bench]'") == 2
    assert "ipyparallel is not installed" in told
    assert "accelerate is not installed" in told


def test_the_other_tools_carry_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "version", lambda name: "9.2")
    assert [tool.name for tool in tools.rivals()] == [
        "ipyparallel 9.2", "accelerate 9.2 notebook_launcher"
    ]  # fmt: skip
    assert [tool.tries for tool in (LABKIT, *tools.rivals())] == [1, 2, 2]
    for tool in (LABKIT, *tools.rivals()):
        for cell in (tool.prepare, tool.start, tool.calling("nothing")):
            compile(cell, "cell", "exec")


def filled(tool: Tool) -> Taken:
    """All there is to measure, answered in full."""
    return Taken(
        tool, [2.0, 1.0, 3.0], [100.0], [0.1], 0, [0.2], [0.3], Killed(0.25, 18, 0)
    )


def test_an_answer_that_never_came_is_none_and_said() -> None:
    silent = Taken(ALONE, [10.0], killed=Killed(None, 27, 26), num_hung=1)
    found = taken.compare(filled(LABKIT), [silent])
    rows = {figure.name: figure for figure in found}
    cold = rows["cold start to the first all-reduce (3 times, 1 s to 3 s)"]
    assert (cold.ours, cold.theirs, cold.against) == (2.0, 10.0, "a kernel: once")
    raised = rows["a rank raises, to the cell's error (once)"]
    assert (raised.theirs, raised.against) == (None, "a kernel: not within 5 s")
    assert rows["memory of the pool (once)"].against == "a kernel: keeps none"
    gone = rows["kernel killed, to the end of its 18 processes"]
    assert (gone.ours, gone.theirs, gone.against) == (0.25, None, "a kernel: never")
    left = rows["kernel killed, processes left after 5 s"]
    assert (left.ours, left.theirs, left.against) == (0, 26, "a kernel: of 27")
    assert [figure.theirs for figure in found if "hung" in figure.name] == [1]


def test_alone_there_is_a_figure_for_each_of_ours() -> None:
    found = taken.compare(filled(LABKIT), [])
    assert len(found) == 8
    assert {(figure.theirs, figure.against) for figure in found} == {(None, "")}


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_cell_is_timed_and_its_error_and_end_are_seen(
    tmp_path: Path, nothing_left: None
) -> None:
    with Kernel(tmp_path) as kernel:
        reply = kernel.run("import time; time.sleep(0.2); print('here')")
        assert (reply.text, reply.error) == ("here\n", "")
        assert reply.seconds >= 0.2
        with pytest.raises(RunError, match="ZeroDivisionError"):
            kernel.run("1 / 0")
        kernel.begin("time.sleep(60)")
        assert kernel.finish(0.2) is None
        kernel.interrupt()
        stopped = kernel.finish(10)
        assert stopped is not None
        assert "KeyboardInterrupt" in stopped.error
        kernel.run("import subprocess; p = subprocess.Popen(['sleep', '600'])")
        kernel.close()  # and again at the end of the block


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_kernel_that_ends_in_a_cell_is_told(
    tmp_path: Path, nothing_left: None
) -> None:
    with Kernel(tmp_path) as kernel, pytest.raises(RunError, match="it ended while"):
        kernel.run("import os; os._exit(1)")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_outlives_a_killed_kernel_is_counted_and_then_ended(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "PATIENCE_S", 0.3)
    with Session(ALONE, tmp_path) as lone:
        killed = ranks.kill(lone)
        sleeper = [p for p in lone.kernel._seen if p.name() == "sleep"]
        assert processes.alive(sleeper) == sleeper
    assert killed == Killed(None, 2, 1)
    assert processes.alive(sleeper) == []


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_only_other_tools_get_a_second_try(tmp_path: Path, nothing_left: None) -> None:
    call = "raise OSError('x')\n{}"
    hanging = Tool("other", "", "pass", call, tries=2)
    with Session(hanging, tmp_path) as other:
        first_pid = other.kernel.pid
        with pytest.raises(RunError, match="4 ranks of other must come to 'blocked'"):
            other.reach("blocks", "blocked", 4)
        assert other.num_hung == 1
        assert other.kernel.pid != first_pid
    with Session(Tool("ours", "", "pass", call), tmp_path) as ours:
        with pytest.raises(RunError):
            ours.reach("blocks", "blocked", 4)
        assert ours.num_hung == 0


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_error_in_the_middle_leaves_nothing(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[psutil.Process] = []

    def breaks(started: Session, *rest: object) -> None:
        held.extend(started.kernel.descendants())
        held.append(psutil.Process(started.kernel.pid))
        started.kernel.begin("cluster.run(blocks)")
        time.sleep(0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "measure_raise", breaks)
    with pytest.raises(KeyboardInterrupt):
        ranks.measure([LABKIT], ranks.Effort(1, 1))
    assert len(held) == 7  # zygote, guard, four ranks, kernel
    assert processes.alive(held) == []
    assert folders_of(held[-1].pid) == []


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_labkit_alone_from_end_to_end(
    nothing_left: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ranks.measure([LABKIT], ranks.Effort(pairs=3, repeats=1))
    names = [figure.name for figure in found]
    assert len(names) == len(set(names)) == 15
    by_word = dict(zip(names, found, strict=True))
    left = by_word["kernel killed, processes left after 5 s"]
    unnamed = by_word["the same, reports without rank and line (of 1)"]
    assert (left.ours, unnamed.ours) == (0, 0)
    # A kernel, zygote, guard, four ranks, eight workers, a sleeper: at least 16.
    [ended] = [name for name in names if "to the end of its" in name]
    assert int(ended.split()[-2]) >= 16
    assert "hung" not in capsys.readouterr().err
