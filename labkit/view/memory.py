"""Draws what ranks hold in memory, by kind: at each rank's peak, and over time.

Where the peak is, and of which kind, says what would lower it: sharding the optimizer
does nothing for a rank whose peak is activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from labkit.errors import UsageError
from labkit.record.ahead import runs_ahead
from labkit.record.events import MemoryKind
from labkit.record.holdings import KINDS, Curve, Held, curve, peaks
from labkit.record.program import Program, Span
from labkit.record.track import STEP
from labkit.units import byte_unit, format_bytes, format_seconds, time_unit
from labkit.view import memory_figure, memory_image
from labkit.view.bundle import Still
from labkit.view.chart import spaced

MAX_POINTS = 800
MAX_NAMED = 3
MAX_GUIDES = 12


class Area(NamedTuple):
    """The stacked part of one kind: what it adds to bars and curve, in `unit`s."""

    kind: MemoryKind
    bars: tuple[float, ...]
    curve: tuple[float, ...]


@dataclass(frozen=True)
class MemoryChart:
    """The whole picture in plain numbers.

    Attributes:
        title: Stands above the picture.
        lines: Stand under it.
        bar_labels: The ranks.
        bar_notes: What stands at the end of each bar.
        areas: The kinds that occur, from the axis upwards.
        unit: Of all sizes.
        curve_label: Whose curve it is.
        curve_at: Where each of the curve's values begins, the last where it ends.
        curve_axis: What `curve_at` counts, with its unit.
        peak_at: Where the curve has its peak.
        guides: Where the rank's steps begin, each with its name.
    """

    title: str
    lines: tuple[str, ...]
    bar_labels: tuple[str, ...]
    bar_notes: tuple[str, ...]
    areas: tuple[Area, ...]
    unit: str
    curve_label: str
    curve_at: tuple[float, ...]
    curve_axis: str
    peak_at: float | None
    guides: tuple[tuple[float, str], ...]


def memory(program: Program, *, rank: int | None = None, title: str = "") -> Still:
    """Draw each rank's peak by kind, and one rank's memory over time.

    Args:
        program: A record of level "work", a dry run's, or what replay made of one.
        rank: Whose curve; by default that of the rank with the highest peak.
        title: Stands above the picture.

    Raises:
        UsageError: The record does not tell of memory, or has no such rank.
    """
    drawn = draw(program, rank, title)
    png, size = memory_image.render(drawn)
    text = "\n".join([title, *drawn.lines] if title else drawn.lines)
    return Still(memory_figure.figure(drawn), png, *size, text)


def draw(program: Program, rank: int | None = None, title: str = "") -> MemoryChart:
    """The picture in plain numbers."""
    tops = peaks(program)
    if not tops:
        raise UsageError(
            "a picture of memory is of at least 1 rank; this record has 0. Record a "
            'run: cluster.run(train, record="work")'
        )
    highest = max(tops, key=lambda top: top.total_bytes)
    shown = _thinned(curve(program, highest.rank if rank is None else rank))
    size, unit = byte_unit(highest.total_bytes)
    at, axis = _axis(program, shown)
    totals = shown.totals
    areas = (
        Area(
            kind,
            tuple(top.bytes_by_kind[kind] / size for top in tops),
            tuple(num_bytes / size for num_bytes in shown.bytes_by_kind[kind]),
        )
        for kind in KINDS
    )
    steps = list(_steps(program, shown.rank))
    return MemoryChart(
        title=title,
        lines=tuple(_lines(program, tops)),
        bar_labels=tuple(f"rank {top.rank}" for top in tops),
        bar_notes=tuple(map(_note, tops)),
        areas=tuple(area for area in areas if any(area.bars) or any(area.curve)),
        unit=unit,
        curve_label=f"rank {shown.rank}",
        curve_at=at,
        curve_axis=axis,
        peak_at=at[totals.index(max(totals))] if totals else None,
        guides=tuple(spaced(steps, at[-1] - at[0], MAX_GUIDES)) if totals else (),
    )


def _thinned(found: Curve) -> Curve:
    """At most MAX_POINTS changes and the last: of some in a row, the highest."""
    totals = found.totals
    if len(totals) <= MAX_POINTS:
        return found
    bounds = [len(totals) * part // MAX_POINTS for part in range(MAX_POINTS + 1)]
    kept = [
        max(range(start, end), key=totals.__getitem__)
        for start, end in pairwise(bounds)
    ]
    # What is held at the end is looked for at the end.
    if kept[-1] != len(totals) - 1:
        kept.append(len(totals) - 1)
    return Curve(
        found.rank,
        tuple(found.seqs[place] for place in kept),
        found.times_s and tuple(found.times_s[place] for place in kept),
        {k: tuple(c[place] for place in kept) for k, c in found.bytes_by_kind.items()},
    )


def _axis(program: Program, shown: Curve) -> tuple[tuple[float, ...], str]:
    """Where each value begins and the last ends: in time, or by events."""
    if not shown.seqs:
        return (), "event"
    if shown.times_s is None or not _has_moments(program):
        return (*shown.seqs, program.of(shown.rank)[-1].seq + 1), "event"
    scale, unit = time_unit(program.duration_s)
    times_s = (*shown.times_s, max(program.duration_s, shown.times_s[-1]))
    return tuple(at_s * scale for at_s in times_s), f"time ({unit})"


def _has_moments(program: Program) -> bool:
    """Whether it makes sense to say when a storage came to be.

    Where the host runs ahead, that is not when the work on it is done.
    """
    return program.header.has_times and not runs_ahead(program)


def _steps(program: Program, rank: int) -> Iterator[tuple[float, str]]:
    """Where each step begins, and its name."""
    scale = time_unit(program.duration_s)[0] if _has_moments(program) else None
    for event in program.of(rank):
        if isinstance(event, Span) and event.name == STEP and event.lane == 0:
            at = event.seq if scale is None else (event.start_s or 0.0) * scale
            yield at, f"{STEP} {event.step}"


def _note(top: Held) -> str:
    where = f" in {top.span}" if top.span is not None else ""
    return f"{format_bytes(top.total_bytes)}{where}"


def _lines(program: Program, tops: Sequence[Held]) -> Iterator[str]:
    """The picture in words: for those who cannot see it, and for a terminal."""
    highest = max(tops, key=lambda top: top.total_bytes)
    lowest = min(tops, key=lambda top: top.total_bytes)
    has_moment = _has_moments(program)
    yield f"Highest peak: {_told(highest, has_moment)}."
    if lowest.total_bytes < highest.total_bytes:
        yield f"Lowest peak: {_told(lowest, has_moment)}."
    whose = {"dry": " of a dry run", "replayed": ", whatever the times"}
    source = whose.get(program.header.source, "")
    yield f"Bytes of the tensors' storages{source}; an allocator reserves more."


def _told(top: Held, has_moment: bool) -> str:
    held = sorted(top.bytes_by_kind.items(), key=lambda item: -item[1])
    kinds = ", ".join(f"{k} {format_bytes(n)}" for k, n in held[:MAX_NAMED] if n)
    at = (
        f" at {format_seconds(top.at_s)}" if top.at_s is not None and has_moment else ""
    )
    return f"rank {top.rank}, {_note(top)}{at}" + (f" ({kinds})" if kinds else "")
