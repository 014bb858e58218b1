"""What a live timeline is told: the same in the end as the timeline that stays."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from labkit.record.events import (
    CommEnd,
    Event,
    Moment,
    NewGroup,
    RaceSeen,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)
from labkit.record.intervals import read
from labkit.record.live import PATIENCE_S, LiveReader
from labkit.record.reduce import of_events
from labkit.record.scene import KIND, KINDS, MAX_NAMES
from labkit.record.slots import Floats
from tests.record.telemetry import SITE, batches, comm, spans, training, waited

Drawn = tuple[int, str, float, float]


def drawn(records: Floats) -> list[Drawn]:
    """Place, kind, start and end of records."""
    return sorted(
        (int(place), KINDS[int(kind)], round(start, 6), round(start + length, 6))
        for _, place, kind, start, length, *_ in records.tolist()
    )


def all_of(every: Sequence[Sequence[Event]], limit: int = 10**6) -> list[Drawn]:
    """What is drawn of a record told at once."""
    reader = LiveReader(range(len(every)))
    for rank, events in enumerate(every):
        reader.feed(rank, events)
        reader.finish(rank)
    return drawn(reader.take(0.0, limit))


def of(kind: str, found: Sequence[Drawn]) -> list[tuple[int, float, float]]:
    return [(place, start, end) for place, name, start, end in found if name == kind]


def test_a_late_rank_makes_the_others_wait() -> None:
    early = [comm(0, "all_reduce", 1.0), *waited(0, 1.0, 4.5)]
    late = [SpanStart("forward", 0, 1.0), SpanEnd(0, 4.0)]
    late += [comm(0, "all_reduce", 4.0), *waited(0, 4.0, 4.5)]
    assert all_of([early, late]) == [
        (0, "collective", 3.0, 3.5), (0, "waiting", 0.0, 3.0),
        (1, "collective", 3.0, 3.5), (1, "forward", 0.0, 3.0),
    ]  # fmt: skip


def test_nothing_is_final_before_the_late_rank_is_heard() -> None:
    reader = LiveReader([0, 1])
    reader.feed(0, [comm(0, "all_reduce", 1.0), *waited(0, 1.0, 4.5)])
    assert not len(reader.take(3.5, 9))
    # By what is known, rank 0 transferred all the time.
    assert ("collective", 0.0, 3.5) in [d[1:] for d in drawn(reader.open())]
    reader.feed(1, [comm(0, "all_reduce", 4.0)])
    assert drawn(reader.take(3.6, 9)) == [
        (0, "collective", 3.0, 3.5), (0, "waiting", 0.0, 3.0)
    ]  # fmt: skip


def test_a_rank_that_stays_silent_is_not_waited_for_for_ever() -> None:
    reader = LiveReader([0, 1])
    reader.feed(0, [comm(0, "send", 1.0, peer=1), *waited(0, 1.0, 1.5)])
    assert not len(reader.take(0.5 + PATIENCE_S, 9))
    assert drawn(reader.take(0.51 + PATIENCE_S, 9)) == [(0, "p2p", 0.0, 0.5)]


def test_a_rank_heard_later_was_not_needed() -> None:
    reader = LiveReader([0, 1])
    reader.feed(0, [comm(0, "send", 1.0, peer=1), *waited(0, 1.0, 1.5)])
    reader.feed(1, [Moment("busy", 0, 2.0)])
    assert (0, "p2p", 0.0, 0.5) in drawn(reader.take(1.0, 9))


def test_only_the_members_of_a_group_are_asked() -> None:
    reader = LiveReader([0, 1, 2], groups={"pair": (0, 1)})
    for rank in (0, 1):
        call = comm(0, "all_reduce", 1.0, group="pair")
        reader.feed(rank, [call, *waited(0, 1.0, 2.0)])
    assert len(reader.take(1.0, 9)) == 2


def test_an_open_wait_is_waiting_until_all_have_come() -> None:
    reader = LiveReader([0, 1])
    reader.feed(0, [comm(0, "all_reduce", 1.0), WaitStart(0, 0, 1.0)])
    reader.feed(1, [Moment("busy", 0, 2.0)])
    waiting, computing = reader.open().tolist()
    assert waiting[1:4] == [0, KIND["waiting"], 0.0]
    assert computing[1:4] == [1, KIND["compute"], 0.0]
    assert math.isnan(waiting[4])
    assert math.isnan(computing[4])
    reader.feed(1, [comm(0, "all_reduce", 3.0), WaitStart(0, 0, 3.0)])
    kinds = [(KINDS[int(r[2])], r[3]) for r in reader.open().tolist() if r[1] == 0]
    assert kinds == [("waiting", 0.0), ("collective", 2.0)]


def test_a_transfer_that_nobody_waits_for_is_open_until_its_end() -> None:
    reader = LiveReader([0])
    reader.feed(0, [comm(0, "all_reduce", 1.0), SpanStart("backward", 0, 1.0)])
    kinds = {KINDS[int(r[2])] for r in reader.open().tolist()}
    assert kinds == {"issued", "backward"}
    reader.feed(0, [CommEnd(0, 1.25), *waited(0, 2.0, 2.001)])
    assert (0, "collective", 0.0, 0.25) in drawn(reader.take(1.0, 9))


def test_a_late_wait_does_not_lengthen_the_transfer() -> None:
    found = all_of([[comm(0, "all_reduce", 1.0), *waited(0, 3.0, 3.01)]])
    assert of("collective", found) == [(0, 2.0, 2.01)]


def test_a_wait_that_raised_is_waiting_and_no_transfer() -> None:
    found = all_of([[comm(0, "all_reduce", 1.0), *waited(0, 1.0, 3.0, ok=False)]])
    assert found == [(0, "waiting", 0.0, 2.0)]


def test_a_receive_from_any_source_is_all_waiting() -> None:
    found = all_of([[comm(0, "recv", 1.0), *waited(0, 1.0, 3.0)]])
    assert found == [(0, "p2p", 2.0, 2.0), (0, "waiting", 0.0, 2.0)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("period_s", [0.003, 0.05, 10.0])
def test_it_draws_what_the_still_timeline_draws(seed: int, period_s: float) -> None:
    every = training(3, 12, seed=seed)
    reader, taken = LiveReader(range(3)), list[Drawn]()
    rng = random.Random(seed)
    for now, heard in batches(every, period_s):
        ranks = list(enumerate(heard))
        rng.shuffle(ranks)
        for rank, events in ranks:
            reader.feed(rank, events)
        reader.open()
        taken += drawn(reader.take(now - 100.0, 10**6))
    for rank in range(3):
        reader.finish(rank)
    taken += drawn(reader.take(1e9, 10**6))
    assert sorted(d for d in taken if d[1] != "step") == still(every)


def still(every: Sequence[Sequence[Event]]) -> list[Drawn]:
    """The stretches of the timeline that stays, without slivers of plain compute."""
    found: list[Drawn] = []
    for row, call, _ in read(of_events(every)).stretches:
        name = row.name if row.kind == "compute" else row.kind
        if call is not None and row.kind == "transfer":
            name = "p2p" if call.is_p2p else "collective"
        if name != "compute" or row.end - row.start > 5e-5:
            found.append((row.rank, name, round(row.start, 6), round(row.end, 6)))
    return sorted(found)


def test_steps_marks_and_races_are_moments() -> None:
    events: list[Event] = [
        SpanStart("step", 0, 1.0), Moment("spoke", 0, 2.0),
        RaceSeen(0, 1, "read", "aten::mul", SITE), SpanEnd(0, 3.0),
        SpanStart("step", 0, 3.0), SpanEnd(0, 4.0),
    ]  # fmt: skip
    reader = LiveReader([5])
    reader.feed(5, events)
    records = reader.take(3.0, 9).tolist()
    points = {(KINDS[int(r[2])], r[3], r[7]) for r in records if r[4] == 0}
    assert points == {
        ("step", 0.0, 0.0), ("step", 2.0, 1.0), ("mark", 1.0, 0.0), ("race", 1.0, 0.0)
    }  # fmt: skip
    names = {KINDS[int(r[2])]: reader.names[int(r[6])] for r in records}
    assert names["mark"] == ("spoke", "")
    told = "aten::mul read a buffer nobody waited for"
    assert names["race"] == (told, "line 7 of train")
    assert reader.num_steps == 2


def test_calls_are_numbered_by_kind_and_name_their_line() -> None:
    reader = LiveReader([0])
    for n in range(3):
        reader.feed(0, [comm(n, "all_reduce", 1.0 + n), *waited(n, 1.0 + n, 1.5 + n)])
    records = reader.take(9.0, 9)
    calls = records[records[:, 2] == KIND["collective"]]
    assert calls[:, 7].tolist() == [1, 2, 3]
    assert calls[:, 5].tolist() == [1024] * 3
    assert {reader.names[int(n)] for n in calls[:, 6]} == {
        ("all_reduce", "line 7 of train")
    }


def test_clocks_of_other_machines_are_set_back() -> None:
    reader = LiveReader([0, 1], offsets_s={1: 1000.0})
    reader.feed(0, [comm(0, "all_reduce", 1.0), *waited(0, 1.0, 2.0)])
    reader.feed(1, [comm(0, "all_reduce", 1001.5), *waited(0, 1001.5, 1002.0)])
    reader.finish(1)
    assert drawn(reader.take(1.0, 9)) == [
        (0, "collective", 0.5, 1.0), (0, "waiting", 0.0, 0.5),
        (1, "collective", 0.5, 1.0), (1, "compute", 0.0, 0.5),
    ]  # fmt: skip


def test_nothing_is_drawn_of_a_rank_that_came_back() -> None:
    reader = LiveReader([0, 1])
    reader.feed(0, [SpanStart("forward", 0, 1.0)])
    assert len(reader.open()) == 2
    reader.finish(0)
    reader.finish(0)
    assert reader.open()[:, 1].tolist() == [1.0]


def test_events_without_times_come_first() -> None:
    reader = LiveReader([0])
    reader.feed(0, [NewGroup("world", (0,))])
    assert reader.zero_s is None
    assert len(reader.take(0.0, 9)) == 0
    reader.feed(0, [SpanStart("forward", 0, 7.0)])
    assert reader.zero_s == 7.0


def test_50_000_spans_are_kept_and_all_told() -> None:
    reader, told = LiveReader(range(8)), 0
    for now, heard in batches(spans(8, 50_000, 8.0, start_s=1.0), 0.1):
        for rank, events in enumerate(heard):
            reader.feed(rank, events)
        told += len(reader.take(now, 1400))
    assert told == reader.total == reader.count == 50_000


def test_wi_09_memory_is_bounded_however_long_the_run() -> None:
    reader = LiveReader([0], capacity=500)
    for n in range(5000):
        at = 1.0 + n * 0.01
        length = 0.009 if n % 100 == 0 else 0.004
        reader.feed(0, [SpanStart(f"part {n}", 0, at), SpanEnd(0, at + length)])
        reader.feed(0, [comm(n, "all_reduce", at + 0.0091, seq=n)])
        reader.take(at, 50)
    assert reader.total >= 5000
    assert reader.count <= 500
    assert len(reader.names) <= MAX_NAMES
    scene, follower = reader._scene, reader._followers[0]
    sizes = [len(scene.issued), len(scene.ending), len(follower._calls)]
    assert max(sizes) <= 1024
    assert len(follower._looks) <= MAX_NAMES
    reader.resend()
    kept = reader.take(0.0, 500)
    lengths = kept[kept[:, 2] == KIND["compute"]][:, 4]
    assert np.count_nonzero(lengths > 0.0085) == 50


def test_ends_without_beginnings_are_ignored() -> None:
    reader = LiveReader([0])
    reader.feed(0, [SpanEnd(0, 1.0), WaitEnd(3, 1.1, True), CommEnd(4, 1.2)])
    reader.feed(0, [WaitStart(9, 0, 1.3), WaitEnd(9, 1.5, True)])
    assert drawn(reader.take(1.0, 9)) == [(0, "compute", 0.0, 0.3)]
