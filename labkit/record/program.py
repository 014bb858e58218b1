"""The Program: what every rank did, as data. One type for records, schedules and plans.

A run's events reduce to it, a pipeline schedule lowers to it, the planner writes it,
replay gives it the times of other hardware, and every picture and measure reads it.

    Program
    ├── header      who recorded what, how, on what
    ├── groups      uid -> global ranks, in group order
    ├── events      for each of header.ranks, its events in the order of `seq`
    ├── traffic     exact counts, also where events were dropped
    └── races       reads and writes of buffers whose transfer nobody waited for

`rank` is global. `lane` is a host thread of the rank, 0 the one that runs the learner's
function. `stream` is a logical stream of the device, 0 the one that computes. `seq`
counts a rank's events from 0, over all lanes. Times are seconds on one clock, which
starts at 0 with the record's first event; None where a time is not known, and all None
in a record that has none (dry, planned). Pure: no torch.

[Note: streams] A lane issues events in the order of `seq`. On a GPU it only issues: the
work runs on the event's `stream`, after what that stream was given before. A transfer
also waits for what its `stream` was given before it was issued, then runs on the queue
of its communicator. What orders a stream behind a transfer or another stream is a Wait:
by who="host" the lane stands still; by who="stream" only `stream` does. What is
recorded on a CPU as the host's wait for a transfer is on a GPU the stream's, unless the
host reads a value (HostRead): then the lane stands still until the stream has run dry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from labkit.errors import UsageError
from labkit.record.events import P2P, Kind, MemoryKind, Site
from labkit.units import format_seconds

SCHEMA = 1

Level: TypeAlias = Literal["comm", "work"]
Source: TypeAlias = Literal["measured", "dry", "planned", "replayed"]
Cause: TypeAlias = Literal["wait", "future", "storage", "event"]
EndSource: TypeAlias = Literal["future", "look", "wait", "event", "model"]


class Clock(NamedTuple):
    """A rank's clock: what was subtracted from its times, and how sure that is."""

    offset_s: float = 0.0
    uncertainty_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a Program is a record of.

    Attributes:
        world_size: Ranks of the world.
        ranks: The ranks whose events there are.
        hosts: The machine of each of `ranks`; empty where it does not matter.
        clocks: The clock of each of `ranks`; empty where all share one.
        device: What the ranks computed on.
        backend: "gloo", "nccl", "threads", "fake".
        torch: Version of torch; "" where no torch ran.
        level: "comm": transfers, waits, spans. "work": every operation, with its costs;
            its times are stretched by the recording itself.
        source: Whether times were measured, computed by replay, or are not there.
        dropped: Events lost for each of `ranks`; empty where none.
        timing_dependent: Why another run may issue other events; "" if it cannot.
        stream_ordered: Why the order rests on CUDA streams that a CPU record has not
            seen; "" if it does not.
        hardware: What the times are those of: "this machine", a model's name.
        schema: Version of this format.
    """

    world_size: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...] = ()
    clocks: tuple[Clock, ...] = ()
    device: Literal["cpu", "cuda"] = "cpu"
    backend: str = "gloo"
    torch: str = ""
    level: Level = "comm"
    source: Source = "measured"
    dropped: tuple[int, ...] = ()
    timing_dependent: str = ""
    stream_ordered: str = ""
    hardware: str = "this machine"
    schema: int = SCHEMA

    @property
    def has_times(self) -> bool:
        """Whether events carry times."""
        return self.source in ("measured", "replayed")


class Work(NamedTuple):
    """An operation, or at level "comm" a stretch of time in which a lane computed.

    `moved_bytes` are read and written in memory; `kernels` are launched; `fixed_s` is
    host time that no hardware changes. At level "comm" only the times are known.
    `span` is the id of the innermost open Span of the lane, None outside any.
    """

    rank: int
    lane: int
    stream: int
    seq: int
    name: str
    flops: float
    moved_bytes: float
    kernels: int
    dtype: str
    fixed_s: float | None
    span: int | None
    start_s: float | None
    end_s: float | None


class Comm(NamedTuple):
    """One rank's part of a transfer. `id` counts the rank's transfers from 0.

    `group` is the uid; `group_seq` counts the rank's collectives on the group, and
    `pair_seq` its sends (or receives) with the same peer and tag. `peer` is the other
    end of a send or receive, or the root; None where there is none, and for a receive
    from any source that took nothing. `logical_bytes` is the payload: what the caller
    handed over (for a scatter or a gather: one rank's share). `batch` numbers the
    transfers that were issued as one. `reads` and `writes` are storages. A transfer is
    issued, arrives when the last rank that it needs has come, and has ended; what told
    of the end is `end_source`, None where nothing did: a "future" when it ended, a
    "look" up to `end_unsure_s` later, a late "wait" any time later.
    """

    rank: int
    lane: int
    stream: int
    seq: int
    id: int
    kind: Kind
    group: str
    group_seq: int
    peer: int | None
    tag: int
    pair_seq: int
    logical_bytes: int
    dtype: str
    op: str | None = None
    send_splits: tuple[int, ...] | None = None
    recv_splits: tuple[int, ...] | None = None
    batch: int | None = None
    is_async: bool = False
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    span: int | None = None
    site: Site | None = None
    issued_s: float | None = None
    arrived_s: float | None = None
    ended_s: float | None = None
    end_source: EndSource | None = None
    end_unsure_s: float = 0.0

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.kind in P2P

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """Source and destination of a message: the same for send and receive."""
        return (self.rank, self.peer) if self.kind == "send" else (self.peer, self.rank)


class Wait(NamedTuple):
    """A lane (who="host") or its `stream` (who="stream") waits for `target`.

    `target` is the id of one of the rank's Comms; where cause is "event", of one of its
    Marks. Cause "wait": the program said so. "future", "storage": the program waited
    unseen, inside C++; it is known from the first operation that touched the buffer.
    `ok` is False where the wait raised, or was still on at the end (`end_s` None).
    """

    rank: int
    lane: int
    stream: int
    seq: int
    target: int
    who: Literal["host", "stream"]
    cause: Cause
    site: Site | None
    start_s: float | None
    end_s: float | None
    ok: bool = True


class Mark(NamedTuple):
    """A stream's event: it happens when the stream has done all it was given before."""

    rank: int
    lane: int
    stream: int
    seq: int
    id: int


class HostRead(NamedTuple):
    """The host reads a value that `stream` computes, and stands still until it has."""

    rank: int
    lane: int
    stream: int
    seq: int
    site: Site | None = None


class Alloc(NamedTuple):
    """A storage came to be, or came to be of this kind.

    What was scratch until it was known to be more was of that kind from the beginning.
    """

    rank: int
    seq: int
    storage: int
    num_bytes: int
    kind: MemoryKind
    at_s: float | None = None


class Free(NamedTuple):
    """A storage was freed, or is not of this kind any more."""

    rank: int
    seq: int
    storage: int
    num_bytes: int
    kind: MemoryKind
    at_s: float | None = None


class Span(NamedTuple):
    """A named stretch of a lane's program, at the `seq` where it began.

    `last_seq` is the seq of its last event. `end_s` is None where it was never closed.
    `step` counts the rank's spans named "step" from 0; `micro_batch` and `stage` are
    what the span was given.
    """

    rank: int
    lane: int
    seq: int
    id: int
    parent: int | None
    name: str
    step: int
    micro_batch: int | None
    stage: int | None
    last_seq: int
    start_s: float | None
    end_s: float | None


class Moment(NamedTuple):
    """Something that the learner's program said of one moment: `mark("spoke")`."""

    rank: int
    lane: int
    seq: int
    name: str
    at_s: float | None


Event: TypeAlias = Work | Comm | Wait | Mark | HostRead | Alloc | Free | Span | Moment


class Traffic(NamedTuple):
    """Exact counts of one rank's transfers of one kind, on one group, with one peer.

    `payload_bytes` were handed over; `wire_bytes` left the rank: counted for a send,
    derived from the algorithm for a backend's own collective.
    """

    rank: int
    kind: Kind
    group: str
    peer: int | None
    num_calls: int
    payload_bytes: int
    wire_bytes: int


class Race(NamedTuple):
    """An operation touched a buffer of a transfer that nobody had waited for."""

    rank: int
    target: int
    storage: int
    access: Literal["read", "write"]
    operation: str
    site: Site | None


@dataclass(frozen=True, repr=False)
class Program:
    """What every rank did. See the module's head."""

    header: Header
    groups: dict[str, tuple[int, ...]]
    events: tuple[tuple[Event, ...], ...]
    traffic: tuple[Traffic, ...] = ()
    races: tuple[Race, ...] = ()

    def __iter__(self) -> Iterator[Event]:
        """Every event, rank by rank."""
        for events in self.events:
            yield from events

    def __repr__(self) -> str:
        ranks, events = len(self.header.ranks), sum(map(len, self.events))
        times = f"{format_seconds(self.duration_s)} on {self.header.hardware}"
        if not self.header.has_times:
            times = "without times"
        return (
            f"A record of {ranks} rank{'s' * (ranks != 1)}, {self.header.source}: "
            f"{events:,} events, {times}"
        )

    def of(self, rank: int) -> tuple[Event, ...]:
        """One rank's events.

        Raises:
            UsageError: The record has no such rank.
        """
        try:
            return self.events[self.header.ranks.index(rank)]
        except ValueError:
            raise UsageError(
                f"events are those of one of the record's ranks {self.header.ranks}; "
                f"rank {rank!r} was asked for. Use one of those"
            ) from None

    @cached_property
    def spans(self) -> dict[tuple[int, int], Span]:
        """Every span, by rank and id."""
        return {(e.rank, e.id): e for e in self if isinstance(e, Span)}

    @cached_property
    def num_steps(self) -> int:
        """How many spans named "step" the busiest rank had."""
        steps = [span.step for span in self.spans.values() if span.name == "step"]
        return max(steps, default=-1) + 1

    @cached_property
    def duration_s(self) -> float:
        """From the first moment of the record, 0, to its last."""
        return max((at for event in self for at in _times(event)), default=0.0)


_LENGTHS = ("fixed_s", "end_unsure_s")
_TIME_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(
        name for name in kind._fields if name.endswith("_s") and name not in _LENGTHS
    )
    for kind in (Work, Comm, Wait, Mark, HostRead, Alloc, Free, Span, Moment)
}


def _times(event: Event) -> Iterator[float]:
    for name in _TIME_FIELDS[type(event)]:
        at = getattr(event, name)
        if at is not None:
            yield at


def without_times(program: Program) -> tuple[tuple[Event, ...], ...]:
    """The events alone: equal for two records of one program.

    Left out are times, how the end of a transfer was learned, and when memory was
    freed: a backend's thread lets go of a buffer when it comes to it.
    """
    return tuple(_timeless(events) for events in program.events)


def _timeless(events: tuple[Event, ...]) -> tuple[Event, ...]:
    kept = [event for event in events if not isinstance(event, Free)]
    place = {event.seq: index for index, event in enumerate(kept)}
    latest = 0
    for event in events:
        latest = place.setdefault(event.seq, latest)
    blank = [_blank(event)._replace(seq=place[event.seq]) for event in kept]
    return tuple(
        event._replace(last_seq=place[event.last_seq])
        if isinstance(event, Span)
        else event
        for event in blank
    )


def _blank(event: Event) -> Event:
    times: dict[str, None] = dict.fromkeys(_TIME_FIELDS[type(event)])
    if isinstance(event, Comm):
        return event._replace(**times, end_source=None, end_unsure_s=0.0)
    return event._replace(**times) if times else event
