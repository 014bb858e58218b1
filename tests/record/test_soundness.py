"""What a Program may not hold: each is told with the rank and the event."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.measure import measure
from labkit.record.program import Clock, Program, Race
from labkit.record.soundness import SAME_S, require_sound
from tests.record import made


def one(build: Callable[[made.Rank], Any], **header: Any) -> Program:
    """A Program of one rank, with what `build` does to it."""
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    build(rank)
    return made.program(rank, **header)


def in_span(rank: made.Rank, start: float | None, end: float | None) -> None:
    with rank.span("forward", start, end):
        pass


BAD: dict[str, tuple[Program, str]] = {
    "NaN": (one(lambda r: r.work(math.nan, 1.0)), "start_s=nan in Work number 1"),
    "infinite": (one(lambda r: r.moment("m", math.inf)), "at_s=inf"),
    "negative": (one(lambda r: r.work(2.0, 1.0)), "end_s=1.0 comes 1 s too early"),
    "comm": (one(lambda r: r.comm("all_reduce", 1, 2, 3)), "ended_s=2 comes 1 s"),
    "wait": (
        one(lambda r: r.wait(r.comm("send", 1, 2, peer=0), 3, 2)), "Wait number 2"
    ),
    "span": (one(lambda r: in_span(r, 2, 1)), 'Span number 1 ("forward")'),
    "target": (one(lambda r: r.wait(7, 1, 2)), "transfer 7 is not: Wait number 1"),
    "group": (one(lambda r: r.comm("send", 1, 2, group="g", peer=0)), "group 'g'"),
    "clock": (one(lambda r: None, clocks=(Clock(0.0, -1.0),)), "not below 0"),
    "offset": (one(lambda r: None, clocks=(Clock(math.nan, 0.0),)), "rank 0 has"),
    "hosts": (one(lambda r: None, hosts=("a", "b")), "its 1 ranks, or none"),
    "world": (one(lambda r: None, world_size=0), "world_size 0 and ranks (0,)"),
    "ranks": (one(lambda r: None, ranks=(0, 0)), "are different"),
    "lists": (
        one(lambda r: None, world_size=2, ranks=(0, 1)), "2 ranks and there are 1"
    ),
    "race": (
        one(lambda r: None, races=(Race(0, 3, 7, "read", "add", None),)), "transfer 3"
    ),
    "other rank": (one(lambda r: None, world_size=2, ranks=(1,)), "one is of rank 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_by_check_and_by_measure(case: str) -> None:
    program, words = BAD[case]
    for refused in (require_sound, measure):
        with pytest.raises(UsageError) as caught:
            refused(program)
        assert words in str(caught.value)


def test_a_span_that_is_not_there_is_refused() -> None:
    (rank,) = made.ranks(1)
    with rank.span("step", 0.0, 1.0):
        rank.work(0.0, 1.0)
    del rank.events[0]
    with pytest.raises(UsageError, match="span 0 is not"):
        require_sound(made.program(rank))


def test_events_out_of_order_are_refused() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    rank.work(1.0, 2.0)
    rank.events.reverse()
    with pytest.raises(UsageError, match="seq 0 follows 1"):
        require_sound(made.program(rank))


def test_rounding_is_no_fault_and_times_may_be_missing() -> None:
    require_sound(one(lambda r: r.work(1.0, 1.0 - SAME_S / 2)))
    require_sound(one(lambda r: r.work(None, None)))
    require_sound(one(lambda r: r.comm("all_reduce", 1.0, 2.0, None)))
    require_sound(made.training())
    require_sound(made.program())
