"""Programs for tests of the engine: written by hand, and drawn at random.

A random program is drawn in the order in which it could have run: a wait is written
only after all parts of its transfer. So whatever the machine, none waits for itself.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.record.events import Kind
from labkit.record.program import (
    Alloc,
    Cause,
    Comm,
    Event,
    Free,
    Header,
    HostRead,
    Mark,
    Moment,
    Program,
    Span,
    Wait,
    Work,
)
from labkit.replay.machine import AlphaBeta

WORLD = "world"
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES: tuple[Kind, ...] = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce",
    "gather", "scatter",
)  # fmt: skip


class Draft:
    """A Program in the making: each method adds one event of one rank."""

    def __init__(
        self, size: int, groups: dict[str, tuple[int, ...]] | None = None
    ) -> None:
        self.groups = {WORLD: tuple(range(size)), **(groups or {})}
        self.events: list[list[Event]] = [[] for _ in range(size)]
        self.ids: Counter[int] = Counter()
        self.group_seq: Counter[Any] = Counter()
        self.pair_seq: Counter[Any] = Counter()

    def add(self, kind: type, rank: int, *fields: Any) -> int:
        """Add an event whose seq comes next, and return that."""
        seq = len(self.events[rank])
        self.events[rank].append(kind(rank, *fields))
        return seq

    def seq(self, rank: int) -> int:
        """The seq of the rank's next event."""
        return len(self.events[rank])

    def work(
        self, rank: int, flops: float, *, lane: int = 0, stream: int = 0,
        moved: float = 0.0, kernels: int = 1, fixed_s: float | None = None,
        span: int | None = None,
    ) -> None:  # fmt: skip
        self.add(
            Work, rank, lane, stream, self.seq(rank), "mm", flops, moved, kernels,
            "float32", fixed_s, span, None, None,
        )  # fmt: skip

    def comm(
        self, rank: int, kind: Kind, group: str = WORLD, num_bytes: int = 0, *,
        peer: int | None = None, tag: int = 0, lane: int = 0, stream: int = 0,
        batch: int | None = None, splits: tuple[int, ...] | None = None,
    ) -> int:  # fmt: skip
        number = self.ids[rank]
        self.ids[rank] += 1
        counter, key = self.group_seq, (rank, group)
        if kind in ("send", "recv"):
            counter, key = self.pair_seq, (rank, kind, group, peer, tag)
        count = counter[key]
        counter[key] += 1
        is_p2p = counter is self.pair_seq
        self.add(
            Comm, rank, lane, stream, self.seq(rank), number, kind, group,
            0 if is_p2p else count, peer, tag, count if is_p2p else 0, num_bytes,
            "float32", None, splits, splits, batch,
        )  # fmt: skip
        return number

    def wait(
        self, rank: int, target: int, *, who: str = "host", cause: Cause = "wait",
        lane: int = 0, stream: int = 0,
    ) -> None:  # fmt: skip
        self.add(
            Wait, rank, lane, stream, self.seq(rank), target, who, cause, None, None,
            None,
        )  # fmt: skip

    def mark(self, rank: int, number: int, *, lane: int = 0, stream: int = 0) -> None:
        self.add(Mark, rank, lane, stream, self.seq(rank), number)

    def read(self, rank: int, *, lane: int = 0, stream: int = 0) -> None:
        self.add(HostRead, rank, lane, stream, self.seq(rank))

    def moment(self, rank: int, name: str = "here", *, lane: int = 0) -> None:
        self.add(Moment, rank, lane, self.seq(rank), name, None)

    def storage(self, rank: int, number: int, *, comes: bool = True) -> None:
        kind = Alloc if comes else Free
        self.add(kind, rank, self.seq(rank), number, 64, "scratch", None)

    def open_span(self, rank: int, number: int, *, lane: int = 0) -> int:
        seq = self.seq(rank)
        return self.add(
            Span, rank, lane, seq, number, None, "part", 0, None, None, seq, None, None
        )

    def close_span(self, rank: int, position: int) -> None:
        span = self.events[rank][position]
        assert isinstance(span, Span)
        self.events[rank][position] = span._replace(last_seq=self.seq(rank) - 1)

    def sync(self, kind: Kind, group: str = WORLD, num_bytes: int = 0) -> None:
        """A collective that every rank of the group waits for at once."""
        for rank in self.groups[group]:
            self.wait(rank, self.comm(rank, kind, group, num_bytes))

    def message(self, source: int, destination: int, num_bytes: int) -> None:
        """A send and its receive, both waited for at once."""
        sent = self.comm(source, "send", num_bytes=num_bytes, peer=destination)
        received = self.comm(destination, "recv", num_bytes=num_bytes, peer=source)
        self.wait(source, sent)
        self.wait(destination, received)

    def program(self, **header: Any) -> Program:
        """What has been written, as a planned Program of level "work"."""
        size = len(self.events)
        return Program(
            Header(**{
                "world_size": size, "ranks": tuple(range(size)), "level": "work",
                "source": "planned", **header,
            }),
            dict(self.groups),
            tuple(map(tuple, self.events)),
        )  # fmt: skip


@dataclass
class _Open:
    """A transfer of which some ranks have written their part."""

    kind: Kind
    group: str
    num_bytes: int
    ranks: list[int]
    peer: int | None = None
    tag: int = 0
    splits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)

    def kind_at(self, rank: int) -> Kind:
        return "recv" if self.kind == "send" and rank == self.peer else self.kind


class Dice:
    """Draws one program: any mix of everything that a Program may hold."""

    def __init__(
        self, seed: int, *, num_events: int = 60, has_ties: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.has_ties = has_ties
        self.num_events = num_events
        self.size = self.random.randint(1, 5)
        self.num_lanes = self.random.choice((1, 1, 1, 2, 3))
        self.num_streams = self.random.choice((1, 1, 2, 3))
        self.draft = Draft(self.size, self._groups())
        self.open: list[_Open] = []
        self.done: list[_Open] = []
        self.num_marks: Counter[int] = Counter()
        self.num_storages: Counter[int] = Counter()
        self.num_spans: Counter[int] = Counter()
        self.spans: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.batches = 0

    def _groups(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for number in range(self.random.randint(0, 4)):
            members = self.random.randint(1, self.size)
            found[f"g{number}"] = tuple(self.random.sample(range(self.size), members))
        return found

    def amount(self, scale: float) -> float:
        """A cost: one of few where many things should end at once."""
        if self.has_ties:
            return scale * self.random.choice((0, 1, 1, 2, 4))
        return scale * self.random.choice((0, 1)) * self.random.uniform(0.1, 5)

    def place(self) -> dict[str, int]:
        """A lane and a stream."""
        return {
            "lane": self.random.randrange(self.num_lanes),
            "stream": self.random.randrange(self.num_streams),
        }

    def program(self) -> Program:
        """The program that this seed stands for."""
        moves = [
            *[self.add_work] * 6, self.begin_collective, self.begin_collective,
            self.begin_message, self.begin_message, *[self.go_on] * 4, self.add_wait,
            self.add_wait, self.add_wait, self.add_sync, self.add_mark, self.add_read,
            self.add_batch, self.add_span, self.add_rest,
        ]  # fmt: skip
        while sum(map(len, self.draft.events)) < self.num_events:
            self.random.choice(moves)()
        while self.open:
            self.go_on()
        for _ in range(self.random.randint(0, 8)):
            self.add_wait()
        for (rank, _), spans in self.spans.items():
            for position in reversed(spans):
                self.draft.close_span(rank, position)
        return self.draft.program()

    def rank(self) -> int:
        return self.random.randrange(self.size)

    def add_work(self) -> None:
        fixed = self.random.random() < 0.1
        self.draft.work(
            self.rank(), self.amount(1e9), moved=self.amount(1e6),
            kernels=self.random.choice((0, 1, 1, 3)),
            fixed_s=self.amount(1e-3) if fixed else None, **self.place(),
        )  # fmt: skip

    def begin_collective(self, *, kind: Kind | None = None) -> _Open:
        group = self.random.choice(list(self.draft.groups))
        ranks = list(self.draft.groups[group])
        kind = kind or self.random.choice(COLLECTIVES)
        opened = _Open(kind, group, int(self.amount(1e6)), ranks)
        if kind in ROOTED:
            opened.peer = self.random.choice(ranks)
        if kind == "all_to_all" and self.random.random() < 0.5:
            opened.splits = {
                rank: tuple(self.random.randint(0, 3) for _ in ranks) for rank in ranks
            }
        self.open.append(opened)
        return opened

    def begin_message(self) -> _Open | None:
        if self.size < 2:
            return None
        source, destination = self.random.sample(range(self.size), 2)
        tag = self.random.choice((0, 0, 1, 2))
        num_bytes = int(self.amount(1e6))
        opened = _Open(
            "send", WORLD, num_bytes, [source, destination], destination, tag
        )
        self.open.append(opened)
        return opened

    def go_on(self) -> None:
        """One rank writes its part of a transfer, of those whose turn it is there."""
        if not self.open:
            return
        opened = self.random.choice(self.open)
        left = [rank for rank in opened.ranks if rank not in opened.ids]
        rank = self.random.choice(left)
        self.write(self.first(opened, rank), rank, **self.place())

    def first(self, wanted: _Open, rank: int) -> _Open:
        """The first transfer that a rank must write before it may write this one."""
        for other in self.open:
            is_same = other.group == wanted.group
            if (other.kind == "send") != (wanted.kind == "send"):
                continue
            if wanted.kind == "send":
                is_same = (other.ranks, other.tag) == (wanted.ranks, wanted.tag)
            if is_same and rank in other.ranks and rank not in other.ids:
                return other
        return wanted

    def write(
        self, opened: _Open, rank: int, *, lane: int, stream: int,
        batch: int | None = None,
    ) -> None:  # fmt: skip
        kind, peer = opened.kind_at(rank), opened.peer
        if kind == "recv":
            peer = opened.ranks[0]
        opened.ids[rank] = self.draft.comm(
            rank, kind, opened.group, opened.num_bytes, peer=peer, tag=opened.tag,
            lane=lane, stream=stream, batch=batch, splits=opened.splits.get(rank),
        )  # fmt: skip
        if len(opened.ids) == len(opened.ranks):
            self.open.remove(opened)
            self.done.append(opened)

    def add_wait(self) -> None:
        if not self.done:
            return
        ended = self.random.choice(self.done)
        rank = self.random.choice(ended.ranks)
        self.draft.wait(
            rank, ended.ids[rank], who=self.random.choice(("host", "host", "stream")),
            cause=self.random.choice(("wait", "wait", "future", "storage")),
            **self.place(),
        )  # fmt: skip

    def add_sync(self) -> None:
        """All ranks of a group write it, and wait for it at once."""
        kind = self.random.choice((*COLLECTIVES, "barrier", "barrier", "new_group"))
        wanted = self.begin_collective(kind=kind)
        if kind in ("barrier", "new_group"):
            wanted.num_bytes = 0
        places = {rank: self.place() for rank in wanted.ranks}
        for rank in wanted.ranks:
            while rank not in wanted.ids:
                self.write(self.first(wanted, rank), rank, **places[rank])
        for rank in wanted.ranks:
            self.draft.wait(rank, wanted.ids[rank], **places[rank])

    def add_batch(self) -> None:
        """Messages that go both ways at once, each rank's issued as one batch."""
        made = [self.begin_message() for _ in range(self.random.randint(1, 4))]
        messages = [message for message in made if message is not None]
        self.batches += 1
        ranks = sorted({rank for message in messages for rank in message.ranks})
        for rank in ranks:
            place = self.place()
            for message in messages:
                while rank in message.ranks and rank not in message.ids:
                    first = self.first(message, rank)
                    is_mine = any(first is each for each in messages)
                    batch = self.batches if is_mine else None
                    self.write(first, rank, batch=batch, **place)

    def add_mark(self) -> None:
        rank = self.rank()
        number = self.num_marks[rank]
        self.num_marks[rank] += 1
        self.draft.mark(rank, number, **self.place())
        for _ in range(self.random.randint(0, 2)):
            self.draft.wait(
                rank, self.random.randrange(number + 1), cause="event",
                who=self.random.choice(("host", "stream", "stream")), **self.place(),
            )  # fmt: skip

    def add_read(self) -> None:
        self.draft.read(self.rank(), **self.place())

    def add_span(self) -> None:
        rank, lane = self.rank(), self.place()["lane"]
        spans = self.spans[rank, lane]
        if spans and self.random.random() < 0.5:
            self.draft.close_span(rank, spans.pop())
        else:
            number = self.num_spans[rank]
            self.num_spans[rank] += 1
            spans.append(self.draft.open_span(rank, number, lane=lane))

    def add_rest(self) -> None:
        rank = self.rank()
        self.draft.moment(rank, lane=self.place()["lane"])
        self.draft.storage(rank, self.num_storages[rank])
        self.num_storages[rank] += 1
        if self.random.random() < 0.5:
            storage = self.random.randrange(self.num_storages[rank])
            self.draft.storage(rank, storage, comes=False)


def draw(seed: int, *, num_events: int = 60, has_ties: bool = False) -> Program:
    """The random program of a seed."""
    return Dice(seed, num_events=num_events, has_ties=has_ties).program()


def draw_machine(seed: int) -> AlphaBeta:
    """The random machine of a seed: with and without a GPU, ports, nodes, launches."""
    dice = random.Random(f"machine {seed}")
    return AlphaBeta(
        alpha_s=dice.choice((0.0, 1e-4, 2.3e-4)),
        beta_s_per_byte=dice.choice((1e-9, 3e-9)),
        flops_per_s=1e12,
        bytes_per_s=dice.choice((None, 1e9)),
        launch_s=dice.choice((0.0, 1e-5, 1e-3)),
        comm_launch_s=dice.choice((0.0, 2e-5)),
        is_cpu=dice.random() < 0.4,
        shares_ports=dice.random() < 0.6,
        ranks_per_node=dice.choice((None, 1, 2)),
        nic_bytes_per_s=dice.choice((None, 1e9, 5e8)),
    )


def shuffled(program: Program, seed: int) -> Program:
    """The same program, its ranks given in another order."""
    order = list(range(len(program.events)))
    random.Random(seed).shuffle(order)
    header = program.header
    ranks = tuple(header.ranks[k] for k in order)
    return Program(
        Header(**{**vars(header), "ranks": ranks}),
        dict(reversed(program.groups.items())),
        tuple(program.events[k] for k in order),
        program.traffic,
        program.races,
    )


def step(draft: Draft, ranks: Sequence[int], flops: float) -> None:
    """The same work on several ranks."""
    for rank in ranks:
        draft.work(rank, flops)
