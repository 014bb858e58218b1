"""Cuts a Program into stretches of time: when a rank computed, waited, transferred.

Time spent inside a call is not communication: most of it may be waiting for a rank that
came late. Each call's time is therefore cut where the last rank that it needs came.

    rank 0   compute |  waiting . . . . .  | transfer |
    rank 1   compute                       | transfer |
                     ^ rank 0 calls        ^ rank 1 calls: the transfer can begin

Before: a Program with times. After: rows, on its clock. Pure: no torch, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from labkit.errors import UsageError
from labkit.record.program import Comm, Event, Moment, Program, Span, Wait, Work
from labkit.record.track import COMPUTE, STEP

RowKind: TypeAlias = Literal["compute", "waiting", "transfer"]
# Gaps between operations that are no longer than this are rounding.
JOIN_S = 1e-9


class Row(NamedTuple):
    """One stretch of one rank's time, in seconds since the record began.

    `name` is for compute the innermost span's, else "compute"; for waiting and transfer
    the call's, such as "all_reduce#3": the rank's third all_reduce in this record.
    `step` counts the rank's spans named "step" from 0. What lies between two of them
    belongs to the earlier, what lies before the first to step 0; without any, all is 0.
    """

    step: int
    rank: int
    kind: RowKind
    name: str
    start: float
    end: float


class Stretch(NamedTuple):
    """A row, the call that it belongs to (None for compute), and its stream."""

    row: Row
    comm: Comm | None
    stream: int = 0


class Message(NamedTuple):
    """A send and the receive that took it."""

    source: int
    destination: int
    sent: float
    received: float
    comm: Comm


class Unended(NamedTuple):
    """A call of which nobody knows the end."""

    rank: int
    name: str
    at: float


@dataclass(frozen=True)
class Intervals:
    """Everything that a timeline shows of a record.

    `unended` are calls of which nobody waited for the end: when they were made is
    known, how long they took is not.
    """

    ranks: tuple[int, ...]
    duration: float
    stretches: tuple[Stretch, ...]
    messages: tuple[Message, ...]
    marks: tuple[Moment, ...]
    unended: tuple[Unended, ...]
    steps: tuple[float, ...]

    def total(self, kind: RowKind) -> dict[int, float]:
        """The length of each rank's stretches of one kind, added up."""
        totals = dict.fromkeys(self.ranks, 0.0)
        for stretch in self.stretches:
            if stretch.row.kind == kind:
                totals[stretch.row.rank] += stretch.row.end - stretch.row.start
        return totals


def rows(program: Program) -> list[Row]:
    """Every stretch of a record, by start time and rank."""
    return [stretch.row for stretch in read(program).stretches]


def read(program: Program) -> Intervals:
    """Cut a record into stretches, and pair its sends with their receives.

    Raises:
        UsageError: The record has no times.
    """
    if not program.header.has_times:
        raise UsageError(
            f"to be drawn or measured, a record needs times; this one is "
            f"{program.header.source} and has none. Give it those of some hardware: "
            'run.replay("dgx-h100")'
        )
    cutters = [
        _Cutter(program, events, rank).follow()
        for rank, events in zip(program.header.ranks, program.events, strict=True)
    ]
    stretches = [stretch for cutter in cutters for stretch in cutter.stretches]
    marks = [event for event in program if isinstance(event, Moment)]
    return Intervals(
        ranks=program.header.ranks,
        duration=program.duration_s,
        stretches=tuple(sorted(stretches, key=lambda s: (s.row.start, s.row.rank))),
        messages=tuple(_messages(program)),
        marks=tuple(sorted(marks, key=lambda m: (m.at_s or 0.0, m.rank))),
        unended=tuple(
            sorted(
                (u for c in cutters for u in c.unended), key=lambda u: (u.at, u.rank)
            )
        ),
        steps=tuple(_step_starts(program)),
    )


class _Cutter:
    """Cuts one rank's events; Work that follows on Work of the same name is joined."""

    def __init__(self, program: Program, events: tuple[Event, ...], rank: int) -> None:
        self.stretches: list[Stretch] = []
        self.unended: list[Unended] = []
        self._rank = rank
        self._events = events
        self._spans = {event.id: event for event in events if isinstance(event, Span)}
        self._comms = {event.id: event for event in events if isinstance(event, Comm)}
        self._names: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        # Calls that were waited for, and when the first wait with a time began.
        self._waited: set[int] = set()
        self._watched_s: dict[int, float] = {}
        self._step = 0
        self._over = program.duration_s
        self._is_measured = program.header.source == "measured"
        # The last stretch of compute of each stream: where it lies in `stretches`.
        self._last: dict[int, int] = {}

    def follow(self) -> _Cutter:
        """Take the events in their order."""
        self._name_calls()
        self._note_waits()
        for event in self._events:
            match event:
                case Span():
                    self._step = event.step
                case Work():
                    self._compute(event)
                case Comm():
                    self._transfer(event)
                case Wait():
                    self._wait(event)
                case _:
                    pass
        return self

    def _name_calls(self) -> None:
        count: Counter[str] = Counter()
        step = 0
        for event in self._events:
            if isinstance(event, Span):
                step = event.step
            elif isinstance(event, Comm):
                count[event.kind] += 1
                self._names[event.id] = f"{event.kind}#{count[event.kind]}"
                self._steps[event.id] = step

    def _note_waits(self) -> None:
        for event in self._events:
            if isinstance(event, Wait) and event.cause != "event":
                self._waited.add(event.target)
                if event.start_s is not None:
                    self._watched_s.setdefault(event.target, event.start_s)

    def _span_name(self, work: Work) -> str:
        """The innermost span that is not a step."""
        at = work.span
        while at is not None and self._spans[at].name == STEP:
            at = self._spans[at].parent
        return COMPUTE if at is None else self._spans[at].name

    def _compute(self, work: Work) -> None:
        start, end = work.start_s, work.end_s
        if start is None or end is None or end <= start or work.lane:
            return
        row = Row(self._step, self._rank, "compute", self._span_name(work), start, end)
        last = self._last.get(work.stream)
        if last is not None and self._joins(self.stretches[last].row, row):
            row = row._replace(start=self.stretches[last].row.start)
            self.stretches[last] = Stretch(row, None, work.stream)
            return
        self._last[work.stream] = len(self.stretches)
        self.stretches.append(Stretch(row, None, work.stream))

    def _joins(self, last: Row, row: Row) -> bool:
        """Whether two stretches are one: between measured operations runs Python."""
        alike = (last.name, last.step) == (row.name, row.step)
        return alike and (self._is_measured or row.start - last.end <= JOIN_S)

    def _wait(self, wait: Wait) -> None:
        """A wait ends a stretch of compute; until the last rank came it was waiting."""
        if wait.lane == 0 or wait.who == "stream":
            self._last.pop(wait.stream, None)
        if wait.start_s is None or wait.cause == "event":
            return
        comm = self._comms.get(wait.target)
        if comm is None:
            return
        end = self._over if wait.end_s is None else wait.end_s
        came = comm.arrived_s if wait.ok and comm.arrived_s is not None else end
        if min(came, end) > wait.start_s:
            self._add_comm(comm, "waiting", wait.start_s, min(came, end))

    def _transfer(self, comm: Comm) -> None:
        """A call whose end is known moved bytes from when the last rank had come.

        Where only a late wait tells of the end, the transfer may have ended long
        before: the stretch before the wait is not counted as transfer.
        """
        if comm.ended_s is None:
            if comm.id not in self._waited:
                name = self._names[comm.id]
                self.unended.append(Unended(self._rank, name, comm.issued_s or 0.0))
            return
        start = comm.arrived_s if comm.arrived_s is not None else comm.issued_s
        if comm.end_source == "wait":
            start = max(start or 0.0, self._watched_s.get(comm.id, 0.0))
        self._add_comm(comm, "transfer", min(start or 0.0, comm.ended_s), comm.ended_s)

    def _add_comm(self, comm: Comm, kind: RowKind, start: float, end: float) -> None:
        row = Row(
            self._steps[comm.id], self._rank, kind, self._names[comm.id], start, end
        )
        self.stretches.append(Stretch(row, comm, comm.stream))


def _messages(program: Program) -> Iterator[Message]:
    """Every send with its receive, in the order of the sends of each rank."""
    received: dict[tuple[object, ...], Comm] = {
        (comm.group, *comm.ends, comm.tag, comm.pair_seq): comm
        for comm in program
        if isinstance(comm, Comm) and comm.kind == "recv" and comm.ended_s is not None
    }
    for send in program:
        if isinstance(send, Comm) and send.kind == "send":
            recv = received.get((send.group, *send.ends, send.tag, send.pair_seq))
            if recv is not None and recv.ended_s is not None:
                sent = send.issued_s or 0.0
                yield Message(send.rank, recv.rank, sent, recv.ended_s, send)


def _step_starts(program: Program) -> list[float]:
    """When the first rank began each step."""
    first: dict[int, float] = {}
    for event in program:
        if isinstance(event, Span) and event.name == STEP and event.lane == 0:
            at = event.start_s or 0.0
            first[event.step] = min(first.get(event.step, at), at)
    return [first[step] for step in sorted(first)]
