"""Published measurements of NCCL, and what transfers are fitted to.

A100, V100  all-reduce in one node, 2 to 8 ranks, 1 MB to 1 GB: vTrain's tables. Curves
            go through the rows of FITTED_MIB; the others test them.
H100        in one node only large sizes are published by size, and small ones as a
            round number. The curve has the A100's shape, moved at the rate that makes
            4 GiB on 8 ranks come out as published, and that number up to 1 MiB.
2 x H100    16 ranks, 128 MiB to 8 GiB: one figure is fitted, on OVERLAP_MIB: how much
            of the shorter of two parts (in the node, between nodes) is not hidden.

Below 1 MB nothing is measured here: a curve starts at the latency that NCCL itself
reckons with (its Ring/LL protocol on NVLink; NVIDIA/nccl issue 1334 quotes
src/graph/tuning.cc): 6.6 us and 0.6 us for each of 2 (n - 1) steps.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from statistics import mean

from labkit.replay.curve import Curve

MIB = 1 << 20
FITTED_MIB = (1, 4, 8, 16, 64, 256, 512)
OVERLAP_MIB = (256, 1024, 4096)

NCCL_BASE_S = 6.6e-6
NCCL_STEP_S = 0.6e-6
# Bus bandwidth of 8 H100 at 4 GiB: all-reduce, which the switch adds up (NVLS; from
# stas00/ml-engineering, in the table), and everything else (NVIDIA/nccl-tests 212).
H100_SWITCH_BYTES_PER_S = 480e9
H100_RING_BYTES_PER_S = 370e9
H100_ANCHOR_BYTES = 4096 * MIB


def nccl_latency_s(num_ranks: int) -> float:
    """What the smallest all-reduce in one node takes, by NCCL's own model."""
    return NCCL_BASE_S + 2 * (num_ranks - 1) * NCCL_STEP_S


def rows(name: str) -> Iterator[dict[str, str]]:
    """The rows of one of the tables in `data`, by column."""
    text = (files("labkit.replay") / "data" / name).read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return csv.DictReader(lines)


@cache
def measured(gpu: str) -> dict[tuple[int, int], float]:
    """Seconds of an all-reduce in one node, by ranks and bytes ("a100" or "v100")."""
    return {
        (int(row["ranks"]), int(row["bytes"])): float(row["time_us"]) * 1e-6
        for row in rows("vtrain_all_reduce.csv")
        if row["gpu"] == gpu
    }


@cache
def measured_on_two_nodes() -> tuple[tuple[int, float], ...]:
    """Bytes and seconds of every all-reduce on 16 H100 in two nodes."""
    return tuple(
        (int(row["bytes"]), float(row["time_us"]) * 1e-6)
        for row in rows("nccl_tests_all_reduce.csv")
        if row["ranks"] == "16" and row["time_us"]
    )


@cache
def in_one_node(gpu: str) -> dict[int, Curve]:
    """All-reduce by bytes of the tensor, for each number of ranks of a node."""
    table = measured(gpu)
    return {
        ranks: Curve.through(
            nccl_latency_s(ranks),
            [(size * MIB, table[ranks, size * MIB]) for size in FITTED_MIB],
        )
        for ranks in sorted({ranks for ranks, _ in table})
    }


@cache
def h100_in_one_node(bus_bytes_per_s: float) -> dict[int, Curve]:
    """The A100's curves, with the bus bandwidth of 8 H100 at 4 GiB."""
    shape = in_one_node("a100")
    full = shape[8]
    ours_s = H100_ANCHOR_BYTES * 1.75 / bus_bytes_per_s - full.latency_s
    rate = (full.at(H100_ANCHOR_BYTES) - full.latency_s) / ours_s
    small_s = _h100_small_s() - nccl_latency_s(8)
    return {
        ranks: _with_first_knot(curve.scaled(rate=rate), curve.latency_s + small_s)
        for ranks, curve in shape.items()
    }


def _h100_small_s() -> float:
    """What 1 MiB takes on 8 H100, as measured."""
    return next(
        float(row["time_us"]) * 1e-6
        for row in rows("h100_small_all_reduce.csv")
        if int(row["bytes"]) == MIB
    )


def _with_first_knot(curve: Curve, time_s: float) -> Curve:
    """The same with another time at its first size above 0, if that is shorter."""
    latency_s, first_s, *rest = curve.times_s
    return Curve(curve.sizes, (latency_s, min(first_s, time_s), *rest))


def exposed_between_two_nodes(
    node: Curve, nic_bytes_per_s: float, latency_s: float
) -> float:
    """How much of the shorter part adds to the longer one, from the fitted rows.

    A part is what the tensor takes to be added up inside the nodes, and what it takes
    to cross between them.
    """
    shares: list[float] = []
    for num_bytes, time_s in measured_on_two_nodes():
        if num_bytes in [size * MIB for size in OVERLAP_MIB]:
            inside_s = node.at(num_bytes) - node.latency_s
            across_s = num_bytes / nic_bytes_per_s
            left_s = time_s - latency_s - max(inside_s, across_s)
            shares.append(left_s / min(inside_s, across_s))
    return mean(shares)
