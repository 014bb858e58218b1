"""How fast ranks of this machine exchange data: gloo's all-reduce, and a message.

The medians are kept for `labkit.replay.catalog.hardware("this machine")`.
Beside each kind stand the alpha and beta that fit it best over all sizes: one line
through a curve, for the closed forms of the lessons.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
import torch.distributed as dist

from labkit.bench import collectives, ring
from labkit.bench.alpha_beta import Point, fit
from labkit.bench.figures import Figure, this_machine
from labkit.bench.timing import GIB, Clocked, Effort, clocked, points_of
from labkit.replay import measured
from labkit.replay.network import ring_edge_bytes
from labkit.runtime.cluster import Cluster
from labkit.units import format_bytes

# Of our own collectives, of which there are many: to sizes that a lesson uses.
QUICK = Effort(tuple(1 << power for power in range(10, 25, 2)), budget_s=0.1)


def figures() -> list[Figure]:
    """Measure, keep and say it; then ours: each fitted, the ring beside gloo's."""
    effort = Effort()
    return [
        *measure(effort),
        *collectives.measure(QUICK, effort.num_ranks[-1]),
        *ring.measure(effort.num_ranks),
    ]


def measure(effort: Effort) -> list[Figure]:
    """Measure on ranks of this machine, and keep the medians."""
    all_reduce: dict[int, list[Point]] = {}
    message: list[Point] = []
    issue_s = 0.0
    for num_ranks in effort.num_ranks:
        sys.stderr.write(f"comm: {num_ranks} gloo ranks\n")
        with Cluster(num_ranks, backend="gloo", device="cpu", quiet=True) as cluster:
            all_reduce[num_ranks] = points_of(cluster, all_reduces, effort)
            if not message:
                message = points_of(cluster, messages, effort)
                issue_s = median(cluster.run(issues, 200).results)
    file = measured.store(
        "comm",
        {
            "machine": this_machine(),
            "issue_s": issue_s,
            "all_reduce": all_reduce,
            "message": message,
            "fits": {
                "message": fit(message),
                **{f"all_reduce {n}": fit(each) for n, each in all_reduce.items()},
            },
        },
    )
    sys.stderr.write(f"comm: kept in {file}\n")
    return [
        Figure("to issue an all-reduce", "s", issue_s),
        *_shown(all_reduce, message),
    ]


def all_reduces(num_bytes: int, repeats: int) -> Clocked:
    """Enter and leave so many all-reduces, one after another."""
    tensor = torch.ones(num_bytes // 4)

    def call() -> None:
        dist.all_reduce(tensor)

    return clocked(call, repeats)


def messages(num_bytes: int, repeats: int) -> Clocked:
    """Rank 0 sends to rank 1, again and again; the others only keep step."""
    tensor = torch.ones(num_bytes // 4)
    rank = dist.get_rank()

    def call() -> None:
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)

    found = clocked(call, repeats)
    return found if rank < 2 else []


def issues(repeats: int) -> float:
    """The median time in which an asynchronous all-reduce is issued."""
    tensor = torch.ones(16)
    taken_s: list[float] = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        taken_s.append(time.perf_counter() - start_s)
        assert work is not None
        work.wait()
    return median(taken_s)


def _shown(all_reduce: dict[int, list[Point]], message: list[Point]) -> list[Figure]:
    """Every size with its bus bandwidth, by nccl-tests' definition, then the fit."""
    found: list[Figure] = []
    for num_ranks, points in all_reduce.items():
        edge = ring_edge_bytes(num_ranks, 1.0)
        found += _series(f"all-reduce, {num_ranks} ranks", points, edge)
    return [*found, *_series("message", message, 1.0)]


def _series(name: str, points: list[Point], bus_factor: float) -> list[Figure]:
    fitted = fit(points)
    return [
        *(
            Figure(
                f"{name}, {format_bytes(num_bytes)} (bus "
                f"{bus_factor * num_bytes / seconds / 1e9:.3g} GB/s)",
                "s",
                seconds,
            )
            for num_bytes, seconds in points
        ),
        Figure(f"{name}, fitted: alpha", "s", fitted.alpha_s),
        Figure(f"{name}, fitted: beta x 1 GiB", "s", fitted.beta_s_per_byte * GIB),
    ]
