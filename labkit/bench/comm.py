"""How fast ranks of this machine exchange data: gloo's all-reduce, and a message.

A transfer is timed from the last rank that enters it to the last one that leaves it,
by the ranks' own clocks, which on one machine are the same clock; the median of repeats
counts. The medians are kept for `labkit.replay.catalog.hardware("this machine")`.
Beside each kind stand the alpha and beta that fit it best over all sizes: one line
through a curve, for the closed forms of the lessons.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from labkit.bench import ring
from labkit.bench.figures import Figure, this_machine
from labkit.replay import measured
from labkit.replay.network import ring_edge_bytes
from labkit.runtime.cluster import Cluster
from labkit.units import format_bytes

GIB = 1 << 30


@dataclass(frozen=True)
class Effort:
    """What is measured, and how long each size may take on the ranks.

    Attributes:
        sizes: Bytes of the tensor.
        num_ranks: Numbers of ranks of an all-reduce; a message is timed on the first.
        budget_s: Time for the repeats of one size; at least `least` are timed.
        least: How many repeats a size gets at least.
    """

    sizes: tuple[int, ...] = tuple(1 << power for power in range(10, 27, 2))
    num_ranks: tuple[int, ...] = (2, 4)
    budget_s: float = 0.6
    least: int = 5
    most: int = 200


class Point(NamedTuple):
    """A size and the median of its repeats."""

    num_bytes: int
    seconds: float


class Fit(NamedTuple):
    """seconds = alpha_s + num_bytes * beta_s_per_byte."""

    alpha_s: float
    beta_s_per_byte: float


Clocked = list[tuple[float, float]]  # When a rank entered and left, repeat by repeat.


def figures() -> list[Figure]:
    """Measure, keep what was measured, and say it; then our ring beside gloo's."""
    effort = Effort()
    return [*measure(effort), *ring.measure(effort.num_ranks)]


def measure(effort: Effort) -> list[Figure]:
    """Measure on ranks of this machine, and keep the medians."""
    all_reduce: dict[int, list[Point]] = {}
    message: list[Point] = []
    issue_s = 0.0
    for num_ranks in effort.num_ranks:
        sys.stderr.write(f"comm: {num_ranks} gloo ranks\n")
        with Cluster(num_ranks, backend="gloo", device="cpu", quiet=True) as cluster:
            all_reduce[num_ranks] = _points(cluster, all_reduces, effort)
            if not message:
                message = _points(cluster, messages, effort)
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


def fit(points: Sequence[Point]) -> Fit:
    """The alpha and beta, none below 0, with the least squares of relative errors."""
    num_bytes = np.array([point.num_bytes for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    columns = np.stack([1 / seconds, num_bytes / seconds], axis=1)
    (alpha_s, beta), *_ = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)
    if alpha_s < 0:
        alpha_s, beta = 0.0, _only(num_bytes / seconds)
    if beta < 0:
        alpha_s, beta = _only(1 / seconds), 0.0
    return Fit(float(alpha_s), float(beta))


def _only(column: Any) -> float:
    """The factor of one column that comes closest to 1 everywhere."""
    return float(column.sum() / (column * column).sum())


def _points(
    cluster: Cluster, program: Callable[..., Clocked], effort: Effort
) -> list[Point]:
    """The median of each size, as all ranks together saw it."""
    points: list[Point] = []
    for size in effort.sizes:
        once_s = median(_spans_s(cluster.run(program, size, 3).results))
        repeats = int(effort.budget_s / max(once_s, 1e-6))
        repeats = min(effort.most, max(effort.least, repeats))
        clocked = cluster.run(program, size, repeats).results
        points.append(Point(size, median(_spans_s(clocked))))
    return points


def _spans_s(clocked: Sequence[Clocked]) -> list[float]:
    """From the last that entered to the last that left, repeat by repeat."""
    return [
        max(left for _, left in repeat) - max(entered for entered, _ in repeat)
        for repeat in zip(*(each for each in clocked if each), strict=True)
    ]


def all_reduces(num_bytes: int, repeats: int) -> Clocked:
    """Enter and leave so many all-reduces, one after another."""
    tensor = torch.ones(num_bytes // 4)

    def call() -> None:
        dist.all_reduce(tensor)

    return _clocked(call, repeats)


def messages(num_bytes: int, repeats: int) -> Clocked:
    """Rank 0 sends to rank 1, again and again; the others only keep step."""
    tensor = torch.ones(num_bytes // 4)
    rank = dist.get_rank()

    def call() -> None:
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)

    clocked = _clocked(call, repeats)
    return clocked if rank < 2 else []


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


def _clocked(call: Callable[[], None], repeats: int) -> Clocked:
    """When each call began and ended, once all ranks had come to it."""
    found: Clocked = []
    for _ in range(repeats):
        dist.barrier()
        entered_s = time.monotonic()
        call()
        found.append((entered_s, time.monotonic()))
    return found


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
