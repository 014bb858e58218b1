"""The cases of lesson 01: how many ranks, how long an array, of what dtype.

Arrays hold small whole numbers, so that a sum is exact in every dtype and in every
order, and an oracle can be held to the bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks import messages, playing
from labkit.checks.exercise import Answer, Judged, Played, Stage, Where
from labkit.checks.verdict import Fault, Property
from labkit.comm.collectives import chunks
from labkit.record import recorder as recording
from labkit.record.program import Level

CALLED, RETURNED = "called", "returned"
OVERWRITTEN = 88
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
THREAD_SIZES = (1, 2, 3, 4, 5, 7, 8)
# Long enough that no allocator's rounding hides a chunk.
MEASURED = 4096


_ON: Mapping[Where, str] = {
    "threads": "",
    "processes": ", on processes",
    "a part": ", in a part of the world",
}


@dataclass(frozen=True)
class Case:
    """One world, and what each of its ranks starts with."""

    where: Where
    size: int
    num_elements: int
    dtype: torch.dtype
    seed: int
    root: int | None = None
    level: Level = "comm"

    @property
    def name(self) -> str:
        """`p = 4, N = 13, float32`, as it stands in messages."""
        dtype = str(self.dtype).removeprefix("torch.")
        root = "" if self.root is None else f", root {self.root}"
        return (
            f"p = {self.size}, N = {self.num_elements}, {dtype}{root}{_ON[self.where]}"
        )

    @property
    def item_bytes(self) -> int:
        """Size of an element."""
        return self.dtype.itemsize

    @property
    def longest(self) -> int:
        """Elements of the longest chunk: N / p, rounded up."""
        return -(-self.num_elements // self.size)

    def array(self, rank: int) -> Tensor:
        """What a rank starts with."""
        source = torch.Generator().manual_seed(self.seed * 1000 + rank)
        drawn = torch.randint(-9, 10, (self.num_elements,), generator=source)
        return drawn.to(self.dtype)

    def total(self) -> Tensor:
        """The sum of all ranks' arrays."""
        every = torch.stack([self.array(rank).long() for rank in range(self.size)])
        return every.sum(0).to(self.dtype)

    def chunk(self, rank: int) -> Tensor:
        """A rank's chunk of the sum."""
        return chunks(self.total(), self.size)[rank]


class Came(NamedTuple):
    """What a rank held when the function returned, and what it returned."""

    x_N: Tensor
    returned: Any


def on_rank(
    group: dist.ProcessGroup, answer: Answer, case: Case, x_N: Tensor, *more: Any
) -> Came:
    """Call the answer on a rank's array, keep what came, overwrite the array."""
    recorder = recording.current()
    recorder.mark(CALLED)
    returned = answer(x_N, *more, group)
    recorder.mark(RETURNED)
    came = Came(x_N.clone(), _kept(returned))
    x_N.fill_(OVERWRITTEN)
    return came


def _kept(returned: Any) -> Any:
    """A copy that what happens to the array afterwards cannot reach."""
    return returned.clone() if type(returned) is Tensor else returned


def sums(group: dist.ProcessGroup, answer: Answer, case: Case) -> Came:
    """What each rank runs where every rank has an array and there is no root."""
    return on_rank(group, answer, case, case.array(dist.get_rank(group)))


def grid(
    seed: int, sizes: Sequence[int] = THREAD_SIZES, *, rooted: bool = False
) -> Iterator[Case]:
    """Sizes with every kind of length and dtype, drawn; once on processes; memory."""
    source = random.Random(seed)

    def case(where: Where, size: int, length: int, **more: Any) -> Case:
        dtype = source.choice(DTYPES)
        root = source.randrange(size) if rooted else None
        return Case(where, size, length, dtype, seed, root, **more)

    for size in sizes:
        lengths = (size, size + 1, 3 * size + 1, 257)
        yield case("threads", size, source.choice(lengths))
    few = sizes[-2]
    yield case("threads", few, source.choice((few - 1, 1)))
    yield case("threads", 4, 0)
    yield case("a part", 3, 10)
    yield case("processes", 4, 5003)


def measured(seed: int) -> Case:
    """The case in which memory is counted: on processes, chunks of 4 KiB."""
    return Case("processes", 4, MEASURED, torch.float32, seed, level="work")


Body = Callable[[dist.ProcessGroup, Answer, Case], Came]
Judge = Callable[[Case, Played], Iterator[Fault]]


def play_all(
    answer: Answer,
    stage: Stage,
    cases: Iterator[Case],
    body: Body,
    judge: Judge,
    seed: int,
) -> Judged:
    """Play every case on the stage (`labkit.checks.playing`)."""

    def play(case: Case) -> Played:
        return stage.play(case.where, case.size, body, answer, case, level=case.level)

    return playing.play_all(cases, play, judge, seed)


def unless_failed(
    case: Case, played: Played, judge: Judge, *, schedule: bool = False
) -> Iterator[Fault]:
    """Judge a run that ended; tell why it did not, or what it left open."""
    open_ = messages.left_open(played.record, RETURNED)
    if open_ is not None:
        yield Fault(Property.VALUES, case.name, open_)
    elif played.error is not None:
        yield from messages.failed(case.name, played.error, schedule=schedule)
    else:
        yield from judge(case, played)
