"""Where each rank's time went: compute, exposed transfers, waiting, the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from labkit.record.ahead import runs_ahead
from labkit.record.intervals import Intervals
from labkit.record.measure import standstill
from labkit.record.measure.awaited import Awaited
from labkit.record.measure.clocks import Clocks
from labkit.record.measure.cover import Cover
from labkit.record.measure.steps import Steps
from labkit.record.measure.transfers import Transfer
from labkit.record.program import Program


class RankTimes(NamedTuple):
    """One rank's seconds in the measured steps, all steps added up.

    `compute_s + exposed_s + late_s + other_s == total_s`. `exposed_s`: compute stood
    still for a transfer under way; `late_s`: for a rank that had not come yet.
    `transfer_s`: at least one transfer was under way, of which `hidden_s` under
    compute. `uncertain_s`: how far the clocks may shift time between exposed and late.
    """

    rank: int
    total_s: float
    compute_s: float
    exposed_s: float
    late_s: float
    other_s: float
    transfer_s: float
    hidden_s: float
    uncertain_s: float

    @property
    def overlap(self) -> float | None:
        """Share of the transfers' time that is hidden; None without transfers."""
        return self.hidden_s / self.transfer_s if self.transfer_s else None


class Waited(NamedTuple):
    """A rank stood still for another; `for_rank` is None where nobody can say who."""

    rank: int
    for_rank: int | None
    seconds: float


def of_ranks(
    program: Program,
    found: Intervals,
    steps: Steps,
    transfers: Mapping[tuple[int, int], Transfer],
) -> tuple[list[RankTimes], list[Waited]]:
    """Each rank's times, and who stood still for whom."""
    times: list[RankTimes] = []
    waits: list[Waited] = []
    clocks, awaited = Clocks(program.header), Awaited(program, transfers)
    compute, moving = _covers(program, found)
    for rank, events in zip(program.header.ranks, program.events, strict=True):
        window = steps.covers[rank]
        busy = compute[rank].common(window)
        idle = window.without(busy)
        length = {"late": 0.0, "transfer": 0.0}
        uncertain: dict[int, float] = {}
        for part in standstill.find(events, program.duration_s):
            seconds = idle.length_within(part.start, part.end)
            if not seconds:
                continue
            two = awaited.last_two(part.comm)
            length[part.why] += seconds
            apart_s = clocks.apart_s(rank, two[0].comm.rank) if two else 0.0
            uncertain[part.comm.id] = min(part.wait_s, apart_s)
            if part.why == "late":
                waits.append(Waited(rank, awaited.rank(part.comm), seconds))
        under_way = moving[rank].common(window)
        rest = idle.length - length["transfer"] - length["late"]
        times.append(RankTimes(
            rank, window.length, busy.length, length["transfer"], length["late"],
            max(0.0, rest), under_way.length, under_way.common(busy).length,
            sum(uncertain.values()),
        ))  # fmt: skip
    return times, waits


def _covers(
    program: Program, found: Intervals
) -> tuple[dict[int, Cover], dict[int, Cover]]:
    """When each rank computed, and when a transfer of it was under way.

    On a GPU, what runs on another stream than 0 goes beside compute; on a CPU it is
    the host that runs it.
    """
    on_streams = runs_ahead(program)
    compute: dict[int, list[tuple[float, float]]] = {rank: [] for rank in found.ranks}
    moving: dict[int, list[tuple[float, float]]] = {rank: [] for rank in found.ranks}
    for row, _, stream in found.stretches:
        if row.kind == "transfer":
            moving[row.rank].append((row.start, row.end))
        elif row.kind == "compute" and not (on_streams and stream):
            compute[row.rank].append((row.start, row.end))
    return (
        {rank: Cover(pieces) for rank, pieces in compute.items()},
        {rank: Cover(pieces) for rank, pieces in moving.items()},
    )
