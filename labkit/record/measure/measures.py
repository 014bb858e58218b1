"""Everything that a record says of itself in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit.errors import UsageError
from labkit.record import intervals
from labkit.record.intervals import Intervals
from labkit.record.measure import (
    bandwidth,
    bubble,
    figures,
    show,
    standstill,
    steps,
    times,
    traffic,
    transfers,
    utilization,
)
from labkit.record.measure.bandwidth import Bandwidth
from labkit.record.measure.bubble import Bubble
from labkit.record.measure.clocks import Clocks
from labkit.record.measure.figures import Figure, Grid
from labkit.record.measure.steps import Steps
from labkit.record.measure.times import RankTimes, Waited
from labkit.record.measure.traffic import Sent
from labkit.record.measure.transfers import Transfer
from labkit.record.measure.utilization import Utilization
from labkit.record.program import Program
from labkit.record.soundness import require_sound
from labkit.units import format_seconds


@dataclass(frozen=True, repr=False)
class Measures:
    """The figures of a record; shown, each has its definition under it.

    Attributes:
        steps: The steps that are measured.
        times: Where each rank's time went, in the header's order of ranks.
        waits: Who stood still for whom, all steps added up, by rank.
        bubble: Idle time, to be divided by either of two times.
        bandwidths: By kind, number of ranks and size.
        utilization: MFU or HFU; None where no FLOPs are known.
        traffic: What each rank sent in the whole record, by kind.
        notes: What else is to be said of these figures.
    """

    steps: Steps
    times: tuple[RankTimes, ...]
    waits: tuple[Waited, ...]
    bubble: Bubble
    bandwidths: tuple[Bandwidth, ...]
    utilization: Utilization | None
    traffic: tuple[Sent, ...]
    notes: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Mean length of a step, each as long as on the rank where it is longest."""
        return self.steps.mean_s

    @property
    def exposed_s(self) -> float:
        """Exposed communication of one step, mean of the ranks, in seconds."""
        return self._each(sum(rank.exposed_s for rank in self.times))

    @property
    def late_s(self) -> float:
        """Waiting for late ranks in one step, mean of the ranks, in seconds."""
        return self._each(sum(rank.late_s for rank in self.times))

    @property
    def overlap(self) -> float | None:
        """Share of the transfers' time hidden under compute; None without transfers."""
        moving_s = sum(rank.transfer_s for rank in self.times)
        return (
            sum(rank.hidden_s for rank in self.times) / moving_s if moving_s else None
        )

    @property
    def uncertain_s(self) -> float:
        """How far clocks may shift time between exposed and late: of one step, too."""
        return self._each(sum(rank.uncertain_s for rank in self.times))

    def _each(self, total_s: float) -> float:
        """Seconds of all ranks and steps, for one of each."""
        return total_s / len(self.times) / len(self.steps.numbers)

    def waited_s(self, rank: int, for_rank: int | None) -> float:
        """How long a rank stood still for another, in all steps.

        With None: for ranks that cannot be told apart.
        """
        return sum(w.seconds for w in self.waits if w[:2] == (rank, for_rank))

    def figures(self) -> tuple[Figure, ...]:
        """The figures of all ranks together: name, value, definition."""
        return tuple(figures.figures(self))

    def grids(self) -> tuple[Grid, ...]:
        """The tables: by rank, who waited for whom, by transfer, traffic."""
        return tuple(figures.grids(self))

    def __str__(self) -> str:
        return show.text(self.figures(), self.grids(), self.notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return show.as_html(self.figures(), self.grids(), self.notes)


def measure(
    program: Program,
    *,
    skip_steps: int = 0,
    model_flops: float | None = None,
    peak_flops_per_s: float | None = None,
) -> Measures:
    """Measure a record.

    Args:
        program: A record with times: measured, or replayed.
        skip_steps: Leave out the first so many spans named "step": the warm-up.
        model_flops: FLOPs that the model needs for one step, over all ranks; None
            counts those of the operations in the record.
        peak_flops_per_s: Peak of one rank, for the MFU.

    Raises:
        UsageError: The record has no times (replay it first), no ranks, no closed step,
            or something in it cannot be; a number is not above 0.
    """
    if not program.header.ranks:
        raise UsageError(
            "a figure is one of at least 1 rank; this record has 0. Record a run: "
            "cluster.run(train)"
        )
    require_sound(program)
    found = intervals.read(program)
    measured = steps.find(program, skip_steps)
    together = transfers.match(program)
    ranks, waits = times.of_ranks(program, found, measured, together)
    clocks = Clocks(program.header)
    widths, num_unknown = bandwidth.of_transfers(together, measured, clocks)
    return Measures(
        steps=measured,
        times=tuple(ranks),
        waits=tuple(_added_up(waits)),
        bubble=bubble.of_ranks(ranks, measured),
        bandwidths=tuple(widths),
        utilization=utilization.of_program(
            program, measured, model_flops, peak_flops_per_s
        ),
        traffic=tuple(traffic.of_program(program)),
        notes=tuple(_notes(program, found, measured, together, clocks, num_unknown)),
    )


def _added_up(waits: list[Waited]) -> Iterator[Waited]:
    total: defaultdict[tuple[int, int | None], float] = defaultdict(float)
    for rank, for_rank, seconds in waits:
        total[rank, for_rank] += seconds
    for key in sorted(total, key=lambda key: (key[0], key[1] is None, key[1] or 0)):
        yield Waited(*key, total[key])


def _notes(
    program: Program,
    found: Intervals,
    measured: Steps,
    together: Mapping[tuple[int, int], Transfer],
    clocks: Clocks,
    num_unknown: int,
) -> Iterator[str]:
    """What the figures rest on, and what they leave out."""
    header = program.header
    if header.source == "replayed":
        yield f"Times: computed by a model of {header.hardware}, not measured."
    elif header.level == "work":
        yield "Times: stretched by the recording of every operation."
    yield from measured.left_out
    for rank, dropped in zip(header.ranks, header.dropped, strict=False):
        if dropped:
            yield (
                f"Rank {rank} lost {dropped} events: its times are those of what is "
                "left. Traffic is exact."
            )
    if clocks.worst_s:
        yield (
            f"The ranks' clocks agree to {format_seconds(clocks.worst_s)}: no "
            "difference between ranks below that is told."
        )
    untimed = sum(map(standstill.num_untimed, program.events))
    if untimed:
        yield (
            f"{untimed} waits happened inside C++ and have no times: exposed "
            "communication is at least this much. A replay gives them times."
        )
    yield from _roughly_known(together)
    if found.unended:
        yield f"{len(found.unended)} calls have no known end, and are not counted."
    if num_unknown:
        yield f"{num_unknown} transfers tell no bandwidth: their length is not known."


def _roughly_known(together: Mapping[tuple[int, int], Transfer]) -> Iterator[str]:
    """Of how many transfers the end is known less well than their length."""
    late_known = {
        id(t) for t in together.values() for p in t.parts
        if p.comm.end_source == "wait" and not p.end_is_known
    }  # fmt: skip
    if late_known:
        yield (
            f"Of {len(late_known)} transfers only a late wait tells the end: what they "
            "hid before it is not counted as overlap."
        )
    seen_late = {
        id(t) for t in together.values() for p in t.parts
        if p.comm.end_source == "look" and not p.end_is_known
    }  # fmt: skip
    if seen_late:
        yield (
            f"Of {len(seen_late)} transfers the end was seen some time after it: their "
            'lengths are at most what is told. record="work" knows them better.'
        )
