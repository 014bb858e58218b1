"""Nothing that a rank started outlives it, and no rank outlives its kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import Cluster
from tests.runtime.conftest import MakeCluster
from tests.runtime.notebook import PYTHONPATH, Notebook
from tests.runtime.processes import (
    alive,
    below,
    folders_of,
    known,
    shared_memory,
    wait_gone,
    wait_until,
)

pytestmark = pytest.mark.slow

BARRIER_WITHOUT_0 = """def wait():
    print("in place", dist.get_rank())
    if dist.get_rank() == 0:
        time.sleep(100)
    dist.barrier()
cluster.run(wait)
"""
LOADERS = """
import subprocess, sys, torch.utils.data
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return torch.full((1 << 16,), float(i))
def load_and_wait():
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2)
    batches = iter(loader)
    next(batches)
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    print("in place", dist.get_rank())
    if dist.get_rank() == 0:
        time.sleep(100)
    dist.barrier()
cluster.run(load_and_wait)
"""


def wait_in_place(notebook: Notebook, world_size: int = 4) -> None:
    for rank in range(world_size):
        notebook.wait_for(f"in place {rank}")
    time.sleep(0.3)  # From the print to the barrier is one line.


def test_RT_20_ranks_do_not_outlive_a_killed_kernel(notebook: Notebook) -> None:
    pid = notebook.pid
    notebook.start(BARRIER_WITHOUT_0)
    wait_in_place(notebook)
    processes = notebook.kill()
    assert len(processes) >= 6  # zygote, guard, four ranks
    wait_gone(processes)
    wait_until(lambda: folders_of(pid) == [], "no folder of the killed kernel")


def test_RT_21_nor_do_data_loaders_and_grandchildren(notebook: Notebook) -> None:
    before, pid = shared_memory(), notebook.pid
    notebook.start(LOADERS)
    wait_in_place(notebook)
    processes = notebook.kill()
    names = [process.name() for process in processes]
    assert names.count("sleep") == 4
    assert len(processes) >= 6 + 4 * 3  # each rank: two loaders, one sleeper
    wait_gone(processes)
    wait_until(lambda: folders_of(pid) == [], "no folder of the killed kernel")
    assert shared_memory() <= before
    notebook.heal()
    assert (
        "[0, 1, 2, 3]"
        in notebook.run("print(cluster.run(dist.get_rank).results)").stdout
    )


def test_RT_21_a_sleeping_grandchild_ends_with_a_closed_cluster(
    make_cluster: MakeCluster,
) -> None:
    def start() -> int:
        code = (
            "import subprocess as s; s.Popen(['sleep', '100']); s.Popen(['sleep', '9'])"
        )
        return subprocess.Popen([sys.executable, "-c", code]).pid

    cluster = make_cluster(2)
    guard = known(cluster.run(os.getpid).results)[0].parent()
    assert guard is not None
    cluster.run(start)

    def sleepers() -> list[str]:
        return [p.name() for p in below(guard.pid) if p.name() == "sleep"]

    wait_until(lambda: len(sleepers()) == 4, "four sleeping grandchildren")
    processes = below(guard.pid)
    cluster.close()
    assert alive(processes) == []


def test_RT_19_a_restarted_kernel_starts_clean(notebook: Notebook) -> None:
    notebook.start(
        "def talk():\n"
        "    for i in range(10_000):\n"
        "        print('old run', i)\n"
        "        time.sleep(0.02)\n"
        "cluster.run(talk)"
    )
    notebook.wait_for("old run 3")
    old = notebook.restart()
    assert alive(old) == []
    reply = notebook.run("cluster.run(lambda: print('new run')); time.sleep(0.3)").ok()
    assert "old run" not in reply.stdout
    assert reply.stdout.count("new run") == 4


def test_RT_23_an_interrupt_says_what_each_rank_was_doing(notebook: Notebook) -> None:
    notebook.start(BARRIER_WITHOUT_0)
    wait_in_place(notebook)
    old = [p for p in below(notebook.pid) if not below(p.pid)]
    notebook.interrupt()
    reply = notebook.finish(timeout_s=20)
    assert reply.ename == "RunInterrupted"
    assert "Cell In[" in reply.evalue
    assert "rank 0 is computing at" in reply.evalue
    assert "line 4: time.sleep(100)" in reply.evalue
    for rank in (1, 2, 3):
        assert f"rank {rank} waits in barrier()" in reply.evalue
    assert "line 5: dist.barrier()" in reply.evalue
    assert "Fresh ranks have taken their place" in reply.evalue
    wait_gone(old)
    again = notebook.run("print(cluster.run(dist.get_rank).results)").ok()
    assert again.stdout == "[0, 1, 2, 3]\n"


def test_RT_26_three_interrupts_in_a_row_confuse_nobody(notebook: Notebook) -> None:
    notebook.start(
        "def talk():\n"
        "    while True:\n"
        "        print('old run')\n"
        "        time.sleep(0.01)\n"
        "cluster.run(talk)"
    )
    notebook.wait_for("old run")
    for _ in range(3):
        notebook.interrupt()
        time.sleep(0.1)
    assert notebook.finish(timeout_s=20).ename in (
        "RunInterrupted",
        "KeyboardInterrupt",
    )
    reply = notebook.run("cluster.run(lambda: print('new run')); time.sleep(0.3)")
    while reply.ename == "KeyboardInterrupt":  # One that came after the cell's end.
        reply = notebook.run("cluster.run(lambda: print('new run')); time.sleep(0.3)")
    assert "old run" not in reply.ok().stdout
    assert reply.stdout.count("new run") == 4


def test_RT_15_shutting_down_ends_only_what_is_ours() -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)", "worker.py",
         "torch.distributed", "labkit"]
    )  # fmt: skip
    first, second = Notebook(world_size=2), Notebook(world_size=2)
    try:
        mine, others = below(first.pid), below(second.pid)
        first.close()
        assert alive(mine) == []
        assert alive(others) == others
        assert bystander.poll() is None
        again = second.run("print(cluster.run(dist.get_rank).results)").ok()
        assert again.stdout == "[0, 1]\n"
    finally:
        second.close()
        bystander.kill()
        bystander.wait()


def test_RT_18_two_notebooks_launch_at_once_and_again() -> None:
    first, second = Notebook(), Notebook()
    code = (
        "from labkit import Cluster\n"
        "import torch, torch.distributed as dist\n"
        "def add():\n"
        "    x = torch.ones(1)\n"
        "    dist.all_reduce(x)\n"
        "    return x.item()\n"
        "for _ in range(10):\n"
        "    with Cluster(2, quiet=True) as cluster:\n"
        "        assert cluster.run(add).results == [2.0, 2.0]\n"
    )
    try:
        for notebook in (first, second):
            notebook.start(code)
        for notebook in (first, second):
            notebook.finish().ok()
    finally:
        first.close()
        second.close()


PROGRAM = """
import os, sys, time
from labkit import Cluster
cluster = Cluster(2, quiet=True, start=sys.argv[1])
print(*cluster.run(os.getpid).results, flush=True)
if sys.argv[2] != "end":
    cluster.run(time.sleep, 100)
"""


@pytest.mark.parametrize(
    ("start", "how"),
    [
        ("fork", "end"),
        ("fork", "SIGTERM"),
        ("fork", "SIGKILL"),
        ("fork", "SIGINT"),
        ("spawn", "SIGKILL"),
        pytest.param("spawn", "end", marks=pytest.mark.grid),
        pytest.param("spawn", "SIGTERM", marks=pytest.mark.grid),
        pytest.param("spawn", "SIGINT", marks=pytest.mark.grid),
    ],
)
def test_however_a_program_ends_its_ranks_end(
    tmp_path: Path, start: str, how: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(path), start, how], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        ranks = known(int(pid) for pid in program.stdout.readline().split())
        assert len(ranks) == 2
        processes = below(program.pid)
        if how != "end":
            program.send_signal(getattr(signal, how))
        program.wait(timeout=30)
    wait_gone([*ranks, *processes])
    wait_until(lambda: folders_of(program.pid) == [], "no folder of the program")


def test_a_child_that_holds_the_kernels_sockets_keeps_no_rank_alive(
    notebook: Notebook,
) -> None:
    """A forked child of the kernel inherits its sockets: their end would never come."""
    reply = notebook.run(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "print(child)"
    ).ok()
    child = known([int(reply.stdout)])
    processes = notebook.kill()
    assert len(processes) >= 7
    try:
        wait_gone(process for process in processes if process not in child)
        assert alive(child) == child
    finally:
        child[0].kill()


def test_a_closed_cluster_leaves_nothing(nothing_left: None) -> None:
    with Cluster(3, quiet=True) as cluster:
        old = known(cluster.run(os.getpid).results)
    assert alive(old) == []


def test_a_dropped_cluster_leaves_nothing(nothing_left: None) -> None:
    cluster = Cluster(2, quiet=True)
    old = known(cluster.run(os.getpid).results)
    del cluster
    wait_gone(old)
