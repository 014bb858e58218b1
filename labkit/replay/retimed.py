"""Writes a rank's events again, with the times that replay has found.

[Note: spans] On a CPU a Span is from when its lane came to it to when its lane had done
its last event. On a GPU the lane only issues: there a Span is from the beginning of the
first to the end of the last Work or wait that its lane issued within it, and a Moment
is when all that its lane issued before it was done. Storages come and go when the host
says so, on both.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from labkit.record.program import (
    Alloc,
    Comm,
    Event,
    Free,
    HostRead,
    Mark,
    Moment,
    Span,
    Wait,
    Work,
)
from labkit.replay.streams import Rank


def retimed(rank: Rank, *, has_times: bool) -> tuple[Event, ...]:
    """The rank's events, in their order.

    Args:
        rank: All its times are known.
        has_times: Whether the events had times before: then a Span without an end was
            never closed, and has none here.
    """
    others = _Others(rank, has_times=has_times).taken()
    transfers, made = rank.transfers, list[Event]()
    times = zip(rank.events, rank.host_s, rank.start_s, rank.end_s, strict=True)
    for event, host_s, start_s, end_s in times:
        if type(event) is Work:
            made.append(Work._make((*event[:11], start_s, end_s)))
        elif type(event) is Comm:
            transfer = transfers[event.id]
            made.append(Comm._make((
                *event[:-4], host_s, transfer.arrived_s, transfer.ended_s, "model"
            )))  # fmt: skip
        elif type(event) is Wait:
            made.append(Wait._make((*event[:-3], start_s, end_s, event.ok)))
        elif type(event) is Mark or type(event) is HostRead:
            made.append(event)
        elif type(event) is Alloc or type(event) is Free:
            made.append(event._replace(at_s=host_s))
        else:
            made.append(others[id(event)])
    return tuple(made)


@dataclass
class _Open:
    """A Span that may hold more events: what it covers so far."""

    span: Span
    begins_s: float
    host_s: float
    first_s: float | None = None
    last_s: float | None = None

    def cover(self, start_s: float, end_s: float) -> None:
        """Work of the device, or a wait."""
        self.first_s = start_s if self.first_s is None else min(self.first_s, start_s)
        self.last_s = end_s if self.last_s is None else max(self.last_s, end_s)


class _Others:
    """Finds the times of a rank's Spans and Moments. See [Note: spans]."""

    def __init__(self, rank: Rank, *, has_times: bool) -> None:
        self._rank = rank
        self._has_times = has_times
        self._made: dict[int, Event] = {}
        self._open: defaultdict[int, list[_Open]] = defaultdict(list)
        # By lane: when all that it has issued so far is done.
        self._done_s: defaultdict[int, float] = defaultdict(float)

    def taken(self) -> dict[int, Event]:
        """The Spans and Moments with their times, by the id() of the old ones."""
        rank = self._rank
        if not any(
            type(event) is Span or type(event) is Moment for event in rank.events
        ):
            return {}
        times = zip(rank.events, rank.host_s, rank.start_s, rank.end_s, strict=True)
        for event, host_s, start_s, end_s in times:
            if type(event) is not Alloc and type(event) is not Free:
                self._take(event, host_s, start_s, end_s)
        for spans in self._open.values():
            while spans:
                self._close(spans)
        return self._made

    def _take(self, event: Event, host_s: float, start_s: float, end_s: float) -> None:
        assert not isinstance(event, Alloc | Free)
        lane, spans = event.lane, self._open[event.lane]
        while spans and spans[-1].span.last_seq < event.seq:
            self._close(spans)
        at_s = self._done_s[lane] = max(self._done_s[lane], host_s)
        if type(event) is Moment:
            self._made[id(event)] = event._replace(at_s=at_s)
        elif type(event) is Span:
            spans.append(_Open(event, at_s, host_s))
        elif type(event) is Work or type(event) is Wait:
            self._done_s[lane] = max(at_s, end_s)
            if spans:
                spans[-1].cover(start_s, end_s)
        if spans:
            spans[-1].host_s = host_s

    def _close(self, spans: list[_Open]) -> None:
        """The innermost Span has ended; what it covers, the next one covers too."""
        done = spans.pop()
        start_s, end_s = done.begins_s, max(done.begins_s, done.host_s)
        if not self._rank.is_cpu and done.first_s is not None:
            start_s, end_s = done.first_s, done.last_s or end_s
        if spans:
            spans[-1].host_s = done.host_s
            if done.first_s is not None and done.last_s is not None:
                spans[-1].cover(done.first_s, done.last_s)
        never_closed = self._has_times and done.span.end_s is None
        self._made[id(done.span)] = done.span._replace(
            start_s=start_s, end_s=None if never_closed else end_s
        )
