"""Events become stretches: compute, waiting, transfer, on made-up records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from labkit.record import intervals
from labkit.record.events import (
    CommEnd,
    CommStart,
    Event,
    Kind,
    Moment,
    NewGroup,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)
from labkit.record.intervals import Intervals, Row
from labkit.record.recorder import Recorder
from labkit.record.reduce import of_events
from tests.record import made


def read(
    record: Sequence[Sequence[Event]], ranks: Sequence[int] | None = None
) -> Intervals:
    """What a timeline shows of bare telemetry."""
    return intervals.read(of_events(record, ranks=ranks))


def rows(record: Sequence[Sequence[Event]]) -> list[Row]:
    """The stretches of bare telemetry."""
    return intervals.rows(of_events(record))


def comm(
    comm_id: int,
    kind: Kind,
    issued_s: float,
    *,
    seq: int = 0,
    peer: int | None = None,
    tag: int = 0,
    group: str = "world",
) -> CommStart:
    """A call of one tensor of four floats."""
    return CommStart(
        comm_id, kind, group, seq, peer, tag, seq, ((4,),), "float32", 16,
        "sum", None, None, 0, None, issued_s,
    )  # fmt: skip


def sync(
    call: CommStart, end_s: float, *, ok: bool = True, lane: int = 0
) -> list[Event]:
    """A call that its caller waits for at once."""
    at = call.issued_s
    return [call, WaitStart(call.id, lane, at), WaitEnd(call.id, end_s, ok)]


def of_kind(found: list[Row], kind: str, rank: int) -> list[tuple[float, float]]:
    """The stretches of one kind on one rank."""
    return [
        (row.start, row.end) for row in found if (row.kind, row.rank) == (kind, rank)
    ]


def test_rt47_waiting_for_the_late_rank_is_not_transfer() -> None:
    """RT-47: rank 1 comes 200 ms late; the others wait for it, and transfer 4 ms."""
    record = [
        [SpanStart("work", 0, 10.0), *sync(comm(0, "all_reduce", 10.0), 10.204)],
        [SpanStart("work", 0, 10.0), *sync(comm(0, "all_reduce", 10.2), 10.204)],
        [SpanStart("work", 0, 10.0), *sync(comm(0, "all_reduce", 10.001), 10.205)],
    ]
    found = rows(record)
    assert of_kind(found, "waiting", 0) == [pytest.approx((0.0, 0.2))]
    assert of_kind(found, "waiting", 1) == []
    assert of_kind(found, "waiting", 2) == [pytest.approx((0.001, 0.2))]
    for rank in range(3):
        (start, end), *more = of_kind(found, "transfer", rank)
        assert not more
        assert end - start < 0.0051
    assert of_kind(found, "compute", 1) == [pytest.approx((0.0, 0.2))]


def test_names_count_the_calls_of_a_kind_from_one() -> None:
    record: list[list[Event]] = [
        [
            *sync(comm(0, "all_reduce", 1.0, seq=7), 1.1),
            *sync(comm(1, "broadcast", 1.2, seq=8, peer=0), 1.3),
            *sync(comm(2, "all_reduce", 1.4, seq=9), 1.5),
        ]
    ]
    names = [row.name for row in rows(record) if row.kind == "transfer"]
    assert names == ["all_reduce#1", "broadcast#1", "all_reduce#2"]


def test_steps_are_numbered_by_their_spans() -> None:
    events: list[Event] = [Moment("start", 0, 0.0)]
    for n in range(3):
        events += [
            SpanStart("step", 0, n + 0.1),
            *sync(comm(n, "all_reduce", n + 0.5, seq=n), n + 0.6),
            SpanEnd(0, n + 0.9),
        ]
    found = rows([events])
    assert [row.step for row in found if row.kind == "transfer"] == [0, 1, 2]
    compute = [row for row in found if row.kind == "compute"]
    assert [row.step for row in compute if row.start > 1] == [1, 1, 2, 2]
    assert read([events]).steps == pytest.approx((0.1, 1.1, 2.1))


def test_a_record_without_steps_is_step_0() -> None:
    assert {row.step for row in rows([sync(comm(0, "barrier", 5.0), 6.0)])} == {0}


def test_compute_is_named_by_its_innermost_span() -> None:
    events: list[Event] = [
        SpanStart("step", 0, 0.0),
        SpanStart("forward", 0, 1.0),
        SpanStart("attention", 0, 2.0),
        SpanEnd(0, 3.0),
        SpanEnd(0, 4.0),
        SpanEnd(0, 5.0),
    ]
    assert [(row.name, row.start, row.end) for row in rows([events])] == [
        ("compute", 0, 1), ("forward", 1, 2), ("attention", 2, 3),
        ("forward", 3, 4), ("compute", 4, 5),
    ]  # fmt: skip


def test_spans_of_another_thread_do_not_rename_compute() -> None:
    events: list[Event] = [
        Moment("a", 0, 0.0), SpanStart("loader", 1, 1.0), SpanEnd(1, 2.0),
        Moment("b", 0, 3.0),
    ]  # fmt: skip
    assert rows([events]) == [Row(0, 0, "compute", "compute", 0.0, 3.0)]


def test_a_receive_waits_for_its_send_and_an_arrow_joins_them() -> None:
    record = [
        [Moment("m", 0, 0.0), *sync(comm(0, "send", 2.0, peer=1, tag=3), 2.1)],
        sync(comm(0, "recv", 0.5, peer=0, tag=3), 2.2),
    ]
    found = read(record)
    waiting = [s.row for s in found.stretches if s.row.kind == "waiting"]
    assert [(row.rank, row.start, row.end) for row in waiting] == [(1, 0.5, 2.0)]
    (arrow,) = found.messages
    assert (arrow.source, arrow.destination) == (0, 1)
    assert (arrow.sent, arrow.received) == pytest.approx((2.0, 2.2))


def test_a_buffered_send_does_not_wait_for_a_later_receive() -> None:
    record = [
        sync(comm(0, "send", 0.0, peer=1), 0.1),
        [Moment("m", 0, 0.0), *sync(comm(0, "recv", 5.0, peer=0), 5.1)],
    ]
    found = rows(record)
    assert of_kind(found, "waiting", 0) == []
    assert of_kind(found, "transfer", 0) == [(0.0, 0.1)]


def test_messages_keep_tags_and_order_apart() -> None:
    record = [
        [
            *sync(comm(0, "send", 0.0, peer=1, tag=1, seq=0), 0.1),
            *sync(comm(1, "send", 1.0, peer=1, tag=2, seq=0), 1.1),
            *sync(comm(2, "send", 2.0, peer=1, tag=1, seq=1), 2.1),
        ],
        [
            *sync(comm(0, "recv", 3.0, peer=0, tag=2, seq=0), 3.1),
            *sync(comm(1, "recv", 4.0, peer=0, tag=1, seq=0), 4.1),
            *sync(comm(2, "recv", 5.0, peer=0, tag=1, seq=1), 5.1),
        ],
    ]
    joined = {(m.sent, m.received) for m in read(record).messages}
    assert joined == {(0.0, 4.1), (1.0, 3.1), (2.0, 5.1)}


def test_receives_from_any_source_take_the_sends_in_order() -> None:
    record = [
        [Moment("m", 0, 0.0), *sync(comm(0, "recv", 0.0), 1.2),
         *sync(comm(1, "recv", 1.3, seq=1), 2.2)],
        sync(comm(0, "send", 2.0, peer=0), 2.1),
        sync(comm(0, "send", 1.0, peer=0), 1.1),
    ]  # fmt: skip
    arrows = [(m.source, m.sent, m.received) for m in read(record).messages]
    assert sorted(arrows) == [(1, 2.0, 2.2), (2, 1.0, 1.2)]


def test_an_overlapped_transfer_ends_when_it_is_known_to_have_ended() -> None:
    record: list[list[Event]] = [
        [comm(0, "all_reduce", 0.0), CommEnd(0, 0.3), WaitStart(0, 0, 1.0),
         WaitEnd(0, 1.0, ok=True)],
        [Moment("m", 0, 0.0), comm(0, "all_reduce", 0.1), CommEnd(0, 0.3),
         WaitStart(0, 0, 1.0), WaitEnd(0, 1.0, ok=True)],
    ]  # fmt: skip
    found = rows(record)
    assert of_kind(found, "transfer", 0) == [(0.1, 0.3)]
    assert of_kind(found, "waiting", 0) == []
    assert of_kind(found, "compute", 0) == [(0.0, 1.0)]


def test_a_late_wait_alone_does_not_make_the_transfer_long() -> None:
    """Trap "end is not wait": only what was seen inside the wait counts."""
    record: list[list[Event]] = [
        [comm(0, "all_reduce", 0.0), WaitStart(0, 0, 1.0), WaitEnd(0, 1.02, ok=True)],
    ]
    assert of_kind(rows(record), "transfer", 0) == [(1.0, 1.02)]


def test_a_wait_for_a_mark_is_none_for_the_transfer_with_its_number() -> None:
    rank = made.Rank(0)
    number = rank.comm("all_reduce", 0.0, 2.0, 0.0, end_source="wait")
    mark = rank.mark(stream=1)
    assert mark == number
    rank.wait(mark, 0.5, 0.75, cause="event", who="stream")
    rank.wait(number, 1.5, 2.0)
    found = intervals.rows(made.program(rank))
    assert of_kind(found, "transfer", 0) == [(1.5, 2.0)]


def test_a_wait_for_a_mark_does_not_hide_a_call_without_end() -> None:
    rank = made.Rank(0)
    rank.comm("all_reduce", 0.0, None)
    rank.wait(rank.mark(stream=1), 0.5, 0.75, cause="event", who="stream")
    (call,) = intervals.read(made.program(rank)).unended
    assert (call.name, call.at) == ("all_reduce#1", 0.0)


def test_a_wait_that_never_ended_is_all_waiting() -> None:
    record: list[list[Event]] = [
        [comm(0, "all_reduce", 0.0), WaitStart(0, 0, 0.0)],
        [Moment("gone", 0, 3.0)],
    ]
    found = rows(record)
    assert of_kind(found, "waiting", 0) == [(0.0, 3.0)]
    assert of_kind(found, "transfer", 0) == []


def test_a_wait_that_raised_is_all_waiting() -> None:
    record = [
        sync(comm(0, "all_reduce", 0.0), 2.0, ok=False),
        sync(comm(0, "all_reduce", 1.0), 2.0, ok=False),
    ]
    found = rows(record)
    assert of_kind(found, "waiting", 0) == [(0.0, 2.0)]
    assert of_kind(found, "transfer", 0) == []


def test_calls_that_differ_do_not_match() -> None:
    """An all_reduce is not served by a broadcast that happens to be the same call."""
    record = [
        sync(comm(0, "all_reduce", 0.0), 1.0),
        sync(comm(0, "broadcast", 0.5, peer=0), 1.0),
    ]
    assert of_kind(rows(record), "waiting", 0) == []


def test_calls_whose_end_nobody_saw_are_kept_as_moments() -> None:
    record: list[list[Event]] = [[Moment("m", 0, 1.0), comm(0, "all_reduce", 2.0)]]
    (moment,) = read(record).unended
    assert (moment.rank, moment.name, moment.at) == (0, "all_reduce#1", 1.0)


def test_other_ranks_keep_their_numbers() -> None:
    record = [
        sync(comm(0, "send", 0.0, peer=2), 0.1),
        sync(comm(0, "recv", 0.0, peer=0), 0.2),
    ]
    found = read(record, ranks=[0, 2])
    assert [(m.source, m.destination) for m in found.messages] == [(0, 2)]
    assert {s.row.rank for s in found.stretches} == {0, 2}


def test_an_empty_record_and_a_group_alone_have_no_rows() -> None:
    assert rows([]) == []
    assert rows([[], [NewGroup("world", (0, 1))]]) == []


def test_what_a_recorder_writes_can_be_read() -> None:
    recorder = Recorder()
    with recorder.span("step"):
        call = recorder.comm("all_reduce", "world", shapes=((4,),), payload_bytes=16)
        with recorder.waiting(call.id):
            pass
    kinds = {row.kind for row in rows([recorder.drain()])}
    assert kinds == {"compute", "transfer"}


def random_record(seed: int) -> list[list[Event]]:
    """Ranks that compute for random times between all_reduces, in lock step."""
    rng = random.Random(seed)
    world_size = rng.randint(1, 5)
    clocks = [rng.uniform(100, 100.1) for _ in range(world_size)]
    record: list[list[Event]] = [[Moment("go", 0, at)] for at in clocks]
    for n in range(rng.randint(1, 12)):
        arrived = [at + rng.uniform(0, 1) for at in clocks]
        ended = max(arrived) + rng.uniform(0, 0.1)
        for rank in range(world_size):
            clocks[rank] = ended + rng.uniform(0, 0.01)
            record[rank] += sync(
                comm(n, "all_reduce", arrived[rank], seq=n), clocks[rank]
            )
    return record


@pytest.mark.parametrize("seed", range(30))
def test_each_rank_is_covered_once_and_without_gaps(seed: int) -> None:
    """Compute, waiting and transfer of a rank with blocking calls tile its time."""
    record = random_record(seed)
    found = rows(record)
    for rank in range(len(record)):
        own = sorted((row.start, row.end) for row in found if row.rank == rank)
        assert own[0][0] == 0.0
        for (_, end), (start, _) in pairwise(own):
            assert start == pytest.approx(end, abs=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_at_every_call_somebody_comes_last_and_does_not_wait(seed: int) -> None:
    record = random_record(seed)
    waited: dict[str, set[int]] = {}
    for row in rows(record):
        if row.kind == "waiting":
            waited.setdefault(row.name, set()).add(row.rank)
    assert all(len(ranks) == len(record) - 1 for ranks in waited.values())
