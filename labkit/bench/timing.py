"""Times a transfer on ranks: from the last that entered it to the last that left.

The ranks' clocks are the same clock on one machine. The median of repeats counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch.distributed as dist

from labkit.bench.alpha_beta import Point
from labkit.runtime.cluster import Cluster

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


Clocked = list[tuple[float, float]]  # When a rank entered and left, repeat by repeat.


def points_of(
    cluster: Cluster, program: Callable[..., Clocked], effort: Effort
) -> list[Point]:
    """The median of each size, as all ranks together saw it."""
    points: list[Point] = []
    for size in effort.sizes:
        once_s = median(spans_s(cluster.run(program, size, 3).results))
        repeats = int(effort.budget_s / max(once_s, 1e-6))
        repeats = min(effort.most, max(effort.least, repeats))
        by_rank = cluster.run(program, size, repeats).results
        points.append(Point(size, median(spans_s(by_rank))))
    return points


def spans_s(by_rank: Sequence[Clocked]) -> list[float]:
    """From the last that entered to the last that left, repeat by repeat."""
    return [
        max(left for _, left in repeat) - max(entered for entered, _ in repeat)
        for repeat in zip(*(each for each in by_rank if each), strict=True)
    ]


def clocked(call: Callable[[], None], repeats: int) -> Clocked:
    """When each call began and ended, once all ranks had come to it."""
    found: Clocked = []
    for _ in range(repeats):
        dist.barrier()
        entered_s = time.monotonic()
        call()
        found.append((entered_s, time.monotonic()))
    return found
