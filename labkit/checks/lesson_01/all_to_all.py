"""Exercise 1.6: something from every rank for every rank, with no link idle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage, Where
from labkit.checks.lesson_01.case import (
    CALLED,
    DTYPES,
    OVERWRITTEN,
    RETURNED,
    THREAD_SIZES,
)
from labkit.checks.playing import play_all
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.comm import collectives
from labkit.record import recorder as recording
from labkit.record.events import CommStart


@dataclass(frozen=True)
class Table:
    """Who has how many elements for whom: `counts[frm][to]`."""

    name: str
    where: Where
    counts: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    seed: int
    is_even: bool = False

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return len(self.counts)

    def piece(self, frm: int, to: int) -> Tensor:
        """What one rank has for another."""
        number = (self.seed * 100 + frm) * 100 + to
        source = torch.Generator().manual_seed(number)
        drawn = torch.randint(1, 80, (self.counts[frm][to],), generator=source)
        return drawn.to(self.dtype)


def exchange_on_rank(group: dist.ProcessGroup, all_to_all: Answer, table: Table) -> Any:
    """What each rank runs: keep what came, overwrite what was sent."""
    rank, recorder = dist.get_rank(group), recording.current()
    send = [table.piece(rank, to) for to in range(table.size)]
    recv_sizes = [table.counts[frm][rank] for frm in range(table.size)]
    recorder.mark(CALLED)
    came = all_to_all(send, recv_sizes, group)
    recorder.mark(RETURNED)
    kept = [_copy(piece) for piece in came] if isinstance(came, list | tuple) else came
    for piece in send:
        piece.fill_(OVERWRITTEN)
    return kept


def _copy(piece: Any) -> Any:
    return piece.clone() if type(piece) is Tensor else piece


def tables(seed: int) -> Iterator[Table]:
    """Equal and unequal sizes, none, all for one rank; once on processes."""
    source = random.Random(seed)

    def table(name: str, counts: Sequence[Sequence[int]], **more: Any) -> Table:
        where = more.pop("where", "threads")
        rows = tuple(map(tuple, counts))
        return Table(name, where, rows, source.choice(DTYPES), seed, **more)

    def drawn(size: int, most: int) -> list[list[int]]:
        return [[source.randint(0, most) for _ in range(size)] for _ in range(size)]

    for size in THREAD_SIZES:
        even = source.randint(1, 9)
        counts = [[even] * size] * size
        yield table(f"p = {size}, {even} elements each", counts, is_even=True)
    yield table("p = 3, unequal sizes", drawn(3, 9))
    yield table("p = 5, unequal sizes", drawn(5, 9))
    yield table("p = 4, all for rank 2", [[0, 0, 7, 0]] * 4)
    yield table("p = 4, nothing", [[0] * 4] * 4)
    yield table("p = 3, in a part of the world", drawn(3, 9), where="a part")
    yield table("p = 4, on processes", drawn(4, 2000), where="processes")


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Play every table."""

    def play(table: Table) -> Played:
        return stage.play(table.where, table.size, exchange_on_rank, answer, table)

    return play_all(tables(seed), play, faults_of, seed)


def faults_of(table: Table, played: Played) -> Iterator[Fault]:
    """Every piece in its slot, each sent once, and no rank a hot spot."""
    open_ = messages.left_open(played.record, RETURNED)
    if open_ is not None:
        yield Fault(Property.VALUES, table.name, open_)
        return
    if played.error is not None:
        yield from messages.failed(table.name, played.error, schedule=True)
        return
    for rank, came in enumerate(played.results):
        wrong = _values(table, rank, came)
        if wrong is not None:
            yield Fault(Property.VALUES, table.name, wrong)
            break
    traffic = messages.collectives(played.record) or _traffic(table, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, table.name, traffic)
    spot = _hot_spot(table, played.record) if table.is_even else None
    if spot is not None:
        yield Fault(Property.SCHEDULE, table.name, spot)


def _values(table: Table, rank: int, came: Any) -> str | None:
    if type(came) is not list or len(came) != table.size:
        what = f"{len(came)} of them" if type(came) is list else type(came).__name__
        return (
            f"rank {rank} must return a list of {table.size} tensors, one from each "
            f"rank; got {what}"
        )
    for frm, piece in enumerate(came):
        wrong = verify.differ(f"slot {frm}", piece, table.piece(frm, rank))
        if wrong is None:
            continue
        for other in range(table.size):
            taken = table.piece(other, rank)
            if taken.numel() and verify.differ("", piece, taken) is None:
                return (
                    f"rank {rank} has the piece of rank {other} in slot {frm}: the "
                    "list is in the order of ranks, not of arrival"
                )
        return f"rank {rank}: {wrong}"
    return None


def _traffic(table: Table, record: Record) -> str | None:
    for rank, left in enumerate(messages.sent(record)):
        if left.messages > table.size - 1:
            return (
                f"rank {rank} sent {plural(left.messages, 'message')}; "
                f"{table.size - 1} are enough: one to each other rank"
            )
        others = sum(n for to, n in enumerate(table.counts[rank]) if to != rank)
        needed = others * table.dtype.itemsize
        if left.payload_bytes > needed:
            return (
                f"rank {rank} sent {left.payload_bytes} bytes; {needed} are needed: "
                "send each piece at its own size, and your own not at all"
            )
    return None


def _hot_spot(table: Table, record: Record) -> str | None:
    """In round k, every rank's k-th message, no rank receives more than one."""
    peers = [
        [e.peer for e in events if isinstance(e, CommStart) and e.kind == "send"]
        for events in record
    ]
    for number in range(max(map(len, peers), default=0)):
        targets = Counter(each[number] for each in peers if number < len(each))
        rank, count = targets.most_common(1)[0]
        if count > 1:
            return (
                f"in round {number + 1}, rank {rank} received {count} messages; one is "
                "enough, while other links are idle: let rank r begin with rank r + 1"
            )
    return None


EXERCISE = Exercise(
    id="1.6",
    title="All-to-all in rotating pairs",
    signature="all_to_all(send, recv_sizes, group)",
    points={Property.VALUES: 4, Property.TRAFFIC: 3, Property.SCHEDULE: 3},
    hints=(
        "If every rank sends to rank 0 first, then to rank 1, and so on: who waits in "
        "the first round, and which links carry nothing?",
        "Let each rank begin somewhere else: in round s, send to rank r + s, modulo p.",
        "And in the same round receive from rank r - s, into a tensor of "
        "recv_sizes[r - s] elements; in round 0 that is yourself: copy.",
    ),
    judge=judge,
    reference=collectives.all_to_all,
)
