"""Writes a rank's events again, with the times that replay has found.

[Note: spans] On a CPU a Span is from when its lane came to it to when its lane had done
its last event. On a GPU the lane only issues: there a Span is from the beginning of the
first to the end of the last that its lane gave to a stream within it, and a Moment is
when all that its lane gave to streams before it was done. Storages come and go when the
host says so, on both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.record.program import Alloc, Comm, Event, Free, Moment, Span, Wait, Work
from labkit.replay.lanes import Lane
from labkit.replay.streams import Rank

_seq = attrgetter("seq")
Times: TypeAlias = NDArray[np.float64]


def retimed(rank: Rank, lanes: Sequence[Lane], *, has_times: bool) -> tuple[Event, ...]:
    """The rank's events, in their order.

    Args:
        rank: All its times are known.
        lanes: Its lanes.
        has_times: Whether the events had times before: then a Span without an end was
            never closed, and has none here.
    """
    new = tuple.__new__
    times = zip(rank.events, rank.start_s, rank.end_s, strict=True)
    # Unpacking and _replace would take two and five times as long.
    made: list[Event] = [
        new(Work, event[:-2] + (start_s, end_s)) if type(event) is Work else event  # noqa: RUF005
        for event, start_s, end_s in times
    ]
    for position in rank.others:
        made[position] = _retimed(rank, position)
    for lane in lanes:
        for position, event in _said(rank, lane.positions, has_times=has_times):
            made[position] = event
    return tuple(made)


def _retimed(rank: Rank, position: int) -> Event:
    """Any event but Work; Spans and Moments are not yet right."""
    event, host_s = rank.events[position], rank.host_s[position]
    match event:
        case Comm():
            transfer = rank.transfers[event.id]
            ended = (host_s, transfer.arrived_s, transfer.ended_s, "model", 0.0)
            return Comm._make((*event[:-5], *ended))
        case Wait():
            times = (rank.start_s[position], rank.end_s[position])
            return Wait._make((*event[:-3], *times, event.ok))
        case Alloc() | Free():
            return event._replace(at_s=host_s)
        case _:
            return event


def _said(
    rank: Rank, positions: Sequence[int], *, has_times: bool
) -> Iterator[tuple[int, Event]]:
    """A lane's Spans and Moments with their times. See [Note: spans]."""
    events = [rank.events[position] for position in positions]
    said = [k for k, event in enumerate(events) if type(event) in (Span, Moment)]
    if not said:
        return
    chosen = slice(None) if isinstance(positions, range) else np.asarray(positions)
    host_s, end_s = np.array(rank.host_s)[chosen], np.array(rank.end_s)[chosen]
    start_s = np.array(rank.start_s)[chosen]
    if rank.is_cpu:
        start_s = end_s = host_s
    done_s = np.maximum.accumulate(np.maximum(host_s, end_s))[said].tolist()
    beyond = [_beyond(events, k) for k in said]
    first_s = _over(np.minimum, start_s, said, beyond)
    last_s = _over(np.maximum, end_s, said, beyond)
    for k, at_s, begin_s, end in zip(said, done_s, first_s, last_s, strict=True):
        event = events[k]
        if isinstance(event, Moment):
            yield positions[k], event._replace(at_s=at_s)
        elif isinstance(event, Span):
            times = (at_s, at_s) if begin_s == inf else (begin_s, end)
            if has_times and event.end_s is None:
                times = (times[0], None)
            yield positions[k], Span._make((*event[:-2], *times))


def _beyond(events: Sequence[Event], index: int) -> int:
    """The index after a Span's last event; after itself, for a Moment."""
    last_seq = getattr(events[index], "last_seq", -1)
    return max(index + 1, bisect_right(events, last_seq, key=_seq))


def _over(
    extreme: np.ufunc, values: Times, first: list[int], beyond: list[int]
) -> list[float]:
    """The extreme of values[first[k]:beyond[k]], for each k; none is empty."""
    bounds = np.empty(2 * len(first), np.intp)
    bounds[::2], bounds[1::2] = first, beyond
    # A bound may be the end of the array, which reduceat wants to be an element.
    padded = np.append(values, values[-1])
    return extreme.reduceat(padded, bounds)[::2].tolist()
