"""Programs that cannot be replayed: refused in three parts, never hung, never wrong."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, isfinite, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.program import Event, Header, Program
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta, Demand
from tests.replay.programs import Draft, draw, draw_machine

WRONG = (None, -1, -2.5, nan, inf, -inf, 0, 7, 10**9, 10**400, (), (1,), (-1,), True)
PLAIN = AlphaBeta()


def spoiled(program: Program, dice: random.Random) -> Program:
    """One field of one event is wrong; or an event is missing, there twice, early."""
    events = [list(each) for each in program.events]
    own = dice.choice([each for each in events if each])
    at, other = dice.randrange(len(own)), dice.randrange(len(own))
    match dice.choice(("field", "field", "field", "missing", "twice", "early")):
        case "field":
            name = dice.choice([n for n in own[at]._fields if n != "site"])
            own[at] = own[at]._replace(**{name: dice.choice(WRONG)})
        case "missing":
            del own[at]
        case "twice":
            own.insert(other, own[at])
        case _:
            own[at], own[other] = own[other], own[at]
    return replace(program, events=tuple(map(tuple, events)))


def times(event: Event) -> list[Any]:
    names = [n for n in event._fields if n.endswith("_s") and n != "fixed_s"]
    found = [getattr(event, name) for name in names]
    return [at for at in found if at is not None]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "since",
    [0, 250, 500, 750,
     *(pytest.param(s, marks=pytest.mark.grid) for s in range(1000, 10000, 250))],
)  # fmt: skip
def test_a_spoiled_program_is_refused_or_gets_finite_times(since: int) -> None:
    num_refused = 0
    for seed in range(since, since + 250):
        program = spoiled(draw(seed, num_events=30), random.Random(seed))
        try:
            replayed = replay(program, draw_machine(seed))
        except UsageError:
            num_refused += 1
            continue
        for event in replayed:
            assert all(isfinite(at) and at >= 0 for at in times(event)), (seed, event)
    assert 40 < num_refused < 160


def refused(program: Program, words: str, machine: Any = PLAIN) -> None:
    with pytest.raises(UsageError, match=words):
        replay(program, machine)


def header(**fields: Any) -> Header:
    plain: dict[str, Any] = {"world_size": 1, "ranks": (0,), "level": "work"}
    return Header(**{**plain, **fields})


def test_no_ranks() -> None:
    program = Program(header(world_size=0, ranks=()), {}, ())
    refused(program, "at least one rank; the header has 0 ranks")


def test_a_rank_without_its_events() -> None:
    refused(Program(header(ranks=(0, 1)), {}, ((),)), "2 ranks, .* events of 1")


def test_a_rank_that_is_there_twice() -> None:
    refused(Program(header(ranks=(0, 0)), {}, ((), ())), r"once.*\(0, 0\)")


@pytest.mark.parametrize("value", [nan, None, 0.0, "first"])
@pytest.mark.parametrize("name", ["lane", "stream", "seq"])
def test_a_place_that_is_no_whole_number(name: str, value: Any) -> None:
    """A stream that is NaN once kept the engine busy for ever."""
    draft = Draft(1)
    draft.work(0, 1.0)
    draft.mark(0, 0)
    for index in range(2):
        events: list[Any] = list(draft.events[0])
        events[index] = events[index]._replace(**{name: value})
        program = replace(draft.program(), events=(tuple(events),))
        refused(program, f"rank 0 has a .* with {name} = ")


def test_an_event_of_another_rank() -> None:
    draft = Draft(2)
    draft.work(0, 1.0)
    program = draft.program()
    refused(replace(program, events=program.events[::-1]), "rank 1 has .* rank = 0")


@pytest.mark.parametrize("name", ["flops", "moved_bytes", "kernels", "fixed_s"])
@pytest.mark.parametrize("value", [nan, inf, -1.0, None, "many", True, 10**400])
def test_costs_that_are_no_amounts(name: str, value: Any) -> None:
    if name == "fixed_s" and value is None:
        return  # It says that the time is not fixed.
    draft = Draft(1)
    draft.work(0, 1.0)
    work: Any = draft.events[0][0]
    spoilt = replace(draft.program(), events=((work._replace(**{name: value}),),))
    refused(spoilt, f"rank 0 has {name} = ")


@pytest.mark.parametrize("value", [nan, inf, -1, None, "much"])
def test_bytes_that_are_no_amount(value: Any) -> None:
    draft = Draft(2)
    draft.sync("all_reduce", num_bytes=value)
    refused(draft.program(), "rank 0 has .* for all_reduce 0 on group 'world'")


@pytest.mark.parametrize("value", [nan, inf, -1.0, None, "long"])
@pytest.mark.parametrize("what", ["work_s", "demand", "capacity_bytes_per_s"])
def test_a_machine_that_answers_no_amount(what: str, value: Any) -> None:
    class Broken(AlphaBeta):
        def work_s(self, work: Any) -> float:
            return value if what == "work_s" else 1.0

        def demand(self, comm: Any, ranks: tuple[int, ...]) -> Demand:
            moving_s = value if what == "demand" else 1.0
            return Demand(0.0, moving_s, ((("out", 0), 1.0),))

        def capacity_bytes_per_s(self, link: Any) -> float:
            return value if what == "capacity_bytes_per_s" else 1.0

    draft = Draft(2)
    draft.work(0, 1.0)
    draft.sync("all_reduce", num_bytes=8)
    refused(draft.program(), "machine answers must be finite", Broken())


def test_a_wait_for_nothing_that_is_there() -> None:
    draft = Draft(1)
    draft.wait(0, 3)
    refused(draft.program(), r"rank 0 waits for transfer 3 \(event 0\)")


def test_a_collective_that_one_rank_lacks() -> None:
    draft = Draft(3)
    for rank in (0, 2):
        draft.comm(rank, "all_reduce", num_bytes=8)
    refused(draft.program(), "rank 0 issued all_reduce 0 .* partner on rank 1: 2 parts")


def test_ranks_that_call_different_collectives() -> None:
    draft = Draft(2)
    draft.comm(0, "all_reduce", num_bytes=8)
    draft.comm(1, "broadcast", num_bytes=8, peer=0)
    refused(draft.program(), "rank 0 issued all_reduce 0.*rank 1 broadcast 0")


def test_a_group_that_nobody_knows() -> None:
    draft = Draft(1)
    draft.comm(0, "all_reduce", "tensor", 8)
    refused(draft.program(), r"all_reduce 0 on group 'tensor'.*only \['world'\]")


def test_a_receive_from_anybody_that_took_nothing() -> None:
    draft = Draft(1)
    draft.comm(0, "recv", num_bytes=8)
    refused(draft.program(), "rank 0's receive from any source took nothing")


def test_a_stream_that_waits_for_its_own_later_mark() -> None:
    """The lane goes on, so that once only the stream was left behind, without times."""
    draft = Draft(1)
    draft.wait(0, 0, who="stream", cause="event")
    draft.mark(0, 0)
    refused(draft.program(), "circle.*rank 0 waits for mark 0")


def test_a_part_of_the_ranks_is_not_enough() -> None:
    draft = Draft(2)
    draft.sync("all_reduce", num_bytes=8)
    program = draft.program()
    part = replace(
        program, header=replace(program.header, ranks=(0,)), events=program.events[:1]
    )
    refused(part, "rank 1 is not among the 1 ranks of this record")


@pytest.mark.parametrize("machine", [None, 3, b"dgx-h100", ["dgx-h100"], AlphaBeta])
def test_what_is_no_machine(machine: Any) -> None:
    with pytest.raises(UsageError, match=r"the times of a machine; got .*Name one"):
        replay(draw(0), machine)


@pytest.mark.parametrize("compute", ["fast", "", None, 3])
def test_compute_that_is_timed_in_no_known_way(compute: Any) -> None:
    with pytest.raises(UsageError, match=r'"by cost" or "as measured"; got'):
        replay(draw(0), PLAIN, compute=compute)
