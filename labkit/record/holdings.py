"""What each rank holds in memory, by kind, at any moment: read off Alloc and Free.

    Alloc 0 scratch      Free 0 scratch, Alloc 0 parameters     Free 0 parameters
    scratch     ████████                                     .
    parameters          .██████████████████████████████████████
                         ^ found to be of another kind: one moment

Before: a Program of level "work". After: bytes. Pure: no torch, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, get_args

from labkit.errors import UsageError
from labkit.record.events import MemoryKind
from labkit.record.program import Alloc, Event, Free, Program, Span

KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
_Change: TypeAlias = Alloc | Free


class Held(NamedTuple):
    """What one rank holds at one moment.

    `seq` is that of the last event before, -1 at the beginning; `at_s` its time, if the
    record has times; `span` the innermost span of lane 0 around it. Every kind is in
    `bytes_by_kind`, also with 0.
    """

    rank: int
    seq: int
    at_s: float | None
    span: str | None
    num_storages: int
    bytes_by_kind: dict[MemoryKind, int]

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return sum(self.bytes_by_kind.values())


@dataclass(frozen=True)
class Curve:
    """What one rank held after each change, in the order of events.

    Attributes:
        rank: Whose memory.
        seqs: The number of the event that made each change.
        times_s: When, or None in a record without times.
        bytes_by_kind: For each kind, the bytes after each change.
    """

    rank: int
    seqs: tuple[int, ...]
    times_s: tuple[float, ...] | None
    bytes_by_kind: dict[MemoryKind, tuple[int, ...]]

    @property
    def totals(self) -> tuple[int, ...]:
        """All kinds together, after each change."""
        return tuple(map(sum, zip(*self.bytes_by_kind.values(), strict=True)))


def peaks(program: Program) -> list[Held]:
    """Each rank at the first moment at which it holds the most.

    Raises:
        UsageError: The record does not tell of memory, or lost events.
    """
    _require_memory(program)
    return [_peak(program, rank) for rank in program.header.ranks]


def curve(program: Program, rank: int) -> Curve:
    """What a rank holds over time.

    Raises:
        UsageError: The record does not tell of memory, lost events, or has no such
            rank.
    """
    _require_memory(program)
    if rank not in program.header.ranks:
        raise UsageError(
            f"a curve is of one of the record's ranks {program.header.ranks}; got "
            f"rank {rank}. Use one of those"
        )
    ledger = _Ledger(program, rank)
    seqs: list[int] = []
    times: list[float | None] = []
    columns: dict[MemoryKind, list[int]] = {kind: [] for kind in KINDS}
    for last in ledger.follow(program.of(rank)):
        seqs.append(last.seq)
        times.append(last.at_s)
        for kind, column in columns.items():
            column.append(ledger.bytes_by_kind[kind])
    known = tuple(at for at in times if at is not None)
    return Curve(
        rank,
        tuple(seqs),
        known if program.header.has_times and len(known) == len(times) else None,
        {kind: tuple(column) for kind, column in columns.items()},
    )


def held(
    program: Program, *, after: str | None = None, step: int | None = None
) -> list[Held | None]:
    """What each rank holds after a span, or at the end of what it did.

    The end is its last operation, transfer or span: what the function let go of when it
    returned is still held then.

    Args:
        program: A record of level "work", or a dry run's.
        after: The span's name; a rank's last one of that name counts. None: the end.
        step: Counts only spans in this step.

    Returns:
        For each of the header's ranks; None for one that never ended such a span.

    Raises:
        UsageError: The record does not tell of memory, lost events, or no rank has
            such a span.
    """
    _require_memory(program)
    found: list[Held | None] = []
    for rank, events in zip(program.header.ranks, program.events, strict=True):
        if after is None and step is None:
            found.append(_at(program, rank, _end(events)))
            continue
        ends = [
            span.last_seq for span in _spans(events)
            if after in (None, span.name) and step in (None, span.step)
        ]  # fmt: skip
        found.append(_at(program, rank, max(ends)) if ends else None)
    if not any(found) and found:
        raise UsageError(_no_span(program, after, step))
    return found


def _no_span(program: Program, after: str | None, step: int | None) -> str:
    names = sorted({span.name for span in program.spans.values()})
    wanted = "a span" if after is None else f"a span named {after!r}"
    within = "" if step is None else f" in step {step}"
    return (
        f"what ranks hold is looked up after {wanted}{within}; the record has "
        f"{program.num_steps} steps and spans named {', '.join(names) or 'nothing'}. "
        'Use one of those, or put the code in `with span("...")`'
    )


def _require_memory(program: Program) -> None:
    if program.header.level != "work":
        raise UsageError(
            "what ranks hold is known from a record of every operation; this one is of "
            f'level {program.header.level!r}. Use cluster.run(..., record="work") or '
            "cluster.dry(...)"
        )
    for rank, dropped in zip(
        program.header.ranks, program.header.dropped, strict=False
    ):
        if dropped:
            raise UsageError(
                f"what ranks hold is known from all events; rank {rank} lost {dropped}."
                " Record fewer steps"
            )


class _Ledger:
    """What one rank holds while its events are followed."""

    def __init__(self, program: Program, rank: int) -> None:
        self.bytes_by_kind: dict[MemoryKind, int] = dict.fromkeys(KINDS, 0)
        self.alive: dict[int, tuple[int, MemoryKind]] = {}
        self._rank = rank
        self._has_times = program.header.has_times

    def follow(self, events: Sequence[Event]) -> Iterator[_Change]:
        """Take each change, and yield its last event.

        A storage that is freed and comes to be at once only changed kind or size.
        """
        changes = [event for event in events if isinstance(event, Alloc | Free)]
        for index, event in enumerate(changes):
            self._take(event)
            following = changes[index + 1] if index + 1 < len(changes) else None
            changed = (
                isinstance(event, Free)
                and isinstance(following, Alloc)
                and following.storage == event.storage
            )
            if not changed:
                yield event

    def _take(self, event: _Change) -> None:
        known = self.alive.pop(event.storage, None)
        if isinstance(event, Alloc):
            if known is not None:
                self._refuse(event, f"it holds {known[0]} bytes of {known[1]} already")
            self.alive[event.storage] = event.num_bytes, event.kind
            self.bytes_by_kind[event.kind] += event.num_bytes
        else:
            if known != (event.num_bytes, event.kind):
                seen = f"it holds {known[0]} bytes of {known[1]}" if known else ""
                self._refuse(event, seen or "it is not there")
            self.bytes_by_kind[event.kind] -= event.num_bytes

    def _refuse(self, event: _Change, seen: str) -> None:
        raise UsageError(
            f"a storage comes to be, then is freed with the same size and kind; rank "
            f"{self._rank}, event {event.seq}: {type(event).__name__} of storage "
            f"{event.storage}, {event.num_bytes} bytes of {event.kind}, but {seen}. "
            "Record the run again, or load another file"
        )

    def snapshot(self, last: _Change | None, span: str | None) -> Held:
        """What is held now, after the change `last`."""
        seq = -1 if last is None else last.seq
        # A dry run's storages came to be when it ran: no time of anything.
        at_s = last.at_s if last is not None and self._has_times else None
        return Held(
            self._rank, seq, at_s, span, len(self.alive), dict(self.bytes_by_kind)
        )


def _peak(program: Program, rank: int) -> Held:
    ledger, events = _Ledger(program, rank), program.of(rank)
    most = ledger.snapshot(None, None)
    for last in ledger.follow(events):
        if sum(ledger.bytes_by_kind.values()) > most.total_bytes:
            most = ledger.snapshot(last, None)
    return most._replace(span=_span_around(events, most.seq))


def _end(events: Sequence[Event]) -> int:
    """The seq of the last event of what a rank did.

    The function as a whole is a span too, the outermost, and ends after it all.
    """
    last_seqs = [
        event.last_seq if isinstance(event, Span) and event.parent is not None
        else event.seq
        for event in events if not isinstance(event, Alloc | Free)
    ]  # fmt: skip
    return max(last_seqs or [event.seq for event in events], default=-1)


def _at(program: Program, rank: int, last_seq: int) -> Held:
    """What is held after the event numbered `last_seq`."""
    events = program.of(rank)
    changes = [event for event in events if event.seq <= last_seq]
    ledger = _Ledger(program, rank)
    last = max(ledger.follow(changes), key=lambda change: change.seq, default=None)
    return ledger.snapshot(last, _span_around(events, last_seq))


def _span_around(events: Sequence[Event], seq: int) -> str | None:
    around = [span for span in _spans(events) if span.seq <= seq <= span.last_seq]
    return max(around, key=lambda span: span.seq).name if around else None


def _spans(events: Sequence[Event]) -> list[Span]:
    return [e for e in events if isinstance(e, Span) and e.lane == 0]
