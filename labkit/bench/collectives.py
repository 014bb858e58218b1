"""Alpha and beta of every collective of ours: fitted, and drawn over what was measured.

Each is timed on ranks of this machine over sizes of the whole array; a line through
the times, divided by the rounds and arrays of its price, says what a round and a byte
cost it. One network would give all of them the same two numbers: where they differ, the
model leaves something out (adding up, ranks that share cores).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.bench.alpha_beta import Fit, Point, fit
from labkit.bench.figures import Figure
from labkit.bench.timing import GIB, Clocked, Effort, clocked, points_of
from labkit.comm import collectives as c
from labkit.comm.collectives.price import Price, price
from labkit.replay import measured
from labkit.runtime.cluster import Cluster
from labkit.view.by_size import Series, by_size

Call = Callable[[Tensor, dist.ProcessGroup], Any]


def _all_gather(x_N: Tensor, group: dist.ProcessGroup) -> None:
    own_n = c.chunks(x_N, dist.get_world_size(group))[dist.get_rank(group)]
    c.all_gather_ring(own_n, x_N.numel(), group)


def _all_to_all(x_N: Tensor, group: dist.ProcessGroup) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    parts = c.chunks(x_N, size)
    c.all_to_all(parts, [parts[rank].numel()] * size, group)


def _gather(x_N: Tensor, group: dist.ProcessGroup) -> None:
    parts = c.chunks(x_N, dist.get_world_size(group))
    sizes = [part.numel() for part in parts]
    c.gather(parts[dist.get_rank(group)], sizes, 0, group)


def _scatter(x_N: Tensor, group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    parts = c.chunks(x_N, dist.get_world_size(group))
    c.scatter(parts if rank == 0 else None, parts[rank].clone(), 0, group)


# Each on one array of every rank; whoever is the root is rank 0.
CALLS: dict[str, Call] = {
    "broadcast_naive": lambda x_N, group: c.broadcast_naive(x_N, 0, group),
    "broadcast_tree": lambda x_N, group: c.broadcast_tree(x_N, 0, group),
    "reduce_naive": lambda x_N, group: c.reduce_naive(x_N, 0, group),
    "reduce_tree": lambda x_N, group: c.reduce_tree(x_N, 0, group),
    "all_reduce_naive": c.all_reduce_naive,
    "all_reduce_tree": c.all_reduce_tree,
    "all_reduce_ring": c.all_reduce_ring,
    "all_reduce_halving": c.all_reduce_halving,
    "reduce_scatter_ring": c.reduce_scatter_ring,
    "reduce_scatter_direct": c.reduce_scatter_direct,
    "all_gather_ring": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": lambda _, group: c.barrier(group),
}
WAYS = ("naive", "tree", "ring", "halving", "direct")


class Fitted(NamedTuple):
    """A collective on so many ranks: what was measured, and the line through it."""

    name: str
    points: list[Point]
    line: Fit
    price: Price


def measure(effort: Effort, num_ranks: int) -> list[Figure]:
    """Time and fit each collective; draw them beside what else is kept."""
    sys.stderr.write(f"comm: {len(CALLS)} collectives of ours, {num_ranks} ranks\n")
    found: list[Fitted] = []
    with Cluster(num_ranks, backend="gloo", device="cpu", quiet=True) as cluster:
        for name in CALLS:
            points = points_of(cluster, partial(timed, name), effort)
            found.append(Fitted(name, points, fit(points), price(name, num_ranks)))
    file = draw(found, num_ranks)
    sys.stderr.write(f"comm: drawn in {file}\n")
    return [figure for each in found for figure in _shown(each, num_ranks)]


def timed(name: str, num_bytes: int, repeats: int) -> Clocked:
    """What each rank runs: enter and leave a collective again and again."""
    group = dist.group.WORLD
    assert group is not None
    x_N = torch.zeros(num_bytes // 4)
    return clocked(lambda: CALLS[name](x_N, group), repeats)


def draw(found: list[Fitted], num_ranks: int) -> Path:
    """A page with a panel for each operation, beside the measurements' file."""
    panels: dict[str, list[Series]] = {}
    for each in found:
        if each.price.arrays:
            operation, way = _split(each.name)
            sizes = [point.num_bytes for point in each.points]
            panels.setdefault(operation, []).append(Series(
                way, sizes, [point.seconds for point in each.points],
                [each.line.seconds(size) for size in sizes],
            ))  # fmt: skip
    title = f"Collectives on {num_ranks} ranks: measured, and alpha + bytes x beta"
    file = measured.path().with_name("collectives.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    by_size(panels, title=title).figure.write_html(file)
    return file


def _split(name: str) -> tuple[str, str]:
    """The operation and the way: ("all-reduce", "ring")."""
    operation, _, way = name.rpartition("_")
    if way not in WAYS:
        operation, way = name, "direct"
    return operation.replace("_", "-"), way


def _shown(each: Fitted, num_ranks: int) -> list[Figure]:
    """What a round and a byte cost, with how far the line is from a point at most."""
    name = f"{each.name}, {num_ranks} ranks, fitted"
    figures = [Figure(f"{name}: alpha", "s", each.line.alpha_s / each.price.rounds)]
    if each.price.arrays:
        off = f"line off by at most {each.line.worst(each.points):.0%}"
        beta = each.line.beta_s_per_byte / each.price.arrays
        figures.append(Figure(f"{name}: beta x 1 GiB ({off})", "s", beta * GIB))
    return figures
