"""How fast one rank of this machine computes: what replay takes "this machine" to do.

    an operation    torch's own time for the smallest one: launch_s of the model
    a product       square matrix products, by size and dtype
    a copy          bytes read and written, by size

On one rank with one thread, as ranks that share few cores have it. The medians are
kept for `labkit.replay.catalog.hardware("this machine")`, products and copies less the
time of an operation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from labkit.bench.figures import Figure, this_machine
from labkit.replay import measured
from labkit.runtime.cluster import Cluster
from labkit.units import format_bytes

DTYPES = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Effort:
    """What is measured, and how long one thing may take.

    Attributes:
        dims: Sides of the matrices.
        copied_bytes: Sizes of the copied tensor.
        budget_s: Time for each size, unless one call takes longer.
        longest_s: Larger sizes are left out once a call takes this.
    """

    dims: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    copied_bytes: tuple[int, ...] = tuple(1 << power for power in range(12, 29, 2))
    budget_s: float = 0.5
    longest_s: float = 1.0


@dataclass(frozen=True)
class Measured:
    """Medians on one rank: (FLOPs, seconds) of products, (bytes, seconds) of copies."""

    operation_s: float
    matmul: dict[str, list[tuple[float, float]]]
    copy: list[tuple[float, float]]


def figures() -> list[Figure]:
    """Measure, keep what was measured, and say it."""
    return measure(Effort())


def measure(effort: Effort) -> list[Figure]:
    """Measure on one rank of this machine, and keep the medians."""
    sys.stderr.write("compute: one rank, one thread\n")
    with Cluster(1, device="cpu", threads=1, quiet=True) as cluster:
        found: Measured = cluster.run(timed, effort).results[0]
    file = measured.store("compute", as_stored(found))
    sys.stderr.write(f"compute: kept in {file}\n")
    return [
        Figure("an operation on one number", "s", found.operation_s),
        *(
            Figure(_product(dtype, flops, seconds), "s", seconds)
            for dtype, points in found.matmul.items()
            for flops, seconds in points
        ),
        *(Figure(_copy(moved, seconds), "s", seconds) for moved, seconds in found.copy),
    ]


def as_stored(found: Measured) -> dict[str, Any]:
    """In the form that `labkit.replay.measured` reads: less what launching takes."""

    def less(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(size, max(0.0, s - found.operation_s)) for size, s in points]

    return {
        "machine": this_machine(),
        "operation_s": found.operation_s,
        "matmul": {dtype: less(points) for dtype, points in found.matmul.items()},
        "copy": less(found.copy),
    }


def timed(effort: Effort) -> Measured:
    """Time everything, on the rank that calls."""
    with torch.no_grad():
        return Measured(
            _operation_s(effort.budget_s),
            {dtype: _products(dtype, effort) for dtype in DTYPES},
            _copies(effort),
        )


def _operation_s(budget_s: float) -> float:
    one, other = torch.ones(1), torch.ones(1)

    def many() -> None:
        for _ in range(100):
            one.add_(other)

    return _median_s(many, budget_s) / 100


def _products(dtype: str, effort: Effort) -> list[tuple[float, float]]:
    """(FLOPs, seconds) of square products, up to the first that takes too long."""
    points: list[tuple[float, float]] = []
    for dim in effort.dims:
        left = torch.ones(dim, dim, dtype=getattr(torch, dtype))
        right, out = left.clone(), left.clone()
        seconds = _median_s(lambda: torch.mm(left, right, out=out), effort.budget_s)  # noqa: B023
        points.append((2.0 * dim**3, seconds))
        if seconds > effort.longest_s:
            break
    return points


def _copies(effort: Effort) -> list[tuple[float, float]]:
    """(bytes moved, seconds) of copies: each byte is read and written."""
    points: list[tuple[float, float]] = []
    for size in effort.copied_bytes:
        source, target = torch.ones(size // 4), torch.zeros(size // 4)
        seconds = _median_s(lambda: target.copy_(source), effort.budget_s)  # noqa: B023
        points.append((2.0 * size, seconds))
    return points


def _median_s(call: Callable[[], object], budget_s: float) -> float:
    """The median of as many calls as the budget has time for: at least three."""
    call()
    taken_s: list[float] = []
    until_s = time.perf_counter() + budget_s
    while len(taken_s) < 3 or time.perf_counter() < until_s:
        start_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - start_s)
    return median(taken_s)


def _product(dtype: str, flops: float, seconds: float) -> str:
    dim = round((flops / 2) ** (1 / 3))
    return f"{dtype} {dim}^3 ({flops / seconds / 1e9:.3g} GFLOP/s)"


def _copy(moved_bytes: float, seconds: float) -> str:
    rate = moved_bytes / seconds / 1e9
    return f"copy {format_bytes(moved_bytes / 2)} ({rate:.3g} GB/s)"
