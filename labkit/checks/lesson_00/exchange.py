"""Exercise 0.2: send to one rank and receive from another, and never get stuck."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage, Where
from labkit.checks.playing import play_all
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.comm import collectives
from labkit.record import recorder as recording

RETURNED = "exchange returned"
STALE, OVERWRITTEN = 99, 88
KEPT_FOR_MORE_ROUNDS = 2


@dataclass(frozen=True)
class Pattern:
    """Who sends to whom: rank r sends `sizes[r]` elements to `to[r]`."""

    name: str
    where: Where
    to: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    seed: int

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.to)

    def frm(self, rank: int) -> int:
        """Whom a rank receives from."""
        return self.to.index(rank)

    def payload(self, rank: int) -> Tensor:
        """What a rank sends: small whole numbers, exact in every dtype."""
        source = torch.Generator().manual_seed(self.seed * 1000 + rank)
        drawn = torch.randint(1, 80, (self.sizes[rank],), generator=source)
        return drawn.to(self.dtype)


def exchange_on_rank(
    group: dist.ProcessGroup, exchange: Answer, pattern: Pattern
) -> Tensor:
    """What each rank runs: exchange, keep what came, overwrite what was sent."""
    rank, recorder = dist.get_rank(group), recording.current()
    frm = pattern.frm(rank)
    send_N = pattern.payload(rank)
    recv_M = torch.full((pattern.sizes[frm],), STALE, dtype=pattern.dtype)
    exchange(send_N, pattern.to[rank], recv_M, frm, group)
    recorder.mark(RETURNED)
    received = recv_M.clone()
    send_N.fill_(OVERWRITTEN)
    return received


def patterns(seed: int) -> Iterator[Pattern]:
    """Pairs, rings, a random permutation, a copy to oneself; sizes equal and not."""
    source = random.Random(seed)

    def pattern(
        name: str, to: Sequence[int], *, where: Where = "threads", most: int = 9
    ) -> Pattern:
        sizes = tuple(source.randint(min(1, most), most) for _ in to)
        dtype = source.choice((torch.float32, torch.bfloat16, torch.int64))
        return Pattern(name, where, tuple(to), sizes, dtype, seed)

    yield pattern("a pair", (1, 0))
    for size in (3, 4, 5):
        yield pattern(f"a ring of {size}", [(r + 1) % size for r in range(size)])
    yield pattern("a ring of 4, backwards", (3, 0, 1, 2))
    yield pattern("two pairs that swap", (1, 0, 3, 2))
    yield pattern("a rank that sends to itself", (0,))
    yield pattern("0 elements", (1, 0), most=0)
    mixed = _mixed_permutation(source, 5)
    yield pattern(f"the permutation {mixed}", mixed)
    yield pattern("a pair and one alone", (1, 0, 2))
    yield pattern("a ring of 3 in a part of the world", (1, 2, 0), where="a part")
    yield pattern(
        "a ring of 4 on processes", (1, 2, 3, 0), where="processes", most=5000
    )


def _mixed_permutation(source: random.Random, size: int) -> list[int]:
    """A permutation whose circles hold an even and an odd rank, or one rank alone.

    Even ranks that send first while odd ranks receive first then always end, if late:
    that way is worth part of the points, by design.
    """
    while True:
        to = source.sample(range(size), size)
        circles = [_circle(to, rank) for rank in range(size)]
        if all(len(c) == 1 or len({r % 2 for r in c}) == 2 for c in circles):
            return to


def _circle(to: Sequence[int], start: int) -> list[int]:
    """The ranks that a message passes when each sends it on, until it is back."""
    circle = [start]
    while to[circle[-1]] != start:
        circle.append(to[circle[-1]])
    return circle


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Play every pattern."""

    def play(pattern: Pattern) -> Played:
        return stage.play(
            pattern.where, pattern.size, exchange_on_rank, answer, pattern
        )

    return play_all(patterns(seed), play, faults_of, seed)


def faults_of(pattern: Pattern, played: Played) -> Iterator[Fault]:
    """Judge one pattern: what arrived, in how many messages, in how many rounds."""
    left_open = _not_waited_for(played.record)
    if played.error is not None and left_open is None:
        yield from messages.failed(pattern.name, played.error, schedule=True)
        return
    values = left_open or _values(pattern, played.results)
    if values is not None:
        yield Fault(Property.VALUES, pattern.name, values)
    traffic = _traffic(pattern, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, pattern.name, traffic)
    if left_open is None:
        yield from _rounds(pattern, played.record)


def _not_waited_for(record: Record) -> str | None:
    """Every transfer has ended when the function returns."""
    found = messages.not_waited_for(record, RETURNED)
    if found is None:
        return None
    rank, comm = found
    if comm.kind == "recv":
        return (
            f"rank {rank} must hold what rank {comm.peer} sent when exchange returns: "
            f"recv_M is stale, its {messages.call(comm)} was not waited for; call "
            ".wait() on it"
        )
    return (
        "the buffer changed before the send had ended: the caller may overwrite send_N "
        f"at once, and rank {rank}'s {messages.call(comm)} was not waited for; call "
        ".wait() on it"
    )


def _values(pattern: Pattern, results: Sequence[object]) -> str | None:
    """Each rank received what its partner had sent, element by element."""
    for rank, got in enumerate(results):
        frm = pattern.frm(rank)
        wrong = verify.differ("recv_M", got, pattern.payload(frm))
        if wrong is not None:
            if f"is {STALE}" in wrong:
                wrong += "; it holds what it held before the call"
            return f"rank {rank} receives from rank {frm}: {wrong}"
    return None


def _traffic(pattern: Pattern, record: Record) -> str | None:
    """One message out and one in; none to oneself; nothing else."""
    collectives = verify.count_collectives(record)
    if collectives:
        kind, count = collectives.most_common(1)[0]
        return (
            f"{plural(count, kind)}; one message out and one in are enough; a "
            "collective needs every rank of the group, send and recv only two"
        )
    for rank, events in enumerate(record):
        kinds = verify.count_kinds(events)
        alone = pattern.to[rank] == rank
        allowed = 0 if alone else 1
        if kinds["send"] > allowed or kinds["recv"] > allowed:
            rule = (
                "a copy to oneself needs no message"
                if alone
                else "one message out and one in"
            )
            return (
                f"{rule}; rank {rank} sent {kinds['send']} and received {kinds['recv']}"
            )
    return None


def _rounds(pattern: Pattern, record: Record) -> Iterator[Fault]:
    """Every message goes at once: one latency."""
    took = verify.rounds(record)
    if took > 1:
        message = (
            f"takes {took} rounds: a full-duplex link needs one; start both transfers, "
            "then wait for both"
        )
        yield Fault(Property.SCHEDULE, pattern.name, message, KEPT_FOR_MORE_ROUNDS)


EXERCISE = Exercise(
    id="0.2",
    title="Exchange without fear",
    signature="exchange(send_N, to, recv_M, frm, group)",
    points={Property.VALUES: 3, Property.TRAFFIC: 2, Property.SCHEDULE: 5},
    hints=(
        "Draw both ranks, each at the first line of your function. What does each need "
        "from the other to get past it?",
        "Start one of the two transfers without waiting for it: `isend` and `irecv` "
        "return at once, with something to wait for.",
        "Start both, then wait for both. Who sends to itself has nothing to wait for: "
        "it copies.",
    ),
    judge=judge,
    reference=collectives.exchange,
)
