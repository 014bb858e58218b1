"""The library's ring all-reduce beside the backend's own, in turn on the same ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from labkit.bench.figures import Figure
from labkit.bench.pairs import MIN_PAIRS, bootstrap
from labkit.comm.collectives import all_reduce_ring
from labkit.runtime.cluster import Cluster
from labkit.units import format_bytes

SIZES = (1 << 20, 16 << 20, 64 << 20)


class Timed(NamedTuple):
    """Seconds of each round, from a barrier before to a barrier after."""

    ours_s: list[float]
    theirs_s: list[float]
    theirs_again_s: list[float]


def measure(
    num_ranks: Sequence[int], sizes: Sequence[int] = SIZES, pairs: int = MIN_PAIRS
) -> list[Figure]:
    """Time both at each size, on each number of gloo ranks of this machine."""
    found: list[Figure] = []
    for number in num_ranks:
        with Cluster(number, backend="gloo", device="cpu", quiet=True) as cluster:
            for num_bytes in sizes:
                timed = cluster.run(timed_all_reduces, num_bytes, pairs).results[0]
                found.append(_figure(number, num_bytes, timed))
    return found


def _figure(num_ranks: int, num_bytes: int, timed: Timed) -> Figure:
    return Figure(
        name=f"ring all-reduce of {format_bytes(num_bytes)}, {num_ranks} ranks",
        unit="s",
        ours=median(timed.ours_s),
        theirs=median(timed.theirs_s),
        interval=bootstrap(timed.ours_s, timed.theirs_s, seed=0),
        aa_interval=bootstrap(timed.theirs_again_s, timed.theirs_s, seed=0),
        against="the backend's own",
    )


def timed_all_reduces(num_bytes: int, pairs: int, warm_up: int = 3) -> Timed:
    """What each rank runs: ours once and theirs twice a round; who is first rotates."""
    group = dist.group.WORLD
    assert group is not None
    x = torch.empty(num_bytes // 4)

    def own() -> None:
        dist.all_reduce(x, group=group)

    calls: list[Callable[[], None]] = [lambda: all_reduce_ring(x, group), own, own]
    timings: list[list[float]] = [[], [], []]
    for number in range(warm_up + pairs):
        first = number % len(calls)
        for slot in (*range(first, len(calls)), *range(first)):
            x.fill_(1.0)
            dist.barrier()
            start_s = time.perf_counter()
            calls[slot]()
            dist.barrier()
            if number >= warm_up:
                timings[slot].append(time.perf_counter() - start_s)
    return Timed(*timings)
