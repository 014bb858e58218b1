"""Which call belongs to which: open until every rank concerned has made its part.

Collectives meet in a `Round`, by group and place. Sends and receives meet in a queue
for each group, source, destination and tag, first come first served. Once a rank
receives from any source, what belongs to what is up to timing: from then on a `Pool`
only counts.

What has met is forgotten, so memory grows with what is outstanding alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.record.events import P2P, CommStart
from labkit.runtime.diagnosis.agreement import collective_difference, p2p_difference
from labkit.runtime.diagnosis.findings import Differs
from labkit.runtime.diagnosis.needs import Need, collective_need, p2p_need

MAX_MISFITS = 64
# Of a pool's transfers that are never seen to end, the oldest are taken for answered.
MAX_LETTERS = 4096


@dataclass(slots=True, eq=False)
class Group:
    """One group: its members, how many collectives each has made, those still open."""

    uid: str
    members: tuple[int, ...]
    counts: dict[int, int] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)
    first_seq: int = 0

    def begin_run(self) -> None:
        """Number calls from here on."""
        self.first_seq = min(self.counts.get(rank, 0) for rank in self.members)


@dataclass(slots=True, eq=False)
class Round:
    """One collective of a group, as far as its members have called it."""

    group: Group
    seq: int
    calls: dict[int, CommStart] = field(default_factory=dict)

    def enter(self, rank: int, comm: CommStart) -> Differs | None:
        """Take a rank's call; tell in what it differs from those before."""
        differs = None
        for other_rank, other in self.calls.items():
            differs = collective_difference(
                rank, comm, other_rank, other, self.group.members
            )
            # Only what pairs of ranks agreed on has to be looked at pair by pair.
            if differs is not None or comm.recv_splits is None:
                break
        self.calls[rank] = comm
        return differs

    def missing(self) -> list[int]:
        """Members that have not made the call."""
        return [rank for rank in self.group.members if rank not in self.calls]

    def need(self, rank: int) -> Need:
        """What a rank that made the call waits for."""
        missing = self.missing()
        return collective_need(rank, self.calls[rank], self.group.members, missing)

    def comm_of(self, rank: int) -> CommStart:
        """The call of a rank that has made it."""
        return self.calls[rank]


@dataclass(slots=True, eq=False)
class Letter:
    """A send or a receive that has not met its other end."""

    rank: int
    comm: CommStart
    rendezvous: bool
    pool: Pool | None = None

    def need(self, rank: int) -> Need:
        """What the rank that made the call waits for."""
        if self.pool is not None:
            return self.pool.need(self)
        return p2p_need(self.comm, rendezvous=self.rendezvous)

    def comm_of(self, rank: int) -> CommStart:
        """The call itself."""
        return self.comm


@dataclass(slots=True, eq=False)
class Pool:
    """Counts what goes to a rank that has received from any source, under one tag."""

    group: Group
    owner: int
    sent: Counter[int] = field(default_factory=Counter)
    posted: Counter[int | None] = field(default_factory=Counter)
    received: Counter[int | None] = field(default_factory=Counter)
    letters: dict[tuple[int, int], Letter] = field(default_factory=dict)
    open_sends: int = 0
    last: dict[str, tuple[int, CommStart]] = field(default_factory=dict)

    def put(self, letter: Letter, *, ended: bool = False) -> None:
        """Count a send to the owner, or a receive by it."""
        letter.pool = self
        comm = letter.comm
        self.last[comm.kind] = letter.rank, comm
        if comm.kind == "send":
            self.sent[letter.rank] += 1
            self.open_sends += 1
        else:
            self.posted[comm.peer] += 1
        self.letters[letter.rank, comm.id] = letter
        if ended:
            self.end(letter)

    def end(self, letter: Letter) -> None:
        """Count that a send or receive is over."""
        if self.letters.pop((letter.rank, letter.comm.id), None) is None:
            return
        if letter.comm.kind == "send":
            self.open_sends -= 1
        else:
            self.received[letter.comm.peer] += 1

    def surplus(self) -> int:
        """Sends without a receive; below zero, receives without a send."""
        return self.sent.total() - self.posted.total()

    def is_even(self) -> bool:
        """Whether every receive can have a send, and every send a receive."""
        if self.surplus() != 0:
            return False
        named = (peer for peer in self.posted if peer is not None)
        return all(self.sent[peer] >= self.posted[peer] for peer in named)

    def need(self, letter: Letter) -> Need:
        """What a send or receive waits for, where it is sure that nobody answers it."""
        comm, owner = letter.comm, self.owner
        if comm.kind == "send":
            # Too few receives, even if each is for one of the sends still open.
            if self.surplus() < self.open_sends:
                return Need()
            return p2p_need(comm, rendezvous=letter.rendezvous)
        if comm.peer is not None:
            if self.sent[comm.peer] > self.received[comm.peer]:
                return Need()
            return p2p_need(comm, rendezvous=False)
        if self.sent.total() > self.received.total():
            return Need()
        return Need(any_of=tuple(rank for rank in self.group.members if rank != owner))


@dataclass(frozen=True)
class Misfit:
    """Calls that belong together and differ."""

    differs: Differs
    round: Round | None = None
    pair: tuple[Letter, Letter] | None = None

    def calls(self) -> dict[int, CommStart]:
        """The call of each rank, as far as it is known by now."""
        if self.round is not None:
            return {rank: self.round.calls[rank] for rank in sorted(self.round.calls)}
        assert self.pair is not None
        ends = sorted(self.pair, key=lambda letter: letter.rank)
        return {letter.rank: letter.comm for letter in ends}


class Matcher:
    """Brings together the calls of all ranks, in whatever order ranks are heard."""

    def __init__(self, world_size: int, *, ignore_tags: bool, rendezvous: bool) -> None:
        self.groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.pending: list[dict[int, Round | Letter]] = [{} for _ in range(world_size)]
        self.misfits: list[Misfit] = []
        self._ignore_tags = ignore_tags
        self._rendezvous = rendezvous
        self._queues: dict[tuple[Group, int, int, int], deque[Letter]] = {}
        self._pools: dict[tuple[Group, int, int], Pool] = {}

    def join(self, uid: str, members: tuple[int, ...]) -> Group:
        """The group of that name and those members, made on first mention."""
        return self.groups.setdefault((uid, members), Group(uid, members))

    def issue(self, rank: int, group: Group, comm: CommStart) -> None:
        """A rank made a call."""
        if comm.kind in P2P:
            self._post(group, Letter(rank, comm, self._rendezvous))
        else:
            self._enter(rank, group, comm)

    def end(self, rank: int, comm_id: int) -> None:
        """A rank's transfer is over: it needs nobody any more."""
        entry = self.pending[rank].pop(comm_id, None)
        if isinstance(entry, Letter) and entry.pool is not None:
            entry.pool.end(entry)

    def unmet(self) -> Iterator[Letter]:
        """Sends and receives that have not met their other end."""
        for queue in self._queues.values():
            yield from queue

    def uneven_pools(self) -> Iterator[Pool]:
        """Pools in which a send or a receive is left over."""
        return (pool for pool in self._pools.values() if not pool.is_even())

    def nothing_open(self) -> bool:
        """Whether every call has met all its counterparts."""
        rounds = any(group.rounds for group in self.groups.values())
        return not rounds and not self._queues and not any(self.uneven_pools())

    def _enter(self, rank: int, group: Group, comm: CommStart) -> None:
        seq = comm.group_seq
        meeting = group.rounds.get(seq)
        if meeting is None:
            meeting = group.rounds[seq] = Round(group, seq)
        differs = meeting.enter(rank, comm)
        if differs is not None:
            self._misfit(Misfit(differs, round=meeting))
        group.counts[rank] = seq + 1
        if len(meeting.calls) < len(group.members):
            self.pending[rank][comm.id] = meeting
            return
        del group.rounds[seq]
        for member, call in meeting.calls.items():
            self.pending[member].pop(call.id, None)

    def _misfit(self, misfit: Misfit) -> None:
        if len(self.misfits) < MAX_MISFITS:
            self.misfits.append(misfit)

    def _post(self, group: Group, letter: Letter) -> None:
        rank, comm = letter.rank, letter.comm
        tag = 0 if self._ignore_tags else comm.tag
        if comm.kind == "send":
            assert comm.peer is not None
            source, owner = rank, comm.peer
        else:
            source, owner = comm.peer, rank
        pool = self._pools.get((group, owner, tag))
        if pool is None and source is None:
            pool = self._open_pool(group, owner, tag)
        if pool is not None:
            self._put(pool, letter)
        elif source is not None:
            self._meet((group, source, owner, tag), letter)

    def _meet(self, key: tuple[Group, int, int, int], letter: Letter) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        if not queue or queue[0].comm.kind == letter.comm.kind:
            queue.append(letter)
            self.pending[letter.rank][letter.comm.id] = letter
            return
        other = queue.popleft()
        self.pending[other.rank].pop(other.comm.id, None)
        if not queue:
            del self._queues[key]
        differs = p2p_difference(letter.comm, other.comm)
        if differs is not None:
            self._misfit(Misfit(differs, pair=(other, letter)))

    def _open_pool(self, group: Group, owner: int, tag: int) -> Pool:
        """Count from now on; what waits in the queues to `owner` goes into the pool."""
        pool = self._pools[group, owner, tag] = Pool(group, owner)
        for source in group.members:
            for letter in self._queues.pop((group, source, owner, tag), ()):
                ended = letter.comm.id not in self.pending[letter.rank]
                pool.put(letter, ended=ended)
        return pool

    def _put(self, pool: Pool, letter: Letter) -> None:
        self.pending[letter.rank][letter.comm.id] = letter
        pool.put(letter)
        if len(pool.letters) > MAX_LETTERS:
            rank, comm_id = next(iter(pool.letters))
            del pool.letters[rank, comm_id]
            self.pending[rank].pop(comm_id, None)
