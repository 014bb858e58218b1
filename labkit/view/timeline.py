"""Draws a record as a timeline: who computed, who waited for whom, what moved.

Compute lies above, a thin row of communication below it, in which *waiting* (hatched)
and *transfer* (solid) are told apart: a rank that stands in a call for 200 ms because
another comes late has communicated for none of them.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from labkit.record.intervals import Intervals, Message, Row, Stretch, Unended, read
from labkit.record.measure.awaited import Awaited
from labkit.record.program import Comm, Header, Moment, Program
from labkit.units import format_bytes, format_seconds
from labkit.view import chart, image, interactive
from labkit.view.bundle import Still
from labkit.view.chart import Arrow, Bar, Chart, Dot, Look

MAX_DRAWN = 1500  # Of stretches, of arrows, of dots.
SEEN_PARTS = 3000  # Of the picture's width: less cannot be seen.
MAX_GUIDES = 20
LETTER_SHARE = 0.007  # Of a small letter's width in the picture's.
_BY_SPAN = {
    "forward": chart.FORWARD,
    "backward": chart.BACKWARD,
    "optimizer": chart.OPTIMIZER,
}


def timeline(program: Program, *, title: str = "", caption: str = "") -> Still:
    """Draw what ranks did: one band a rank, one clock for all.

    Args:
        program: A record, or what replay made of one.
        title: Stands above the picture.
        caption: What else is to be said of the times, after what they are.

    Raises:
        UsageError: The record has no times.
    """
    return still(draw(program, title, caption))


def still(drawn: Chart) -> Still:
    """The picture in the three forms that a front end may show."""
    png, size = image.render(drawn)
    lines = [drawn.title, *drawn.lines] if drawn.title else drawn.lines
    return Still(interactive.figure(drawn), png, *size, "\n".join(lines))


def draw(program: Program, title: str = "", caption: str = "") -> Chart:
    """The timeline in plain numbers."""
    found = read(program)
    places = {rank: float(place) for place, rank in enumerate(found.ranks)}
    stretches, left_out = _longest(_coalesced(found))
    told = " ".join(filter(None, [whose_times(program.header), caption]))
    awaited = Awaited(program)
    races = list(_races(program, found, places))
    steps = [(at, f"step {step}") for step, at in enumerate(found.steps)]
    return Chart(
        title=title,
        lines=(*_lines(found, told, left_out), *_told_races(races)),
        row_labels=tuple(f"rank {rank}" for rank in found.ranks),
        duration=found.duration,
        bars=tuple(_bar(stretch, places, awaited) for stretch in stretches),
        arrows=tuple(_arrow(m, places) for m in found.messages[:MAX_DRAWN]),
        marks=tuple(_labelled(found, places)),
        calls=tuple(_dots(found.unended, places, sum(chart.COMM_ROW) / 2)),
        guides=tuple(chart.spaced(steps, found.duration, MAX_GUIDES)),
        races=tuple(races[:MAX_DRAWN]),
    )


def whose_times(header: Header) -> str:
    """What the times of a record are, in a sentence."""
    if header.source == "replayed":
        return f"Times: computed by a model of {header.hardware}, not measured."
    slower = ", stretched by the recording of every operation"
    return f"Times: measured on {header.hardware}{slower * (header.level == 'work')}."


def _coalesced(found: Intervals) -> list[Stretch]:
    """Stretches of compute of one name, joined over gaps too small to be seen."""
    gap = found.duration / SEEN_PARTS
    joined: list[Stretch] = []
    last: dict[tuple[int, int], int] = {}
    for stretch in found.stretches:
        row, key = stretch.row, (stretch.row.rank, stretch.stream)
        index = last.get(key)
        if stretch.comm is None:
            before = joined[index].row if index is not None else None
            if (
                index is not None
                and before is not None
                and (before.name, before.step) == (row.name, row.step)
                and row.start - before.end <= gap
            ):
                joined[index] = stretch._replace(row=row._replace(start=before.start))
                continue
            last[key] = len(joined)
        joined.append(stretch)
    return joined


def _longest(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Row]]:
    """What is drawn, and what is too much to draw: the shortest stretches."""
    by_length = sorted(
        stretches, key=lambda stretch: stretch.row.start - stretch.row.end
    )
    left_out = [stretch.row for stretch in by_length[MAX_DRAWN:]]
    kept = by_length[:MAX_DRAWN]
    return sorted(kept, key=lambda stretch: stretch.row.start), left_out


def _bar(stretch: Stretch, places: dict[int, float], awaited: Awaited) -> Bar:
    row, comm = stretch.row, stretch.comm
    top, bottom = chart.COMPUTE_ROW if comm is None else chart.COMM_ROW
    place = places[row.rank]
    look = _look(row, comm)
    hover = _hover(row, comm, awaited)
    return Bar(look, place + top, place + bottom, row.start, row.end, hover)


def _look(row: Row, comm: Comm | None) -> Look:
    if comm is None:
        return _BY_SPAN.get(row.name.split(" ")[0].lower(), chart.COMPUTE)
    if row.kind == "waiting":
        return chart.WAITING
    return chart.P2P if comm.is_p2p else chart.COLLECTIVE


def _hover(row: Row, comm: Comm | None, awaited: Awaited) -> str:
    """What, on which rank, when, how long, who ended it, how much, from which line."""
    length = row.end - row.start
    parts = [f"<b>{html.escape(row.name)}</b> {row.kind}, rank {row.rank}"]
    parts.append(f"{format_seconds(length)} from {format_seconds(row.start)}")
    if comm is not None and row.kind == "waiting":
        last = awaited.rank(comm)
        if last is not None:
            parts.append(f"until rank {last} came, the last")
    if comm is not None and comm.logical_bytes:
        rate = ""
        if row.kind == "transfer" and length > 0:
            rate = f", {format_bytes(comm.logical_bytes / length)}/s"
        parts.append(f"payload {format_bytes(comm.logical_bytes)}{rate}")
    if comm is not None and comm.site is not None:
        parts.append(f"line {comm.site.line} of {html.escape(comm.site.function)}")
    return "<br>".join(parts)


def _arrow(message: Message, places: dict[int, float]) -> Arrow:
    middle = sum(chart.COMM_ROW) / 2
    return Arrow(
        (message.sent, places[message.source] + middle),
        (message.received, places[message.destination] + middle),
        f"rank {message.source} to rank {message.destination}, "
        f"{format_bytes(message.comm.logical_bytes)}",
    )


def _dots(
    moments: Sequence[Moment | Unended], places: dict[int, float], height: float
) -> Iterator[Dot]:
    for moment in moments[:MAX_DRAWN]:
        name = html.escape(moment.name)
        at = moment.at if isinstance(moment, Unended) else moment.at_s or 0.0
        hover = f"<b>{name}</b>, rank {moment.rank}, at {format_seconds(at)}"
        yield Dot(at, places[moment.rank] + height, moment.name, hover)


def _races(
    program: Program, found: Intervals, places: dict[int, float]
) -> Iterator[Dot]:
    """Each race where its transfer was issued: races themselves have no time."""
    if not program.races:
        return
    names = {(s.comm.rank, s.comm.id): s.row.name for s in found.stretches if s.comm}
    comms = {(e.rank, e.id): e for e in program if isinstance(e, Comm)}
    for race in program.races:
        comm = comms[race.rank, race.target]
        name = names.get((race.rank, race.target), comm.kind)
        does = "writes" if race.access == "write" else "reads"
        said = f"rank {race.rank}: {race.operation} {does} a buffer of {name}"
        if race.site is not None:
            said += f" (line {race.site.line} of {race.site.function})"
        y = places[race.rank] + sum(chart.COMM_ROW) / 2
        hover = f"<b>race</b>, {html.escape(said)}<br>nobody had waited for it"
        yield Dot(comm.issued_s or 0.0, y, said, hover)


def _told_races(races: Sequence[Dot]) -> Iterator[str]:
    """The races in words."""
    if races:
        more = f"; {len(races) - 1} more" if len(races) > 1 else ""
        yield f"Race, before a wait: {races[0].label}{more}."


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


def _lines(found: Intervals, caption: str, left_out: Sequence[Row]) -> Iterator[str]:
    """The picture in words: for those who cannot see it, and for a terminal."""
    parts = [_number(len(found.ranks), "rank"), format_seconds(found.duration)]
    if found.steps:
        parts.insert(1, _number(len(found.steps), "step"))
    calls = {
        stretch.row.name.partition("#")[0]
        for stretch in found.stretches
        if stretch.comm is not None
    }
    told = f"Calls: {', '.join(sorted(calls))}." if calls else "No communication."
    yield f"{', '.join(parts)}. {told} {caption}".rstrip()
    if any(stretch.row.kind == "waiting" for stretch in found.stretches):
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
