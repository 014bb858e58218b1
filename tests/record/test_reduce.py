"""Telemetry becomes a Program: numbers, ends, arrivals, groups, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from labkit.record import program as kept
from labkit.record.events import (
    Caveat,
    CommEnd,
    CommStart,
    Event,
    Kind,
    NewGroup,
    Operation,
    RaceSeen,
    Site,
    SpanEnd,
    SpanStart,
    StorageGone,
    StorageMade,
    StreamMark,
    StreamWait,
    Touch,
    ValueRead,
    WaitEnd,
    WaitStart,
)
from labkit.record.program import Clock, Header, Program, Traffic, without_times
from labkit.record.reduce import RankLog, of_events, reduce
from labkit.record.soundness import require_sound

E = TypeVar("E")


def comm(
    comm_id: int, kind: Kind, at: float, *, seq: int = 0, peer: int | None = None,
    group: str = "world", batch: int | None = None, lane: int = 0,
) -> CommStart:  # fmt: skip
    return CommStart(
        comm_id, kind, group, seq, peer, 0, seq, ((4,),), "float32", 16, "sum", None,
        None, lane, None, at, batch=batch,
    )  # fmt: skip


def sync(call: CommStart, end_s: float) -> list[Event]:
    at = call.issued_s
    return [call, WaitStart(call.id, call.lane, at), WaitEnd(call.id, end_s, True)]


def of(program: Program, kind: type[E], rank: int = 0) -> list[E]:
    return [event for event in program.of(rank) if isinstance(event, kind)]


def test_a_second_run_on_warm_ranks_is_numbered_like_the_first() -> None:
    def run(since: int, at: float) -> Program:
        return of_events([
            [*sync(comm(since, "all_reduce", at, seq=since), at + 1),
             *sync(comm(since + 1, "send", at + 2, seq=since, peer=1), at + 3)],
            [*sync(comm(since, "all_reduce", at, seq=since), at + 1),
             *sync(comm(since + 1, "recv", at + 2, seq=since, peer=0), at + 3)],
        ])  # fmt: skip

    assert without_times(run(0, 5.0)) == without_times(run(7, 90.0))
    first, second = of(run(7, 90.0), kept.Comm)
    assert (first.id, first.group_seq, second.id, second.pair_seq) == (0, 0, 1, 0)


def test_groups_are_named_by_their_ranks() -> None:
    def rank(number: int) -> list[Event]:
        events: list[Event] = [NewGroup("hash", (0, 1)), NewGroup("other", (0, 1))]
        for index, uid in enumerate(("other", "hash", "5")):
            events += sync(comm(index, "barrier", index, group=uid), index + 0.5)
        return events

    program = reduce([
        RankLog(number, rank(number), {"5": (0, 1, 2, 3)}) for number in range(2)
    ])  # fmt: skip
    assert program.groups == {"0,1": (0, 1), "0,1#2": (0, 1), "0-3": (0, 1, 2, 3)}
    assert [call.group for call in of(program, kept.Comm)] == ["0,1", "0,1#2", "0-3"]


def test_traffic_names_groups_as_the_events_do() -> None:
    row = Traffic(0, "barrier", "hash", None, 1, 0, 0)
    events = [NewGroup("hash", (0,)), *sync(comm(0, "barrier", 0, group="hash"), 1)]
    assert reduce([RankLog(0, events, {}, (row,))]).traffic[0].group == "0"


def test_a_call_that_is_waited_for_at_once_is_no_async_one() -> None:
    later = comm(1, "all_reduce", 2.0, seq=1)
    last = comm(2, "all_reduce", 3.0, seq=2)
    program = of_events([[
        *sync(comm(0, "all_reduce", 0.0), 1.0), later, last,
        WaitStart(1, 0, 4.0), WaitEnd(1, 5.0, True),
        WaitStart(2, 0, 5.0), WaitEnd(2, 6.0, True),
    ]])  # fmt: skip
    assert [c.is_async for c in of(program, kept.Comm)] == [False, True, True]


def test_of_two_that_tell_of_the_end_the_earlier_knows_better() -> None:
    """An early future beats a late wait; a wait beats a future that comes after it."""
    program = of_events([[
        comm(0, "all_reduce", 0.0), CommEnd(0, 1.0),
        WaitStart(0, 0, 9.0), WaitEnd(0, 9.1, True),
        *sync(comm(1, "all_reduce", 10.0, seq=1), 10.5), CommEnd(1, 10.6),
    ]])  # fmt: skip
    first, second = of(program, kept.Comm)
    assert (first.ended_s, first.end_source) == (1.0, "future")
    assert (second.ended_s, second.end_source) == (10.5, "wait")


def test_a_transfer_arrives_with_its_last_rank() -> None:
    program = of_events([
        sync(comm(0, "all_reduce", 0.0), 5.0), sync(comm(0, "all_reduce", 4.0), 5.0)
    ])  # fmt: skip
    assert [of(program, kept.Comm, r)[0].arrived_s for r in range(2)] == [4.0, 4.0]


def test_where_a_rank_never_came_nothing_has_arrived() -> None:
    waits: list[Event] = [comm(0, "all_reduce", 0.0), WaitStart(0, 0, 0.0)]
    program = of_events([waits, [SpanStart("x", 0, 0.0), SpanEnd(0, 3.0)]])
    (call,) = of(program, kept.Comm)
    (wait,) = of(program, kept.Wait)
    assert (call.arrived_s, call.ended_s, call.end_source) == (None, None, None)
    assert (wait.ok, wait.end_s) == (False, None)


def test_a_wait_for_a_transfer_of_an_earlier_run_is_left_out() -> None:
    program = of_events([[WaitStart(3, 0, 0.0), WaitEnd(3, 1.0, True),
                          *sync(comm(4, "barrier", 2.0, seq=9), 3.0)]])  # fmt: skip
    assert len(of(program, kept.Wait)) == 1


def test_a_receive_from_any_source_gets_the_source_that_it_took() -> None:
    program = of_events([
        sync(comm(0, "recv", 0.0), 3.0), sync(comm(0, "send", 1.0, peer=0), 3.0)
    ])  # fmt: skip
    assert of(program, kept.Comm)[0].peer == 1


def test_spans_are_a_tree_and_number_steps() -> None:
    program = of_events([[
        SpanStart("step", 0, 0.0), SpanStart("forward", 0, 1.0, 2, 3), SpanEnd(0, 2.0),
        SpanEnd(0, 3.0), SpanStart("step", 0, 4.0),
    ]])  # fmt: skip
    step, forward, last = of(program, kept.Span)
    assert (step.parent, forward.parent, forward.micro_batch, forward.stage) == (
        None, step.id, 2, 3,
    )  # fmt: skip
    assert (step.step, last.step) == (0, 1)
    assert last.end_s is None, "a span never closed stays open"
    assert program.num_steps == 2
    assert step.seq < forward.seq <= forward.last_seq < step.last_seq


def test_at_level_comm_what_lies_between_is_work() -> None:
    program = of_events([[
        SpanStart("forward", 0, 0.0), *sync(comm(0, "barrier", 1.0), 2.0),
        SpanEnd(0, 3.0),
    ]])  # fmt: skip
    lengths = [
        (work.start_s, work.end_s)
        for work in of(program, kept.Work)
        if work.end_s != work.start_s
    ]
    assert lengths == [(0.0, 1.0), (2.0, 3.0)]


def test_at_level_work_operations_are_the_work() -> None:
    header = Header(world_size=1, ranks=(), level="work")
    events: list[Event] = [
        SpanStart("forward", 0, 1.0),
        Operation("aten.mm", 0, 0, 8.0, 32.0, 1, "float32", None, 1.5, 1.75),
        ValueRead(0, 0, None), SpanEnd(0, 2.0),
    ]  # fmt: skip
    program = reduce([RankLog(0, events)], header)
    (work,) = of(program, kept.Work)
    assert work[4:] == ("aten.mm", 8.0, 32.0, 1, "float32", None, 0, 0.5, 0.75)
    assert len(of(program, kept.HostRead)) == 1


def test_touches_become_waits_and_races_are_kept() -> None:
    site = Site("cell", 3, "train")
    program = of_events([[
        comm(5, "all_reduce", 0.0), comm(6, "all_reduce", 0.1, seq=1),
        Touch(5, 0, 0, "future", site), RaceSeen(6, 2, "read", "aten.add", site),
    ]])  # fmt: skip
    (wait,) = of(program, kept.Wait)
    assert (wait.target, wait.cause, wait.who) == (0, "future", "host")
    assert program.races == (kept.Race(0, 1, 2, "read", "aten.add", site),)


def test_a_race_for_a_transfer_that_was_dropped_is_dropped_with_it() -> None:
    race = RaceSeen(6, 2, "read", "aten.add", Site("cell", 3, "train"))
    program = of_events([[comm(5, "all_reduce", 0.0), race, SpanStart("x", 0, 1.0)]])
    assert program.races == ()
    require_sound(program)


def test_threads_that_wait_for_one_transfer_all_go_on_when_it_has_ended() -> None:
    program = of_events([[
        comm(0, "all_reduce", 0.0), WaitStart(0, 0, 0.1), WaitStart(0, 1, 0.2),
        WaitEnd(0, 1.0, True), WaitEnd(0, 1.0, True),
    ]])  # fmt: skip
    waits = [(w.lane, w.start_s, w.end_s, w.ok) for w in of(program, kept.Wait)]
    assert waits == [(0, 0.1, 1.0, True), (1, 0.2, 1.0, True)]


def test_stream_events_and_memory_keep_their_places() -> None:
    program = of_events([[
        StorageMade(0, 64, "scratch", 0.0), StreamMark(0, 0, 1, 0.1),
        StreamWait(0, 0, 0, "event", 0.2), StorageGone(0, 64, "scratch", 0.3),
    ]])  # fmt: skip
    kinds = [type(e) for e in program.of(0) if not isinstance(e, kept.Work)]
    assert kinds == [kept.Alloc, kept.Mark, kept.Wait, kept.Free]
    assert [event.seq for event in program.of(0)] == list(range(len(program.of(0))))


def test_what_turns_out_to_be_a_gradient_was_one_from_the_beginning() -> None:
    program = of_events([[
        StorageMade(0, 64, "scratch", 0.0), StorageMade(1, 32, "scratch", 0.1),
        StorageGone(0, 64, "scratch", 0.2), StorageMade(0, 64, "gradients", 0.2),
        StorageGone(0, 64, "gradients", 0.3), StorageMade(0, 64, "scratch", 0.3),
        StorageGone(1, 32, "scratch", 0.4), StorageMade(1, 16, "scratch", 0.4),
    ]])  # fmt: skip
    assert [event[2:5] for event in program.of(0) if type(event) is kept.Alloc] == [
        (0, 64, "gradients"), (1, 32, "scratch"), (0, 64, "scratch"),
        (1, 16, "scratch"),
    ]  # fmt: skip
    assert [event[2:5] for event in program.of(0) if type(event) is kept.Free] == [
        (0, 64, "gradients"), (1, 32, "scratch")
    ]  # fmt: skip
    assert [event.seq for event in program.of(0)] == list(range(len(program.of(0))))


def test_batches_are_numbered_from_the_beginning() -> None:
    program = of_events([[comm(0, "send", 0.0, peer=1, batch=8),
                          comm(1, "recv", 0.0, peer=1, batch=8),
                          comm(2, "send", 1.0, peer=1, batch=9)]])  # fmt: skip
    assert [c.batch for c in of(program, kept.Comm)] == [0, 0, 1]


def test_clocks_that_run_apart_are_set_to_one() -> None:
    """Rank 1's clock is 100 s ahead, known to within 2 ms: the record says so."""
    logs = [
        RankLog(0, sync(comm(0, "all_reduce", 10.0), 10.5)),
        RankLog(1, sync(comm(0, "all_reduce", 110.2), 110.5), clock=Clock(100, 0.002)),
    ]
    program = reduce(logs)
    assert of(program, kept.Comm)[0].arrived_s == pytest.approx(0.2)
    assert program.header.clocks == (Clock(), Clock(100, 0.002))


@pytest.mark.parametrize(
    ("device", "streams"), [("cpu", "rank 0: by streams (line 4)"), ("cuda", "")]
)
def test_caveats_are_in_the_header(device: str, streams: str) -> None:
    site = Site("cell", 4, "f")
    events: list[Event] = [
        Caveat("streams", "by streams", site), Caveat("timing", "polls", None)
    ]  # fmt: skip
    header = Header(world_size=1, ranks=(), device=device)  # type: ignore[arg-type]
    found = reduce([RankLog(0, events)], header).header
    assert found.stream_ordered == streams
    assert found.timing_dependent == "rank 0: polls"


@pytest.mark.parametrize("record", [[], [[]], [[], []]])
def test_an_empty_record_is_a_program(record: Sequence[Sequence[Event]]) -> None:
    program = of_events(record)
    assert list(program) == []
    assert program.duration_s == 0
