"""Puts the ranks' parts of each transfer together.

Before: every rank's Comms. After: Transfers, one for each collective and each message,
in the order of (rank, seq) of the first part of their lowest rank. Everything that the
engine does in some order, it does in this one, so that no result depends on the order
in which ranks are processed.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import Protocol, TypeAlias

from labkit.errors import UsageError
from labkit.record.program import Comm, Program

Key: TypeAlias = tuple[str | int, ...]
# These hold up the host, on every device: torch waits for a barrier on the host, and
# meets in its store, beside all streams and queues, to make a group.
HOST_SIDE = frozenset({"barrier", "new_group"})
MAX_NAMED = 4


class Process(Protocol):
    """What waits for a transfer: a lane, or a stream."""

    def run(self) -> None:
        """Go on as far as possible."""
        ...


class Queue:
    """What runs one at a time: a group's collectives, or messages one way of a pair.

    Collectives run in the order of `group_seq`, the same on every rank. Messages run in
    the order in which both ends have come, so that a receive which is posted early
    never waits for one that is posted late: `is_fixed` says whether that order is that
    of the sends, whatever the times.
    """

    __slots__ = (
        "_came", "_last", "at", "free_s", "is_busy", "is_fixed", "is_p2p", "order",
    )  # fmt: skip

    def __init__(self, *, is_p2p: bool) -> None:
        self.is_p2p = is_p2p
        self.is_fixed = True
        self.order: list[Transfer] = []
        self.at = 0
        self.free_s = 0.0
        self.is_busy = False
        self._came: list[tuple[float, int, Transfer]] = []
        self._last: Transfer | None = None

    def sort(self, torn: set[tuple[int, int]]) -> None:
        """Once all transfers are there: bring them in order.

        Args:
            torn: The (rank, batch) between whose parts the rank issued others.
        """
        self.order.sort(key=lambda transfer: transfer.number)
        if self.is_p2p:
            ends = zip(*(transfer.parts for transfer in self.order), strict=True)
            self.is_fixed = all(_is_one_file(parts, torn) for parts in ends)

    def next(self) -> Transfer | None:
        """The head, if all have come that it needs, in a queue whose order is fixed."""
        if self.at == len(self.order) or self.order[self.at].missing:
            return None
        return self._begin(self.order[self.at])

    def come(self, transfer: Transfer) -> None:
        """Time has come to where all are there that the transfer needs."""
        if self.is_p2p and not transfer.has_come:
            heappush(self._came, (transfer.ready_s, transfer.index, transfer))
        transfer.has_come = True

    def first(self) -> Transfer | None:
        """What goes next, if it has come by now."""
        if self.is_p2p:
            return self._came[0][2] if self._came else None
        if self.at == len(self.order) or not self.order[self.at].has_come:
            return None
        return self.order[self.at]

    def take(self, first: Transfer) -> None:
        """The first of it begins."""
        assert first is self.first()
        self.is_busy = True
        if self.is_p2p:
            heappop(self._came)
        self._begin(first)

    def _begin(self, first: Transfer) -> Transfer:
        self.at += 1
        first.after, self._last = self._last, first
        return first


def _is_one_file(parts: tuple[Comm, ...], torn: set[tuple[int, int]]) -> bool:
    """Whether a rank comes to its parts in this order, whatever the times."""
    seqs = [part.seq for part in parts]
    is_in_order = len({(p.lane, p.stream) for p in parts}) == 1 and seqs == sorted(seqs)
    return is_in_order and not any((p.rank, p.batch) in torn for p in parts)


def _is_torn(batch: list[Comm]) -> bool:
    """Whether it was not issued in one go, by one lane on one stream."""
    num_ids = batch[-1].id - batch[0].id + 1
    return num_ids != len(batch) or len({(p.lane, p.stream) for p in batch}) > 1


class Transfer:
    """A collective or a message, while it is replayed.

    Attributes:
        index: Its place among all transfers.
        parts: One Comm of each of `ranks`; of a message, the send and the receive.
        queue: What it runs on; None where it runs beside all others.
        missing: How many ranks have yet to come.
        ready_s: When the last one came that has come so far.
        after: What ran before it on its queue; None where nothing did, or not yet.
        latency_s, moving_s, links, rate, weight: See `labkit.replay.links`.
        arrived_s, ended_s: None until known.
        waiters: Who goes on when it ends.
    """

    __slots__ = (
        "after", "arrived_s", "ended_s", "has_come", "index", "is_full_rate",
        "latency_s", "left", "links", "missing", "moving_s", "number", "parts",
        "queue", "ranks", "rate", "ready_s", "since_s", "version", "waiters", "weight",
    )  # fmt: skip

    def __init__(self, index: int, ranks: tuple[int, ...], number: int) -> None:
        self.index = index
        self.ranks = ranks
        self.number = number
        self.parts: list[Comm] = []
        self.queue: Queue | None = None
        self.missing = len(ranks)
        self.ready_s = 0.0
        self.after: Transfer | None = None
        self.has_come = False
        self.arrived_s: float | None = None
        self.ended_s: float | None = None
        self.waiters: list[Process] = []
        self.latency_s = self.moving_s = self.weight = 0.0
        self.links: tuple[tuple[int, float], ...] = ()
        self.left = 1.0
        self.rate = self.since_s = 0.0
        self.is_full_rate = False
        self.version = 0

    @property
    def kind(self) -> str:
        """What it is: of a message, "send"."""
        return self.parts[0].kind

    @property
    def says(self) -> str:
        """In words: which transfer it is."""
        return describe(self.parts[0])


def describe(comm: Comm) -> str:
    """One part of a transfer, in words."""
    at = f" ({comm.site.filename}:{comm.site.line})" if comm.site else ""
    if not comm.is_p2p:
        return f"{comm.kind} {comm.group_seq} on group {comm.group!r}{at}"
    to = "to" if comm.kind == "send" else "from"
    tag = f" with tag {comm.tag}" if comm.tag else ""
    return f"{comm.kind} {comm.pair_seq} {to} rank {comm.peer}{tag}{at}"


class Matching:
    """All transfers of a Program, and those of each rank by the id of its part."""

    def __init__(self, program: Program) -> None:
        self.transfers: list[Transfer] = []
        self.of_rank: dict[int, dict[int, Transfer]] = {}
        self.queues: dict[Key, Queue] = {}
        self._groups = program.groups
        self._by_key: dict[Key, Transfer] = {}
        self._batches: defaultdict[tuple[int, int], list[Comm]] = defaultdict(list)
        recorded = set(program.header.ranks)
        for rank in sorted(recorded):
            self._take_rank(rank, program)
        for transfer in self.transfers:
            _check(transfer, recorded)
            transfer.parts.sort(key=lambda c: (c.kind == "recv", c.rank))
            self._enqueue(transfer)
        torn = {key for key, parts in self._batches.items() if _is_torn(parts)}
        for queue in self.queues.values():
            queue.sort(torn)

    def _take_rank(self, rank: int, program: Program) -> None:
        found = self.of_rank[rank] = {}
        for event in program.of(rank):
            if type(event) is Comm:
                transfer = self._transfer(event)
                transfer.parts.append(event)
                if event.batch is not None:
                    self._batches[rank, event.batch].append(event)
                if found.setdefault(event.id, transfer) is not transfer:
                    raise UsageError(
                        f"a rank's transfers must have ids of their own; rank {rank} "
                        f"has two with id {event.id}, the second is {describe(event)}. "
                        "Reduce the record again"
                    )

    def _transfer(self, comm: Comm) -> Transfer:
        key, ranks = self._key(comm)
        found = self._by_key.get(key)
        if found is None:
            number = comm.group_seq
            found = Transfer(len(self.transfers), ranks, number)
            self._by_key[key] = found
            self.transfers.append(found)
        if comm.kind == "send":
            found.number = comm.seq
        return found

    def _key(self, comm: Comm) -> tuple[Key, tuple[int, ...]]:
        """What is the same for all parts, and which ranks have one."""
        if comm.is_p2p:
            if comm.peer is None:
                raise UsageError(
                    f"a transfer needs a partner; rank {comm.rank}'s receive from any "
                    "source took nothing. Replay a run that ended well, and name the "
                    "sender: dist.recv(x, src=RANK)"
                )
            ends = (comm.rank, comm.peer)
            ends = ends if comm.kind == "send" else (comm.peer, comm.rank)
            return (comm.group, *ends, comm.tag, comm.pair_seq), ends
        if comm.group not in self._groups:
            raise UsageError(
                f"the ranks of every group must be known; rank {comm.rank} issued "
                f"{describe(comm)}, and Program.groups has only "
                f"{sorted(self._groups)}. Add it there"
            )
        return (comm.group, comm.group_seq), self._groups[comm.group]

    def _enqueue(self, transfer: Transfer) -> None:
        if transfer.kind == "new_group":
            return
        comm = transfer.parts[0]
        key = (comm.group, *(transfer.ranks if comm.is_p2p else ()))
        queue = self.queues.setdefault(key, Queue(is_p2p=comm.is_p2p))
        queue.order.append(transfer)
        transfer.queue = queue


def _check(transfer: Transfer, recorded: set[int]) -> None:
    """Hold that each rank has its one part, and that all are of one kind."""
    parts, comm = transfer.parts, transfer.parts[0]
    came = [part.rank for part in parts]
    kinds = dict.fromkeys(part.kind for part in parts)
    if sorted(came) == sorted(transfer.ranks) and len(kinds) == 1 + comm.is_p2p:
        return
    if len(kinds) > 1 and not comm.is_p2p:
        other = next(part for part in parts if part.kind != comm.kind)
        raise UsageError(
            f"the ranks of a collective must call the same one; rank {comm.rank} "
            f"issued {describe(comm)}, rank {other.rank} {describe(other)}. "
            "Make them the same, and run again"
        )
    lacking = sorted(set(transfer.ranks) - set(came))
    named = ", ".join(map(str, lacking[:MAX_NAMED])) or f"{came}"
    unknown = [rank for rank in lacking if rank not in recorded]
    if unknown:
        why = f"rank {unknown[0]} is not among the {len(recorded)} ranks of this record"
    else:
        why = f"{len(came)} parts are there, {len(transfer.ranks)} must be"
    raise UsageError(
        f"every transfer must have all its parts to be replayed; rank {comm.rank} "
        f"issued {describe(comm)}, without partner on rank {named}: {why}. Replay a "
        "run that ended well on every rank"
    )
