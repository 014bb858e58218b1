"""What must hold of a Program before anything is read off it.

A record that was written by hand, cut, or put together from two others may hold
anything. What follows from such a record is worse than no figure, so it is refused,
with the rank and the event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.errors import UsageError
from labkit.record.program import (
    Alloc,
    Comm,
    Event,
    Free,
    Header,
    Moment,
    Program,
    Span,
    Wait,
    Work,
)

# Times are differences of a clock: as many seconds apart they are the same moment.
SAME_S = 1e-9
# Of each event, the times that must follow one another.
_ORDERED: dict[type, tuple[str, ...]] = {
    Work: ("start_s", "end_s"),
    Comm: ("issued_s", "arrived_s", "ended_s"),
    Wait: ("start_s", "end_s"),
    Span: ("start_s", "end_s"),
    Alloc: ("at_s",),
    Free: ("at_s",),
    Moment: ("at_s",),
}
_PLACES = {
    kind: tuple(kind._fields.index(name) for name in names)
    for kind, names in _ORDERED.items()
}
# Of each event, what is added up and divided.
_AMOUNTS: dict[type, tuple[str, ...]] = {
    Work: ("flops", "moved_bytes", "kernels", "fixed_s"),
    Comm: ("logical_bytes",),
    Alloc: ("num_bytes",),
    Free: ("num_bytes",),
}
_AMOUNT_PLACES = {
    kind: tuple(kind._fields.index(name) for name in names)
    for kind, names in _AMOUNTS.items()
}
_COUNTS = ("num_calls", "payload_bytes", "wire_bytes")
# Beyond are no times and no amounts of any run: Python's own arithmetic ends there.
MAX_S, MAX_AMOUNT = 1e12, 1e30
_AGAIN = "Record the run again, or load another file"


def require_sound(program: Program) -> None:
    """Check a Program: its header, its ranks, its times, its references.

    Raises:
        UsageError: The ranks disagree with the header, a time is not finite or runs
            backwards, or an event refers to what is not there.
    """
    _check_header(program.header, len(program.events))
    for rank, events in zip(program.header.ranks, program.events, strict=True):
        _check_order(rank, events)
        for event in events:
            _check_times(event)
            _check_amounts(event)
        _check_references(rank, events, program.groups)
    _check_races(program)
    _check_traffic(program)


def _check_header(header: Header, num_lists: int) -> None:
    ranks = header.ranks
    strange = [rank for rank in ranks if not 0 <= rank < header.world_size]
    if strange or len(set(ranks)) != len(ranks):
        raise UsageError(
            f"the ranks of a record are different, and from 0 to world_size - 1; this "
            f"one says world_size {header.world_size} and ranks {ranks}. {_AGAIN}"
        )
    if num_lists != len(ranks):
        raise UsageError(
            f"a record has one list of events for each of its ranks; the header names "
            f"{len(ranks)} ranks and there are {num_lists} lists. {_AGAIN}"
        )
    for name in ("hosts", "clocks", "dropped"):
        count = len(getattr(header, name))
        if count not in (0, len(ranks)):
            raise UsageError(
                f"a header has {name} for each of its {len(ranks)} ranks, or none; "
                f"this one has {count}. {_AGAIN}"
            )
    for rank, clock in zip(ranks, header.clocks, strict=False):
        if not abs(clock.offset_s) <= MAX_S or not 0 <= clock.uncertainty_s <= MAX_S:
            raise UsageError(
                f"a clock's offset is finite and its uncertainty not below 0; rank "
                f"{rank} has {clock}. {_AGAIN}"
            )


def _check_order(rank: int, events: Sequence[Event]) -> None:
    last = -1
    for event in events:
        if event.rank != rank:
            raise UsageError(
                f"rank {rank}'s events are its own; one is of rank {event.rank}: "
                f"{_short(event)}. {_AGAIN}"
            )
        if event.seq <= last:
            raise UsageError(
                f"a rank's events are in the order of seq; on rank {rank} seq "
                f"{event.seq} follows {last}: {_short(event)}. {_AGAIN}"
            )
        last = event.seq


def _check_times(event: Event) -> None:
    before = -math.inf
    for place in _PLACES.get(type(event), ()):
        at = event[place]
        if at is None:
            continue
        if not -MAX_S <= at <= MAX_S:
            raise UsageError(
                f"every time of a record is a finite number of seconds, at most "
                f"{MAX_S:g}; rank {event.rank} has {event._fields[place]}={at!r:.40} "
                f"in {_short(event)}. {_AGAIN}"
            )
        if at < before - SAME_S:
            raise UsageError(
                f"nothing ends before it begins; on rank {event.rank} "
                f"{event._fields[place]}={at} comes {before - at:.3g} s too early: "
                f"{_short(event)}. {_AGAIN}"
            )
        before = max(before, at)


def _check_amounts(event: Event) -> None:
    for place in _AMOUNT_PLACES.get(type(event), ()):
        amount = event[place]
        if amount is not None and not 0 <= amount <= MAX_AMOUNT:
            raise UsageError(
                f"what a record counts is from 0 to {MAX_AMOUNT:g}; rank {event.rank} "
                f"has {event._fields[place]}={amount!r:.40} in {_short(event)}. "
                f"{_AGAIN}"
            )


def _check_references(
    rank: int, events: Sequence[Event], groups: dict[str, tuple[int, ...]]
) -> None:
    spans = {event.id for event in events if isinstance(event, Span)}
    comms = {event.id for event in events if isinstance(event, Comm)}
    for event in events:
        missing = ""
        match event:
            case Work() if event.span is not None and event.span not in spans:
                missing = f"span {event.span}"
            case Span() if event.parent is not None and event.parent not in spans:
                missing = f"span {event.parent}"
            case Wait() if event.cause != "event" and event.target not in comms:
                missing = f"transfer {event.target}"
            case Comm() if event.span is not None and event.span not in spans:
                missing = f"span {event.span}"
            case Comm() if event.group not in groups:
                missing = f"group {event.group!r}"
            case _:
                continue
        raise UsageError(
            f"what an event refers to is in the record; on rank {rank} {missing} is "
            f"not: {_short(event)}. {_AGAIN}"
        )


def _check_races(program: Program) -> None:
    comms = {(event.rank, event.id) for event in program if isinstance(event, Comm)}
    for race in program.races:
        if (race.rank, race.target) not in comms:
            raise UsageError(
                f"a race is one for a transfer in the record; on rank {race.rank} "
                f"transfer {race.target} is not, and {race.operation} is said to "
                f"{race.access} storage {race.storage} of it. {_AGAIN}"
            )


def _check_traffic(program: Program) -> None:
    for row in program.traffic:
        for name in _COUNTS:
            if not 0 <= getattr(row, name) <= MAX_AMOUNT:
                raise UsageError(
                    f"traffic counts from 0 to {MAX_AMOUNT:g}; rank {row.rank}'s "
                    f"{row.kind} has {name}={getattr(row, name)!r:.40}. {_AGAIN}"
                )


def _short(event: Event) -> str:
    """An event in few words: `Work number 12 ("compute")`."""
    name = getattr(event, "name", None) or getattr(event, "kind", None)
    return f"{type(event).__name__} number {event.seq}" + f' ("{name}")' * bool(name)
