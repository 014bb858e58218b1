"""A rank killed at any moment: the cell tells the truth, and the next run works."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import RankDied
from tests.runtime.conftest import MakeCluster
from tests.runtime.processes import is_alive, known, wait_gone


def reduce_for_ever() -> None:
    while True:
        dist.all_reduce(torch.ones(1000))


def pass_round_for_ever() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    data, got = torch.ones(1 << 18), torch.empty(1 << 18)
    while True:
        works = [
            dist.isend(data, (rank + 1) % size),
            dist.irecv(got, (rank - 1) % size),
        ]
        for work in works:
            if work is not None:
                work.wait()


def wait_for_one() -> None:
    if dist.get_rank() == 0:
        time.sleep(100)
    dist.barrier()


def compute_natively() -> None:
    data = torch.ones(512, 512)
    while True:
        data = (data @ data).clamp(max=1.0)


def print_for_ever() -> None:
    for i in range(1 << 40):
        print(i, "x" * 50)


def make_groups_for_ever() -> None:
    while True:
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)


DOING: tuple[Callable[[], None], ...] = (
    reduce_for_ever, pass_round_for_ever, wait_for_one, compute_natively,
    print_for_ever, make_groups_for_ever,
)  # fmt: skip


def kill_later(process: psutil.Process, delay_s: float) -> threading.Thread:
    def kill() -> None:
        time.sleep(delay_s)
        assert is_alive(process)
        os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def sum_of_ranks() -> float:
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item()


def storm(cluster: Cluster, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        doing = DOING[seed % len(DOING)]
        victim = rng.randrange(cluster.world_size)
        ranks = known(cluster.run(os.getpid).results)
        thread = kill_later(ranks[victim], rng.uniform(0, 0.15))
        with pytest.raises(RankDied) as caught:
            cluster.run(doing)
        thread.join()
        told = str(caught.value)
        assert told.startswith(f"rank {victim} died of SIGKILL"), (seed, doing, told)
        assert "Fresh ranks have taken their place" in told
        wait_gone(ranks)
        size = cluster.world_size
        assert cluster.run(sum_of_ranks).results == [size * (size - 1) / 2] * size


@pytest.mark.slow
@pytest.mark.usefixtures("capfd")
def test_eight_kills(make_cluster: MakeCluster) -> None:
    """`make test-all` has two hundred."""
    storm(make_cluster(4), range(8))


@pytest.mark.grid
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("capfd")
def test_two_hundred_kills(make_cluster: MakeCluster) -> None:
    storm(make_cluster(4), range(100, 300))


@pytest.mark.slow
@pytest.mark.usefixtures("capfd")
def test_a_kill_of_the_process_that_hosts_threads_is_told(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(4, backend="threads")
    for delay_s in (0.0, 0.05):
        host = known(set(cluster.run(os.getpid).results))
        assert len(host) == 1
        thread = kill_later(host[0], delay_s)
        with pytest.raises(
            RankDied, match="the process that hosts the ranks died of SIG"
        ):
            cluster.run(reduce_for_ever)
        thread.join()
        assert cluster.run(sum_of_ranks).results == [6.0] * 4
