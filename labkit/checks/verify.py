"""Judges what was recorded, without ranks: messages, causal order, rounds, values.

Everything here is a pure function of numbers, tensors and the events of a record, so
that the notebook and the grader reach the same verdict from the same data, on any
machine. No clock is read: "before" means that a message could have told of it.

A record is, for each rank, the ordered list of its events (`labkit.record.events`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.record.events import (
    P2P,
    CommEnd,
    CommStart,
    Event,
    Moment,
    Site,
    WaitEnd,
)

Record = Sequence[Sequence[Event]]
_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"reduce", "gather"})


@dataclass(frozen=True)
class Place:
    """One event of a record: the `index`-th of `rank`."""

    rank: int
    index: int


@dataclass(frozen=True)
class Transfer:
    """One transfer of one rank, and the calls of other ranks that belong to it.

    `needs` are the calls that it cannot end without when nothing is buffered; `told_by`
    those whose data it brings, and with it the news of all that came before them.
    """

    comm: CommStart
    issue: Place
    needs: tuple[Place, ...]
    told_by: tuple[Place, ...]


Transfers = dict[tuple[int, int], Transfer]


def match(record: Record) -> Transfers:
    """Every transfer of a record by (rank, id), with the calls that belong to it."""
    calls = [(place, event) for place, event in _places(record) if _is_comm(event)]
    matched: Transfers = {}
    for belonging in _together(calls):
        for place, comm in belonging:
            others = [call for call in belonging if call[0] != place]
            told_by = [at for at, other in others if _tells(at.rank, other, comm)]
            needs = [at for at, _ in others]
            transfer = Transfer(comm, place, tuple(needs), tuple(told_by))
            matched[place.rank, comm.id] = transfer
    return matched


def _places(record: Record) -> Iterator[tuple[Place, Any]]:
    for rank, events in enumerate(record):
        for index, event in enumerate(events):
            yield Place(rank, index), event


def _is_comm(event: Event) -> bool:
    return isinstance(event, CommStart)


Calls = Sequence[tuple[Place, CommStart]]


def _together(calls: Calls) -> list[list[tuple[Place, CommStart]]]:
    """The calls that belong together: one collective's, or a send and its receive.

    Messages between two ranks are counted from the record's beginning.
    """
    together: dict[object, list[tuple[Place, CommStart]]] = defaultdict(list)
    senders = _senders_to_any(calls)
    count: Counter[object] = Counter()
    for place, comm in calls:
        if comm.kind in P2P:
            pair = (comm.group, *_ends(place.rank, comm, senders), comm.tag)
            key = (*pair, count[comm.kind, pair])
            count[comm.kind, pair] += 1
        else:
            key = (comm.group, comm.group_seq)
        together[key].append((place, comm))
    return list(together.values())


def _senders_to_any(calls: Calls) -> dict[object, int]:
    """The only rank that sends to each rank and tag: whom a receive from any means."""
    senders: dict[object, set[int]] = defaultdict(set)
    for place, comm in calls:
        if comm.kind == "send":
            senders[comm.group, comm.peer, comm.tag].add(place.rank)
    return {key: next(iter(ranks)) for key, ranks in senders.items() if len(ranks) == 1}


def _ends(
    rank: int, comm: CommStart, senders: dict[object, int]
) -> tuple[int | None, int | None]:
    """Source and destination of a message; the source is None where it is not known."""
    if comm.kind == "send":
        return rank, comm.peer
    if comm.peer is not None:
        return comm.peer, rank
    return senders.get((comm.group, rank, comm.tag)), rank


def _tells(teller: int, told: CommStart, own: CommStart) -> bool:
    """Whether the call `told` of rank `teller` brings data to the call `own`."""
    if own.kind in P2P:
        return own.kind == "recv"
    if own.kind in _FROM_ROOT:
        return teller == own.peer
    if own.kind in _TO_ROOT:
        return told.peer != teller
    return True


def count_kinds(events: Sequence[Event]) -> Counter[str]:
    """How many transfers of each kind a rank issued."""
    return Counter(event.kind for event in events if isinstance(event, CommStart))


def count_collectives(record: Record) -> Counter[str]:
    """How many collectives of each kind the ranks took part in, each counted once."""
    once = {
        (event.group, event.group_seq, event.kind)
        for _, event in _places(record)
        if _is_comm(event) and event.kind not in P2P
    }
    return Counter(kind for _, _, kind in once)


def sends(record: Record) -> list[CommStart]:
    """Every message that left a rank."""
    return [e for _, e in _places(record) if _is_comm(e) and e.kind == "send"]


def count_marks(record: Record, name: str) -> list[int]:
    """How often each rank marked the moment `name`."""
    return [
        sum(isinstance(event, Moment) and event.name == name for event in events)
        for events in record
    ]


def find_mark(record: Record, rank: int, name: str) -> Place:
    """Where a rank marked the moment `name` first.

    Raises:
        ValueError: It never did.
    """
    for index, event in enumerate(record[rank]):
        if isinstance(event, Moment) and event.name == name:
            return Place(rank, index)
    raise ValueError(
        f"rank {rank} has no mark {name!r} among {len(record[rank])} events"
    )


def news(record: Record, at: Place, matched: Transfers | None = None) -> list[int]:
    """How far into each rank's events the news had come when `at` happened.

    News travels along a rank's own events, and with a message: from the call that sent
    it to the end of the wait for it. Returns the last index told of for each rank, -1
    where there is none: the vector clock of `at`, computed backwards.
    """
    transfer = match(record) if matched is None else matched
    known = [-1] * len(record)
    to_do = [at]
    while to_do:
        place = to_do.pop()
        events = record[place.rank]
        for index in range(place.index, known[place.rank], -1):
            event = events[index]
            if isinstance(event, WaitEnd) and event.ok:
                ended = transfer.get((place.rank, event.target))
                to_do += ended.told_by if ended else ()
        known[place.rank] = max(known[place.rank], place.index)
    return known


def happened_before(
    record: Record, first: Place, then: Place, matched: Transfers | None = None
) -> bool:
    """Whether some chain of messages could have told `then` of `first`."""
    return news(record, then, matched)[first.rank] >= first.index


def not_waited_for(record: Record, rank: int, until: Place) -> list[CommStart]:
    """The transfers that a rank issued before `until`, and not ended by then."""
    open_: dict[int, CommStart] = {}
    for event in record[rank][: until.index]:
        if isinstance(event, CommStart):
            open_[event.id] = event
        elif isinstance(event, CommEnd) or (isinstance(event, WaitEnd) and event.ok):
            open_.pop(event.target, None)
    return list(open_.values())


def rounds(record: Record) -> int:
    """How many link latencies a record takes, when nothing else takes any time.

    A transfer starts when every rank that it needs has issued its call (rendezvous: no
    buffer hides an unmatched send), and takes one latency; calls cost nothing, links
    are full-duplex, and a rank stands still only in its waits. No clock is read.

    Raises:
        ValueError: A rank waits for a transfer that can never start.
    """
    replay = _LatencyReplay(record)
    while any(replay.play(rank) for rank in range(len(record))):
        pass
    for rank, events in enumerate(record):
        if replay.position[rank] < len(events):
            raise ValueError(
                "a record must hold both ends of every transfer that is waited for; "
                f"rank {rank} stands still at event {replay.position[rank]} of "
                f"{len(events)}; replay only runs that ended"
            )
    return replay.last()


class _LatencyReplay:
    """Plays a record forward, each rank with a clock that counts latencies."""

    def __init__(self, record: Record) -> None:
        self.position = [0] * len(record)
        self._record = record
        self._now = [0] * len(record)
        self._matched = match(record)
        self._issued: dict[Place, int] = {}

    def play(self, rank: int) -> bool:
        """Play a rank until it has to stand still; whether it moved at all."""
        start = self.position[rank]
        for event in self._record[rank][start:]:
            if isinstance(event, CommStart):
                self._issued[Place(rank, self.position[rank])] = self._now[rank]
            elif isinstance(event, WaitEnd):
                transfer = self._matched.get((rank, event.target))
                end = self._now[rank] if transfer is None else self._end(transfer)
                if end is None:
                    break
                self._now[rank] = max(self._now[rank], end)
            self.position[rank] += 1
        return self.position[rank] > start

    def last(self) -> int:
        """The latest moment that any rank or transfer reached."""
        ends = [self._end(transfer) for transfer in self._matched.values()]
        return max([0, *self._now, *(end for end in ends if end is not None)])

    def _end(self, transfer: Transfer) -> int | None:
        """When a transfer ends; None while a call that it needs is missing."""
        if not transfer.needs:
            is_whole = transfer.comm.kind not in P2P
            return self._issued.get(transfer.issue) if is_whole else None
        places = (transfer.issue, *transfer.needs)
        starts = [self._issued.get(place) for place in places]
        known = [start for start in starts if start is not None]
        return max(known) + 1 if len(known) == len(starts) else None


def differ(name: str, got: Any, expected: Tensor) -> str | None:
    """How a tensor differs from what is expected, bit for bit; None if it does not."""
    # An exact type: a subclass could answer any comparison as it likes.
    if type(got) is not Tensor:
        return f"{name} must be a tensor; got {type(got).__name__}"
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return (
            f"{name} must be {_shape(expected)}; got {_shape(got)}: fill the tensor "
            "that is there"
        )
    if (got.layout, got.device) != (expected.layout, expected.device):
        return (
            f"{name} must be {_kind(expected)}; got {_kind(got)}, which does not hold "
            "each element in its place"
        )
    wrong = (got != expected).reshape(-1).nonzero()
    if not len(wrong):
        return None
    at = int(wrong[0])
    seen, wanted = got.reshape(-1)[at].item(), expected.reshape(-1)[at].item()
    many = f"{len(wrong)} of {got.numel()} elements wrong, first at {at}"
    return f"{name} must be {wanted:g} there, is {seen:g} ({many})"


def _kind(tensor: Tensor) -> str:
    layout = "dense" if tensor.layout is torch.strided else str(tensor.layout)
    return f"{layout.removeprefix('torch.')} on {tensor.device}"


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def line_of(site: Site | None) -> str:
    """`line 3`, or nothing where no line of the learner's made the call."""
    return "" if site is None else f"line {site.line}"


def plural(count: int, noun: str) -> str:
    """`1 message`, `3 messages`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
