"""Draws a record as a timeline: who computed, who waited for whom, what moved.

Compute lies above, a thin row of communication below it, in which *waiting* (hatched)
and *transfer* (solid) are told apart: a rank that stands in a call for 200 ms because
another comes late has communicated for none of them.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from labkit.record.events import P2P as P2P_KINDS
from labkit.record.events import CommStart, Event
from labkit.record.intervals import Intervals, Message, Moment, Row, Stretch, read
from labkit.units import format_bytes, format_seconds
from labkit.view import chart, image, interactive
from labkit.view.bundle import Still
from labkit.view.chart import Arrow, Bar, Chart, Dot, Look

MAX_SPANS = 1500
MAX_GUIDES = 20
LETTER_SHARE = 0.007  # Of a small letter's width in the picture's.
_BY_SPAN = {
    "forward": chart.FORWARD,
    "backward": chart.BACKWARD,
    "optimizer": chart.OPTIMIZER,
}


def timeline(
    events_by_rank: Sequence[Sequence[Event]],
    *,
    title: str = "",
    caption: str = "measured on this machine",
    ranks: Sequence[int] | None = None,
) -> Still:
    """Draw what ranks did: one band a rank, one clock for all.

    Args:
        events_by_rank: The ordered events of each rank.
        title: Stands above the picture.
        caption: Says what the times are: measured, dry, replayed on what.
        ranks: Whose events they are; 0, 1, 2, ... if not given.
    """
    found = read(events_by_rank, ranks=ranks)
    drawn = _draw(found, title, caption)
    png, size = image.render(drawn)
    text = "\n".join([title, *drawn.lines] if title else drawn.lines)
    return Still(interactive.figure(drawn), png, *size, text)


def _draw(found: Intervals, title: str, caption: str) -> Chart:
    places = {rank: float(place) for place, rank in enumerate(found.ranks)}
    stretches, left_out = _longest(found.stretches)
    arrows = found.messages[:MAX_SPANS]
    return Chart(
        title=title,
        lines=tuple(_lines(found, caption, left_out)),
        row_labels=tuple(f"rank {rank}" for rank in found.ranks),
        duration=found.duration,
        bars=tuple(_bar(stretch, places) for stretch in stretches),
        arrows=tuple(_arrow(message, places) for message in arrows),
        marks=tuple(_labelled(found, places)),
        calls=tuple(_dots(found.unended, places, sum(chart.COMM_ROW) / 2)),
        guides=tuple(_guides(found.steps)),
    )


def _longest(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Row]]:
    """What is drawn, and what is too much to draw: the shortest stretches."""
    by_length = sorted(
        stretches, key=lambda stretch: stretch.row.start - stretch.row.end
    )
    left_out = [stretch.row for stretch in by_length[MAX_SPANS:]]
    kept = by_length[:MAX_SPANS]
    return sorted(kept, key=lambda stretch: stretch.row.start), left_out


def _bar(stretch: Stretch, places: dict[int, float]) -> Bar:
    row, comm = stretch
    top, bottom = chart.COMPUTE_ROW if comm is None else chart.COMM_ROW
    place = places[row.rank]
    look = _look(row, comm)
    hover = _hover(row, comm)
    return Bar(look, place + top, place + bottom, row.start, row.end, hover)


def _look(row: Row, comm: CommStart | None) -> Look:
    if comm is None:
        return _BY_SPAN.get(row.name.split(" ")[0].lower(), chart.COMPUTE)
    if row.kind == "waiting":
        return chart.WAITING
    return chart.P2P if comm.kind in P2P_KINDS else chart.COLLECTIVE


def _hover(row: Row, comm: CommStart | None) -> str:
    """What, on which rank, when, how long, how much, from which line."""
    length = row.end - row.start
    parts = [f"<b>{html.escape(row.name)}</b> {row.kind}, rank {row.rank}"]
    parts.append(f"{format_seconds(length)} from {format_seconds(row.start)}")
    if comm is not None and comm.payload_bytes:
        rate = ""
        if row.kind == "transfer" and length > 0:
            rate = f", {format_bytes(comm.payload_bytes / length)}/s"
        parts.append(f"payload {format_bytes(comm.payload_bytes)}{rate}")
    if comm is not None and comm.site is not None:
        parts.append(f"line {comm.site.line} of {html.escape(comm.site.function)}")
    return "<br>".join(parts)


def _arrow(message: Message, places: dict[int, float]) -> Arrow:
    middle = sum(chart.COMM_ROW) / 2
    return Arrow(
        (message.sent, places[message.source] + middle),
        (message.received, places[message.destination] + middle),
        f"rank {message.source} to rank {message.destination}, "
        f"{format_bytes(message.comm.payload_bytes)}",
    )


def _dots(
    moments: Sequence[Moment], places: dict[int, float], height: float
) -> Iterator[Dot]:
    for moment in moments[:MAX_SPANS]:
        name = html.escape(moment.name)
        hover = f"<b>{name}</b>, rank {moment.rank}, at {format_seconds(moment.at)}"
        yield Dot(moment.at, places[moment.rank] + height, moment.name, hover)


def _labelled(found: Intervals, places: dict[int, float]) -> list[Dot]:
    """The marks, each with its name on the side where no other stands in the way."""
    dots = list(_dots(found.marks, places, chart.MARK_AT))
    letter = found.duration * LETTER_SHARE
    free_from: dict[float, float] = {}
    for index, dot in enumerate(dots):
        room = letter * (len(dot.label) + 3)
        following = (other.x for other in dots[index + 1 :] if other.y == dot.y)
        end = next(following, found.duration + 2 * letter)
        if dot.x + room <= end:
            dots[index] = dot._replace(side="right")
            free_from[dot.y] = dot.x + room
        elif dot.x - room >= free_from.get(dot.y, 0.0):
            dots[index] = dot._replace(side="left")
        free_from[dot.y] = max(free_from.get(dot.y, 0.0), dot.x + 2 * letter)
    return dots


def _guides(steps: Sequence[float]) -> Iterator[tuple[float, str]]:
    """A line where a step begins: every step, or every so many of a long record."""
    stride = -(-len(steps) // MAX_GUIDES) or 1
    for step in range(0, len(steps), stride):
        yield steps[step], f"step {step}"


def _lines(found: Intervals, caption: str, left_out: Sequence[Row]) -> Iterator[str]:
    """The picture in words: for those who cannot see it, and for a terminal."""
    parts = [_number(len(found.ranks), "rank"), format_seconds(found.duration)]
    if found.steps:
        parts.insert(1, _number(len(found.steps), "step"))
    calls = {
        row.name.partition("#")[0] for row, comm in found.stretches if comm is not None
    }
    told = f"Calls: {', '.join(sorted(calls))}." if calls else "No communication."
    yield f"{', '.join(parts)}. {told}" + (f" Times: {caption}." if caption else "")
    if any(row.kind == "waiting" for row, _ in found.stretches):
        yield _waits(found.total("waiting"))
    if left_out:
        yield (
            f"{len(left_out)} of {len(found.stretches)} stretches are not drawn: the "
            f"shortest, none above {format_seconds(_longest_of(left_out))}."
        )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _longest_of(left_out: Sequence[Row]) -> float:
    return max(row.end - row.start for row in left_out)


def _waits(totals: dict[int, float]) -> str:
    """Who waited how long: everybody, or of many ranks the two extremes."""
    if len(totals) <= 8:
        each = (f"rank {rank}: {format_seconds(s)}" for rank, s in totals.items())
        return f"Waited for other ranks: {', '.join(each)}."
    least, most = (
        min(totals, key=totals.__getitem__),
        max(totals, key=totals.__getitem__),
    )
    return (
        f"Waited for other ranks: from {format_seconds(totals[least])} (rank {least}) "
        f"to {format_seconds(totals[most])} (rank {most})."
    )
