"""Turns events into stretches of time: when a rank computed, waited, transferred.

Time spent inside a call is not communication: most of it may be waiting for a rank that
came late. Each call's time is therefore cut where the last rank that it needs came.

    rank 0   compute |  waiting . . . . .  | transfer |
    rank 1   compute                       | transfer |
                     ^ rank 0 calls        ^ rank 1 calls: the transfer can begin

Before: the ordered events of each rank. After: rows, on one clock that starts at 0 s
with the record's first event. Pure: no torch, no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from labkit.record import events
from labkit.record.events import (
    P2P,
    CommEnd,
    CommStart,
    Event,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)

RowKind: TypeAlias = Literal["compute", "waiting", "transfer"]
STEP = "step"
COMPUTE = "compute"


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
    """A row, and the call that it belongs to (None for compute)."""

    row: Row
    comm: CommStart | None


class Message(NamedTuple):
    """A send and the receive that took it."""

    source: int
    destination: int
    sent: float
    received: float
    comm: CommStart


class Moment(NamedTuple):
    """Something that happened on a rank at one time."""

    rank: int
    name: str
    at: float


@dataclass(frozen=True)
class Intervals:
    """Everything that a timeline shows of a record.

    `unended` are calls of which nobody waited for the end, as DDP's are: when they were
    made is known, how long they took is not.
    """

    ranks: tuple[int, ...]
    duration: float
    stretches: tuple[Stretch, ...]
    messages: tuple[Message, ...]
    marks: tuple[Moment, ...]
    unended: tuple[Moment, ...]
    steps: tuple[float, ...]

    def total(self, kind: RowKind) -> dict[int, float]:
        """The length of each rank's stretches of one kind, added up."""
        totals = dict.fromkeys(self.ranks, 0.0)
        for row, _ in self.stretches:
            if row.kind == kind:
                totals[row.rank] += row.end - row.start
        return totals


def rows(
    events_by_rank: Sequence[Sequence[Event]], *, ranks: Sequence[int] | None = None
) -> list[Row]:
    """Every stretch of a record, by start time and rank.

    Args:
        events_by_rank: The ordered events of each rank.
        ranks: Whose events they are; 0, 1, 2, ... if not given.
    """
    return [stretch.row for stretch in read(events_by_rank, ranks=ranks).stretches]


def read(
    events_by_rank: Sequence[Sequence[Event]], *, ranks: Sequence[int] | None = None
) -> Intervals:
    """Cut a record into stretches, and pair its sends with their receives."""
    numbers = tuple(range(len(events_by_rank)) if ranks is None else ranks)
    times = [at for events in events_by_rank for at in _times(events)]
    began, over = min(times, default=0.0), max(times, default=0.0)
    tracks = [
        _Track(rank, began).follow(events)
        for rank, events in zip(numbers, events_by_rank, strict=True)
    ]
    matches = _Matches([call for track in tracks for call in track.calls])
    stretches = [stretch for track in tracks for stretch in track.computed]
    for track in tracks:
        stretches += _communication(track, matches, over)
    shifted = [_since(began, stretch) for stretch in stretches]
    return Intervals(
        ranks=numbers,
        duration=over - began,
        stretches=tuple(sorted(shifted, key=lambda s: (s.row.start, s.row.rank))),
        messages=tuple(_messages(tracks, matches, began)),
        marks=tuple(_moments([m for track in tracks for m in track.marks], began)),
        unended=tuple(
            _moments([m for track in tracks for m in _unended(track)], began)
        ),
        steps=tuple(at - began for at in _step_starts(tracks)),
    )


def _times(events: Iterable[Event]) -> Iterator[float]:
    for event in events:
        at = getattr(event, "issued_s", getattr(event, "at_s", None))
        if at is not None:
            yield at


def _since(began: float, stretch: Stretch) -> Stretch:
    row = stretch.row
    moved = row._replace(start=row.start - began, end=row.end - began)
    return stretch._replace(row=moved)


def _moments(moments: Iterable[Moment], began: float) -> Iterator[Moment]:
    for moment in sorted(moments, key=lambda moment: (moment.at, moment.rank)):
        yield moment._replace(at=moment.at - began)


@dataclass(frozen=True)
class _Call:
    """One transfer as its rank saw it."""

    rank: int
    step: int
    name: str
    comm: CommStart


@dataclass
class _Wait:
    """One stand-still; `end` is None while it lasts."""

    start: float
    end: float | None = None
    ok: bool = False


class _Track:
    """Follows one rank's events, and cuts the compute of its first thread.

    A rank counts as computing from the record's beginning, since all ranks start a run
    together, up to its own last event.
    """

    def __init__(self, rank: int, began: float) -> None:
        self.rank = rank
        self.calls: list[_Call] = []
        self.waits: defaultdict[int, list[_Wait]] = defaultdict(list)
        self.ends: dict[int, float] = {}
        self.computed: list[Stretch] = []
        self.marks: list[Moment] = []
        self.step_starts: list[float] = []
        self._cursor = began
        self._spans: defaultdict[int, list[str]] = defaultdict(list)
        self._standing: set[int] = set()
        self._count: Counter[str] = Counter()

    def follow(self, events: Iterable[Event]) -> _Track:
        """Take the events in their order."""
        for event in events:
            self._take(event)
        return self

    @property
    def _step(self) -> int:
        return max(0, len(self.step_starts) - 1)

    def _take(self, event: Event) -> None:
        match event:
            case CommStart():
                self._count[event.kind] += 1
                name = f"{event.kind}#{self._count[event.kind]}"
                self.calls.append(_Call(self.rank, self._step, name, event))
                self._cut(event.issued_s)
            case WaitStart():
                self._cut(event.at_s)
                self.waits[event.target].append(_Wait(event.at_s))
                if event.lane == 0:
                    self._standing.add(event.target)
            case WaitEnd():
                self._end_wait(event)
            case CommEnd():
                self.ends[event.target] = event.at_s
            case SpanStart() | SpanEnd():
                self._cross(event)
            case events.Moment():
                self._cut(event.at_s)
                self.marks.append(Moment(self.rank, event.name, event.at_s))
            case _:
                pass

    def _end_wait(self, event: WaitEnd) -> None:
        self._cut(event.at_s)
        self._standing.discard(event.target)
        waits = self.waits[event.target]
        if waits:
            waits[-1].end, waits[-1].ok = event.at_s, event.ok

    def _cross(self, event: SpanStart | SpanEnd) -> None:
        """Enter or leave a span; only those of the first thread cut its compute."""
        if event.lane == 0:
            self._cut(event.at_s)
        open_spans = self._spans[event.lane]
        if isinstance(event, SpanEnd):
            del open_spans[-1:]
            return
        open_spans.append(event.name)
        if event.lane == 0 and event.name == STEP:
            self.step_starts.append(event.at_s)

    def _cut(self, at: float) -> None:
        """End the present stretch of compute; join it to the one before if alike."""
        start, self._cursor = self._cursor, max(self._cursor, at)
        if self._standing or at <= start:
            return
        inner = [name for name in self._spans[0] if name != STEP]
        name = inner[-1] if inner else COMPUTE
        row = Row(self._step, self.rank, "compute", name, start, at)
        last = self.computed[-1].row if self.computed else None
        if last and (last.end, last.name, last.step) == (start, name, row.step):
            row = last._replace(end=at)
            self.computed.pop()
        self.computed.append(Stretch(row, None))

    def ended_at(self, call: _Call) -> float | None:
        """When the call's transfer had ended, as far as the rank knows."""
        seen = [wait.end for wait in self.waits[call.comm.id] if wait.ok]
        return self.ends.get(call.comm.id, seen[0] if seen else None)


def _key(call: _Call) -> tuple[object, ...]:
    """The same for calls that belong together."""
    comm = call.comm
    if comm.kind not in P2P:
        return comm.group, comm.kind, comm.group_seq
    ends = (call.rank, comm.peer) if comm.kind == "send" else (comm.peer, call.rank)
    return comm.group, "p2p", *ends, comm.tag, comm.pair_seq


class _Matches:
    """Which calls of other ranks belong to a call."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._by_key: defaultdict[tuple[object, ...], list[_Call]] = defaultdict(list)
        wild: list[_Call] = []
        for call in sorted(calls, key=lambda call: call.comm.issued_s):
            is_wild = call.comm.kind == "recv" and call.comm.peer is None
            (wild if is_wild else self._by_key[_key(call)]).append(call)
        self._taken = self._match_wild(wild)

    def _match_wild(self, wild: Sequence[_Call]) -> dict[tuple[int, int], _Call]:
        """Give receives from any source, in order, the sends that none else takes.

        The record does not say whom such a receive took, so this is the likeliest.
        """
        free: defaultdict[tuple[object, ...], deque[_Call]] = defaultdict(deque)
        for calls in self._by_key.values():
            if len(calls) == 1 and calls[0].comm.kind == "send":
                comm = calls[0].comm
                free[comm.group, comm.peer, comm.tag].append(calls[0])
        taken: dict[tuple[int, int], _Call] = {}
        for recv in wild:
            sends = free[recv.comm.group, recv.rank, recv.comm.tag]
            if sends:
                send = sends.popleft()
                taken[recv.rank, recv.comm.id] = send
                taken[send.rank, send.comm.id] = recv
        return taken

    def of(self, call: _Call) -> list[_Call]:
        """The other ranks' calls that belong to `call`."""
        taken = self._taken.get((call.rank, call.comm.id))
        if taken is not None:
            return [taken]
        return [other for other in self._by_key[_key(call)] if other is not call]


def _communication(track: _Track, matches: _Matches, over: float) -> Iterator[Stretch]:
    """The waiting and the transfer of each of a rank's calls."""
    for call in track.calls:
        partners = matches.of(call)
        for wait in track.waits[call.comm.id]:
            end = over if wait.end is None else wait.end
            came = _all_came(call, partners, end) if wait.ok else end
            if came > wait.start:
                yield _stretch(call, "waiting", wait.start, min(came, end))
        end = track.ended_at(call)
        if end is not None:
            came = max(_all_came(call, partners, end), _seen_since(track, call))
            yield _stretch(call, "transfer", min(came, end), end)


def _all_came(call: _Call, partners: Sequence[_Call], end: float) -> float:
    """When the last rank came without which the call could not have ended at `end`.

    A rank that came later was not needed: a small send is buffered, and the root of a
    broadcast need not wait.
    """
    issues = [partner.comm.issued_s for partner in partners]
    return max([call.comm.issued_s, *(at for at in issues if at <= end)])


def _seen_since(track: _Track, call: _Call) -> float:
    """From when on the call's end was watched.

    Where only a late wait tells of the end, the transfer may have ended long before:
    the stretch before the wait is not counted as transfer.
    """
    waits = track.waits[call.comm.id]
    if call.comm.id in track.ends or not waits:
        return call.comm.issued_s
    return waits[0].start


def _stretch(call: _Call, kind: RowKind, start: float, end: float) -> Stretch:
    return Stretch(Row(call.step, call.rank, kind, call.name, start, end), call.comm)


def _unended(track: _Track) -> Iterator[Moment]:
    for call in track.calls:
        if track.ended_at(call) is None and not track.waits[call.comm.id]:
            yield Moment(track.rank, call.name, call.comm.issued_s)


def _messages(
    tracks: Sequence[_Track], matches: _Matches, began: float
) -> Iterator[Message]:
    by_rank = {track.rank: track for track in tracks}
    for track in tracks:
        for call in track.calls:
            if call.comm.kind != "send":
                continue
            for recv in matches.of(call):
                end = by_rank[recv.rank].ended_at(recv)
                if end is not None:
                    sent = call.comm.issued_s - began
                    yield Message(track.rank, recv.rank, sent, end - began, call.comm)


def _step_starts(tracks: Sequence[_Track]) -> list[float]:
    """When the first rank began each step."""
    longest = max((len(track.step_starts) for track in tracks), default=0)
    return [
        min(track.step_starts[n] for track in tracks if n < len(track.step_starts))
        for n in range(longest)
    ]
