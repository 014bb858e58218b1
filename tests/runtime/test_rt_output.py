"""What ranks print: under the cell, live, tagged, bounded, and never in their way."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import RankFailed
from tests.runtime.conftest import MakeCluster
from tests.runtime.notebook import Notebook, Reply
from tests.runtime.processes import wait_until

PRINT_THREE_WAYS = """
def speak():
    import ctypes, os, sys
    print("printed by", dist.get_rank())
    libc = ctypes.CDLL(None)
    libc.puts(f"from C, {dist.get_rank()}".encode())
    libc.fflush(None)
    print("to stderr by", dist.get_rank(), file=sys.stderr)
three = Cluster(3, quiet=True)
three.run(speak)
three.close()
"""


def lines_of(text: str) -> list[str]:
    return sorted(text.splitlines())


def check_three_ways(reply: Reply) -> None:
    reply.ok()
    ranks = range(3)
    expected = [f"[rank {r}] from C, {r}" for r in ranks]
    expected += [f"[rank {r}] printed by {r}" for r in ranks]
    assert lines_of(reply.stdout) == sorted(expected)
    assert lines_of(reply.stderr) == [f"[rank {r}] to stderr by {r}" for r in ranks]


@pytest.mark.slow
def test_RT_10_what_python_and_c_print_is_under_the_cell(notebook: Notebook) -> None:
    check_three_ways(notebook.run(PRINT_THREE_WAYS))


@pytest.mark.slow
def test_RT_12_without_the_kernels_own_capture_nothing_changes() -> None:
    notebook = Notebook("--IPKernelApp.capture_fd_output=False", world_size=2)
    try:
        check_three_ways(notebook.run(PRINT_THREE_WAYS))
    finally:
        notebook.close()


@pytest.mark.slow
def test_RT_11_output_appears_while_ranks_run(
    notebook: Notebook, tmp_path: Path
) -> None:
    """A rank goes on only once its line was seen, so a late line would never end it."""
    seen = str(tmp_path / "seen")
    notebook.start(
        "def speak_and_wait():\n"
        "    for i in range(3):\n"
        "        print('line', i, 'of', dist.get_rank())\n"
        f"        while not os.path.exists({seen!r} + str(i)):\n"
        "            time.sleep(0.01)\n"
        "cluster.run(speak_and_wait, ranks=[1])"
    )
    for i in range(3):
        notebook.wait_for(f"[rank 1] line {i} of 1\n")
        Path(seen + str(i)).touch()
    notebook.finish().ok()


def test_RT_11_a_line_without_its_end_appears_too(
    cluster4: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def ask() -> None:
        print("loading", end="", flush=True)
        while not (tmp_path / "seen").exists():
            time.sleep(0.01)

    run = cluster4.run(ask, ranks=[2], background=True)
    shown: list[str] = []
    wait_until(lambda: shown.append(capfd.readouterr().out) or "".join(shown), "a line")
    (tmp_path / "seen").touch()
    run.wait(30)
    assert "".join(shown) == "[rank 2] loading\n"


@pytest.mark.slow
def test_RT_13_a_stdout_without_fileno_does_no_harm(notebook: Notebook) -> None:
    reply = notebook.run(
        "import sys\n"
        "class Plain:\n"
        "    def __init__(self): self.text = ''\n"
        "    def write(self, text): self.text += text\n"
        "    def flush(self): pass\n"
        "before, sys.stdout = sys.stdout, Plain()\n"
        "try:\n"
        "    two = Cluster(2)\n"
        "    two.run(lambda: print('hello'))\n"
        "    two.close()\n"
        "finally:\n"
        "    plain, sys.stdout = sys.stdout, before\n"
        "print(plain.text)"
    )
    text = reply.ok().stdout
    assert "2 ranks on gloo" in text
    assert "[rank 0] hello\n" in text
    assert "[rank 1] hello\n" in text


FLOOD = """
def flood():
    for i in range(50_000):
        print(f"{i:08d}", "x" * 91)
cluster.run(flood)
"""


@pytest.mark.slow
def test_RT_49_a_flood_is_bounded_and_kept_in_a_file(notebook: Notebook) -> None:
    reply = notebook.run(FLOOD, timeout_s=120).ok()
    lines = reply.stdout.splitlines()
    assert lines[0].startswith("[rank ")
    assert lines[0].endswith("x" * 91)
    for rank in range(4):
        assert f"[rank {rank}] 00049999 {'x' * 91}" in lines
    found = re.search(
        r"\.\.\. ([\d,]+) lines left out; full text in (\S+)", reply.stdout
    )
    assert found is not None
    left_out, path = int(found[1].replace(",", "")), Path(found[2])
    assert left_out + len(lines) - 1 == 4 * 50_000
    try:
        with path.open() as file:
            assert sum(1 for _ in file) == 4 * 50_000
    finally:
        path.unlink()
    cell = nbformat.v4.new_code_cell(
        FLOOD, outputs=[_saved(output) for output in reply.outputs]
    )
    assert len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))) < 1 << 20
    assert notebook.run("print(1 + 1)").ok().stdout == "2\n"


def _saved(output: dict[str, Any]) -> nbformat.NotebookNode:
    content = {k: v for k, v in output.items() if k != "transient"}
    return nbformat.v4.new_output(content.pop("output_type"), **content)


def test_RT_49_one_endless_line_is_bounded(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster4.run(lambda: print("y" * 3_000_000), ranks=[0])
    shown = capfd.readouterr().out
    assert len(shown) < 300_000
    found = re.search(r"full text in (\S+)", shown)
    assert found is not None
    Path(found[1]).unlink()


def test_RT_49_a_progress_bar_leaves_its_last_state(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def progress() -> None:
        for i in range(101):
            sys.stdout.write(f"\r{i:3d} %")
        sys.stdout.write("\n")

    cluster4.run(progress, ranks=[3])
    assert capfd.readouterr().out == "[rank 3] 100 %\n"


def write_2_mb_to_both_then_reduce() -> float:
    for stream in (1, 2):
        for _ in range(32):
            os.write(stream, b"z" * (1 << 16))
        os.write(stream, b"\n")
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_RT_50_a_rank_that_prints_never_waits_for_a_busy_kernel(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    run = cluster4.run(write_2_mb_to_both_then_reduce, background=True)
    total = sum(i * i for i in range(3_000_000))  # The kernel has something else to do.
    assert run.wait(60).results == [4.0] * 4
    assert total > 0
    shown = capfd.readouterr()
    found = re.search(r"full text in (\S+)", shown.out)
    assert found is not None
    Path(found[1]).unlink()
    assert len(shown.out) + len(shown.err) < 1_000_000


@pytest.mark.slow
def test_RT_51_the_tag_is_the_rank_over_twenty_restarts(
    make_cluster: MakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def say_and_fail() -> None:
        print("I am", dist.get_rank(), flush=True)
        if dist.get_rank() == 0:
            dist.barrier()
        raise ValueError("restart")

    cluster = make_cluster(3)
    for _ in range(20):
        old = cluster.run(os.getpid).results
        with pytest.raises(RankFailed):
            cluster.run(say_and_fail)
        assert not set(old) & set(cluster.run(os.getpid).results)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 60
    assert set(lines) == {f"[rank {rank}] I am {rank}" for rank in range(3)}


def test_what_children_of_a_rank_print_is_tagged_too(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def call() -> None:
        subprocess.run(["echo", "a child speaks"], check=True)

    cluster4.run(call, ranks=[1])
    assert capfd.readouterr().out == "[rank 1] a child speaks\n"


def test_output_that_came_before_an_error_is_not_lost(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def speak_and_die() -> None:
        ctypes.CDLL(None).puts(b"in a C buffer")
        print("last words")
        raise ValueError("the end")

    with pytest.raises(RankFailed):
        cluster4.run(speak_and_die, ranks=[2])
    assert "[rank 2] last words\n" in capfd.readouterr().out


def test_two_ranks_never_share_a_line(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def chatter() -> None:
        for i in range(100):
            sys.stdout.write(f"{dist.get_rank()}:")
            sys.stdout.flush()
            sys.stdout.write(f"{i}\n")

    cluster4.run(chatter)
    lines = capfd.readouterr().out.splitlines()
    expected = {f"[rank {rank}] {rank}:{i}" for rank in range(4) for i in range(100)}
    assert set(lines) == expected
    assert len(lines) == 400
