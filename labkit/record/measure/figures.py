"""Measures in words: each figure with its definition under it.

A figure without its definition is the most common mistake: two papers' "bubble" divide
by different times, and "communication" often means waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.record.measure.bandwidth import Bandwidth, factor
from labkit.record.measure.times import RankTimes
from labkit.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from labkit.record.measure.measures import Measures

NOTHING = "\u2014"
MAX_MATRIX = 16
TIMES_HEAD = (
    "rank", "step", "compute", "exposed transfer", "waiting for a late rank", "other",
    "overlap",
)  # fmt: skip
BANDWIDTH_HEAD = ("transfer", "ranks", "size S", "count", "time t", "algbw", "busbw")
TRAFFIC_HEAD = ("rank", "kind", "calls", "payload", "wire")


class Figure(NamedTuple):
    """A figure as it is shown, and what exactly it is."""

    name: str
    value: str
    definition: str


class Grid(NamedTuple):
    """A table of figures: `definition` says what stands in it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    definition: str


def share(value: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def figures(m: Measures) -> Iterator[Figure]:
    """The figures of all ranks together."""
    yield _step_time(m)
    yield _exposed(m)
    yield _late(m)
    yield Figure(
        "overlap", share(m.overlap),
        "share of the time in which a rank's transfers were under way during which the "
        "same rank computed; all ranks together",
    )  # fmt: skip
    yield Figure(
        "bubble", f"{share(m.bubble.of_ideal)} of ideal, "
        f"{share(m.bubble.of_total)} of total",
        "idle / ideal and idle / total: the time of a step in which a rank did not "
        "compute, whatever the reason, over the time that it computed, and over the "
        "step time; all ranks together",
    )  # fmt: skip
    if m.utilization is not None:
        yield _utilization(m)


def _step_time(m: Measures) -> Figure:
    lengths = list(m.steps.lengths_s.values())
    if not m.steps.by_span:
        return Figure(
            "time", format_seconds(m.step_s),
            'the whole record: it has no spans named "step"',
        )  # fmt: skip
    seen = f"{len(lengths)} steps" if len(lengths) > 1 else "1 step"
    spread = ""
    if len(lengths) > 1:
        least, most = format_seconds(min(lengths)), format_seconds(max(lengths))
        spread = f", from {least} to {most}"
    return Figure(
        "step time", f"{format_seconds(m.step_s)} ({seen}{spread})",
        'length of the span "step" on the rank where it is longest; mean of the steps',
    )  # fmt: skip


def _exposed(m: Measures) -> Figure:
    return Figure(
        "exposed communication", _of_step(m, m.exposed_s),
        "time of a step in which a rank's compute stood still for a transfer that was "
        "under way: every rank had come; mean of the ranks, and share of the step",
    )  # fmt: skip


def _late(m: Measures) -> Figure:
    return Figure(
        "waiting for a late rank", _of_step(m, m.late_s),
        "time of a step in which a rank's compute stood still for a transfer that "
        "could not begin, since another rank had not come yet; mean of the ranks",
    )  # fmt: skip


def _of_step(m: Measures, part_s: float) -> str:
    """A part of the step time, its share, and what the clocks leave open of it."""
    of_step = share(part_s / m.step_s if m.step_s else None)
    shown = f"{format_seconds(part_s)} ({of_step})"
    if not m.uncertain_s:
        return shown
    shown += f", \u00b1 {format_seconds(m.uncertain_s)} by the ranks' clocks"
    if part_s <= m.uncertain_s:
        shown += ": not above what the clocks can tell"
    return shown


def _utilization(m: Measures) -> Figure:
    used = m.utilization
    assert used is not None
    counted = used.source == "counted"
    what = (
        "FLOPs of the operations in the record, recomputed ones too (papers call the "
        "share HFU; it is the MFU where nothing is recomputed)"
        if counted
        else "model FLOPs as given"
    )
    achieved = format_rate(used.flops_per_s, "FLOP/s")
    if used.share is None:
        return Figure(
            "achieved", achieved, f"{what}, of one step over all ranks / step time"
        )
    wrong = ": above the peak, so the peak or the FLOPs are wrong" * (used.share > 1)
    return Figure(
        "HFU" if counted else "MFU", f"{share(used.share)} ({achieved}){wrong}",
        f"{what}, of one step over all ranks / (step time x peak of all ranks, "
        f"{format_rate(used.peak_flops_per_s or 0, 'FLOP/s')})",
    )  # fmt: skip


def grids(m: Measures) -> Iterator[Grid]:
    """The figures of each rank, of each kind of transfer, and who waited for whom."""
    yield Grid(
        TIMES_HEAD, tuple(_times(rank, len(m.steps.numbers)) for rank in m.times),
        "of one step: compute + exposed + waiting + other = step; other is time in "
        "which nothing in the record says what the rank did",
    )  # fmt: skip
    if m.waits and len(m.times) <= MAX_MATRIX:
        yield _matrix(m)
    if m.bandwidths:
        yield Grid(
            BANDWIDTH_HEAD, tuple(map(_bandwidth, m.bandwidths)),
            "nccl-tests' definition: algbw = S / t, busbw = algbw x factor; t from "
            "when the last rank came until the transfer ended. Transfers that run at "
            "the same time share the links",
        )  # fmt: skip
    if m.traffic:
        yield Grid(
            TRAFFIC_HEAD, tuple(_traffic(m)),
            "of the whole record: payload was handed over, wire left the rank (for a "
            "backend's own collective derived from its algorithm)",
        )  # fmt: skip


def _times(rank: RankTimes, num_steps: int) -> tuple[str, ...]:
    seconds = (rank.total_s, rank.compute_s, rank.exposed_s, rank.late_s, rank.other_s)
    shown = (format_seconds(each / num_steps) for each in seconds)
    return str(rank.rank), *shown, share(rank.overlap)


def _matrix(m: Measures) -> Grid:
    columns: list[int | None] = [rank.rank for rank in m.times]
    if any(wait.for_rank is None for wait in m.waits):
        columns.append(None)
    names = ("cannot be told" if c is None else f"for {c}" for c in columns)
    rows = tuple(
        (f"rank {rank.rank}", *(_cell(m, rank.rank, column) for column in columns))
        for rank in m.times
    )
    return Grid(
        ("waited", *names), rows,
        "of one step: how long a rank (row) stood still for another (column) that came "
        "last; where two ranks came closer together than their clocks can tell, or not "
        "every rank is in the record, nobody is named",
    )  # fmt: skip


def _cell(m: Measures, rank: int, for_rank: int | None) -> str:
    seconds = m.waited_s(rank, for_rank) / len(m.steps.numbers)
    return format_seconds(seconds) if seconds else NOTHING


def _bandwidth(found: Bandwidth) -> tuple[str, ...]:
    return (
        found.kind, str(found.num_ranks), format_bytes(found.array_bytes),
        str(found.num_transfers), format_seconds(found.seconds),
        format_rate(found.algbw_bytes_per_s, "B/s"),
        f"{format_rate(found.busbw_bytes_per_s, 'B/s')} "
        f"(x {factor(found.kind, found.num_ranks):.3g})",
    )  # fmt: skip


def _traffic(m: Measures) -> Iterator[tuple[str, ...]]:
    for row in m.traffic:
        wire = NOTHING if row.wire_bytes is None else format_bytes(row.wire_bytes)
        payload = format_bytes(row.payload_bytes)
        yield str(row.rank), row.kind, str(row.num_calls), payload, wire
