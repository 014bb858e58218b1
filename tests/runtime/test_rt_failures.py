"""Ranks that raise, crash, are killed or will not end: told at once, and told right."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import InjectedFailure, RankDied, RankFailed
from tests.runtime.conftest import MakeCluster
from tests.runtime.lines import flat, line_of, number_of
from tests.runtime.notebook import Notebook
from tests.runtime.processes import (
    alive,
    known,
    wait_for_files,
    wait_gone,
    wait_until,
)


def pids_of(cluster: Cluster) -> list[psutil.Process]:
    return known(cluster.run(os.getpid).results)


def dereference_null() -> None:
    ctypes.string_at(0)


def rank_1_crashes() -> None:
    if dist.get_rank() == 1:
        dereference_null()
    dist.barrier()


def rank_1_is_killed() -> None:
    held = torch.ones(8 << 20)  # 32 MiB that show up in its peak
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(held)


def rank_1_exits() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def rank_1_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the batch is empty")
    dist.all_reduce(torch.ones(4))


def test_RT_04_a_crash_in_native_code_is_named(cluster4: Cluster) -> None:
    old = pids_of(cluster4)
    with pytest.raises(RankDied) as caught:
        cluster4.run(rank_1_crashes)
    text = flat(caught.value)
    assert text.startswith("rank 1 died of SIGSEGV")
    assert f"It was at {line_of(dereference_null, 'string_at')}." in text
    assert "Fresh ranks have taken their place" in text
    wait_gone(old)


def test_RT_29_after_a_crash_there_is_no_ghost(cluster4: Cluster) -> None:
    with pytest.raises(RankDied):
        cluster4.run(rank_1_crashes)
    numbers = cluster4.run(lambda: (dist.get_rank(), dist.get_world_size())).results
    assert numbers == [(rank, 4) for rank in range(4)]
    assert len({process.pid for process in pids_of(cluster4)}) == 4


def say_and_sleep(folder: Path) -> None:
    (folder / str(dist.get_rank())).touch()
    time.sleep(100)


def test_RT_27_a_killed_rank_is_noticed_and_reaped(
    cluster4: Cluster, tmp_path: Path
) -> None:
    victim, *_ = old = pids_of(cluster4)
    guard = victim.parent()
    assert guard is not None
    run = cluster4.run(say_and_sleep, tmp_path, background=True)
    wait_for_files(tmp_path, 4)
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(RankDied, match="rank 0 died of SIGKILL"):
        run.wait(timeout_s=30)
    wait_gone(old)
    wait_until(lambda: not guard.is_running() or not guard.children(), "reaping")


def test_RT_27_a_rank_killed_between_two_runs_is_noticed(cluster4: Cluster) -> None:
    victim = pids_of(cluster4)[2]
    os.kill(victim.pid, signal.SIGKILL)
    wait_gone([victim])
    with pytest.raises(RankDied, match="rank 2 died of SIGKILL"):
        cluster4.run(dist.get_rank)
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_RT_28_a_killed_rank_is_told_in_plain_words(cluster4: Cluster) -> None:
    with pytest.raises(RankDied) as caught:
        cluster4.run(rank_1_is_killed)
    text = flat(caught.value)
    assert text.startswith(
        "rank 1 died of SIGKILL: somebody killed it, most likely the"
    )
    assert "for lack of memory" in text
    peak, unit = text.partition("at its peak it held ")[2].split()[:2]
    assert unit.startswith("MiB")
    assert 32 < float(peak) < 4096
    assert "Use fewer ranks or smaller batches" in text
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_a_rank_that_exits_never_counts_as_success(cluster4: Cluster) -> None:
    with pytest.raises(RankDied, match=r"(?s)rank 1 .*exit status 3"):
        cluster4.run(rank_1_exits)


def test_success_is_every_rank_saying_so_never_an_exit_code(cluster4: Cluster) -> None:
    with pytest.raises(RankDied, match=r"(?s)exit status 0"):
        cluster4.run(os._exit, 0)


def test_sys_exit_on_a_rank_is_told_as_what_it_is(cluster4: Cluster) -> None:
    def leave() -> None:
        if dist.get_rank() == 2:
            raise SystemExit("enough")

    with pytest.raises(RankFailed, match=r"^rank 2 raised SystemExit: enough"):
        cluster4.run(leave)
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_RT_38_the_first_failing_rank_is_on_top(cluster4: Cluster) -> None:
    with pytest.raises(RankFailed) as caught:
        cluster4.run(rank_1_raises)
    first, _, rest = str(caught.value).partition("\n")
    assert first == "rank 1 raised ValueError: the batch is empty"
    assert number_of(rank_1_raises, "raise ValueError") in rest
    assert 'raise ValueError("the batch is empty")' in rest
    assert "Stopped because rank 1 failed: ranks 0, 2 and 3." in rest
    assert "site-packages" not in rest
    assert caught.value.rank == 1
    assert isinstance(caught.value.exception, ValueError)


def test_the_same_error_on_every_rank_is_told_once(cluster4: Cluster) -> None:
    def fail() -> None:
        raise KeyError("lr")

    with pytest.raises(RankFailed) as caught:
        cluster4.run(fail)
    text = str(caught.value)
    assert text.count("Traceback") == 1
    others = [rank for rank in range(4) if rank != caught.value.rank]
    assert f"ranks {others[0]}, {others[1]} and {others[2]}" in text


def test_an_exception_that_cannot_travel_is_still_told(cluster4: Cluster) -> None:
    def fail() -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("never")

        raise Odd("still readable")

    with pytest.raises(RankFailed, match="Odd: still readable") as caught:
        cluster4.run(fail)
    assert caught.value.exception is None


def test_the_cause_of_an_exception_is_shown(cluster4: Cluster) -> None:
    def fail() -> None:
        try:
            int("seven")
        except ValueError as error:
            raise RuntimeError("bad config") from error

    with pytest.raises(RankFailed) as caught:
        cluster4.run(fail)
    text = str(caught.value)
    assert "RuntimeError: bad config" in text
    assert "invalid literal for int() with base 10: 'seven'" in text
    assert number_of(fail, 'int("seven")') in text


def test_RT_22_a_rank_out_of_memory_ends_the_whole_run(cluster4: Cluster) -> None:
    def fail() -> None:
        if dist.get_rank() == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        dist.barrier()

    old = pids_of(cluster4)
    with pytest.raises(RankFailed, match="rank 0 raised OutOfMemoryError: CUDA out of"):
        cluster4.run(fail)
    wait_gone(old)
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


@pytest.mark.gpu
def test_RT_22_out_of_memory_on_a_gpu_gives_its_memory_back(
    make_cluster: MakeCluster,
) -> None:
    def fail() -> None:
        held = [torch.ones(1 << 26, device="cuda")]
        if dist.get_rank() == 0:
            while True:
                held.append(torch.ones(1 << 30, device="cuda"))
        dist.barrier()

    before = torch.cuda.mem_get_info(0)[0]
    cluster = make_cluster(2)
    with pytest.raises(RankFailed, match="OutOfMemoryError"):
        cluster.run(fail)
    cluster.close()
    wait_until(lambda: torch.cuda.mem_get_info(0)[0] >= before - (64 << 20), "memory")


@pytest.mark.gpu
def test_RT_39_a_failure_under_nccl_is_told_as_under_gloo(
    make_cluster: MakeCluster,
) -> None:
    def fail() -> None:
        dist.all_reduce(torch.ones(4, device="cuda"))
        if dist.get_rank() == 1:
            raise ValueError("the batch is empty")
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()

    cluster = make_cluster(2)
    with pytest.raises(RankFailed) as caught:
        cluster.run(fail)
    text = str(caught.value)
    assert text.startswith("rank 1 raised ValueError: the batch is empty")
    assert "Stopped because rank 1 failed: rank 0." in text
    assert "watchdog" not in text.lower()
    assert cluster.run(dist.get_rank).results == [0, 1]


@pytest.mark.parametrize("stage", ["waiting", "computing"])
def test_RT_30_ranks_end_with_the_process_that_watches_them(
    cluster4: Cluster, stage: str, tmp_path: Path
) -> None:
    def wait() -> None:
        (tmp_path / str(dist.get_rank())).touch()
        if stage == "computing" or dist.get_rank() == 0:
            time.sleep(100)
        dist.barrier()

    old = pids_of(cluster4)
    guard = old[0].parent()
    assert guard is not None
    run = cluster4.run(wait, background=True)
    wait_for_files(tmp_path, 4)
    os.kill(guard.pid, signal.SIGKILL)
    with pytest.raises(RankDied, match="watches over the ranks"):
        run.wait(timeout_s=30)
    wait_gone(old)
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_RT_30_a_killed_zygote_costs_nobody_anything(make_cluster: MakeCluster) -> None:
    from labkit.runtime.kernel import the_zygote

    cluster = make_cluster(2)
    before = cluster.run(os.getpid).results
    zygote = the_zygote().pid
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: the_zygote().pid != zygote, "a new zygote")
    assert cluster.run(os.getpid).results == before
    assert make_cluster(2).run(dist.get_rank).results == [0, 1]


def test_RT_25_a_rank_that_resists_every_signal_is_ended(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    def resist() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: time.sleep(100))
        (tmp_path / str(dist.get_rank())).touch()
        os.kill(os.getpid(), signal.SIGTERM)

    cluster = make_cluster(2)
    old = pids_of(cluster)
    run = cluster.run(resist, background=True)
    wait_for_files(tmp_path, 2)
    run.stop()
    wait_gone(old)
    assert cluster.run(dist.get_rank).results == [0, 1]


def test_RT_25_closing_ends_a_rank_that_resists(make_cluster: MakeCluster) -> None:
    def resist() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    cluster = make_cluster(2)
    old = pids_of(cluster)
    cluster.run(resist)
    cluster.close()
    assert not [process for process in old if process.is_running()]


def test_RT_09_what_fails_to_unpickle_is_told_with_its_rank(cluster4: Cluster) -> None:
    def explode() -> None:
        raise OSError("no such shard")

    class Bomb:
        def __reduce__(self) -> Any:
            return explode, ()

    with pytest.raises(RankFailed) as caught:
        cluster4.run(lambda bomb: None, Bomb())
    text = str(caught.value)
    assert text.startswith(f"rank {caught.value.rank} raised OSError: no such shard")
    assert number_of(explode, "raise OSError") in text
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


@pytest.mark.slow
def test_RT_09_in_a_notebook_the_cell_ends_with_that_error(notebook: Notebook) -> None:
    reply = notebook.run(
        "def explode():\n"
        "    raise OSError('no such shard')\n"
        "class Bomb:\n"
        "    def __reduce__(self):\n"
        "        return explode, ()\n"
        "cluster.run(lambda bomb: None, Bomb())"
    )
    assert reply.ename == "RankFailed"
    assert "raised OSError: no such shard" in reply.evalue
    assert "Cell In[" in reply.evalue
    assert "line 2" in reply.evalue


@pytest.mark.slow
def test_the_notebooks_own_line_is_in_the_message(notebook: Notebook) -> None:
    reply = notebook.run(
        "def train():\n"
        "    if dist.get_rank() == 1:\n"
        "        loss = undefined_name\n"
        "    dist.barrier()\n"
        "cluster.run(train)"
    )
    assert reply.ename == "RankFailed"
    assert reply.evalue.startswith("rank 1 raised NameError: name 'undefined_name'")
    assert "line 3" in reply.evalue
    assert "loss = undefined_name" in reply.evalue
    assert "site-packages" not in reply.shown
    assert "labkit/" not in reply.shown


def test_a_failure_ordered_by_the_learner_comes_where_it_was_placed(
    cluster4: Cluster,
) -> None:
    def reduce_four_times() -> None:
        for _ in range(4):
            dist.all_reduce(torch.ones(1))

    cluster4.fail(rank=1, at="all_reduce#3")
    with pytest.raises(RankFailed) as caught:
        cluster4.run(reduce_four_times)
    assert caught.value.rank == 1
    assert isinstance(caught.value.exception, InjectedFailure)
    assert "all_reduce#3" in str(caught.value)
    cluster4.heal()
    cluster4.run(reduce_four_times)


def test_children_of_a_rank_end_with_it(cluster4: Cluster) -> None:
    def start_children() -> list[int]:
        new = [True, False]
        return [
            subprocess.Popen(["sleep", "100"], start_new_session=apart).pid
            for apart in new
        ]

    children = known(
        pid for pids in cluster4.run(start_children).results for pid in pids
    )
    assert alive(children) == children
    with pytest.raises(RankDied, match="rank 3"):
        cluster4.run(lambda: os._exit(1), ranks=[3])
    wait_gone(children)
