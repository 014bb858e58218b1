"""What a rank tells of itself: spans, moments, fixed work, what found no room."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from labkit.errors import UsageError
from labkit.record import recorder as recording
from labkit.record.events import (
    Caveat,
    CommEnd,
    CommStart,
    Moment,
    Operation,
    SpanEnd,
    SpanStart,
)
from labkit.record.recorder import Recorder, fixed, mark, span


@pytest.fixture
def mine() -> Recorder:
    recorder = Recorder()
    recording.install(recorder, this_thread_only=True)
    return recorder


@pytest.fixture(autouse=True)
def _leave_no_recorder() -> object:
    yield
    recording._thread_recorder.__dict__.clear()
    recording._any_thread_has_its_own = False
    return None


def told(mine: Recorder) -> list[str]:
    return [
        event.name if isinstance(event, SpanStart) else type(event).__name__
        for event in mine.drain()
    ]


def test_a_span_is_a_block(mine: Recorder) -> None:
    with span("step", micro_batch=3, stage=1), span("forward"):
        mark("here")
    start, inner, moment, *ends = mine.drain()
    assert isinstance(start, SpanStart)
    assert (start.name, start.micro_batch, start.stage) == ("step", 3, 1)
    assert isinstance(inner, SpanStart)
    assert isinstance(moment, Moment)
    assert [type(end) for end in ends] == [SpanEnd, SpanEnd]


def test_a_span_decorates_a_function_and_may_recur(mine: Recorder) -> None:
    @span("count")
    def count_down(number: int) -> int:
        """Count."""
        return number if number == 0 else count_down(number - 1)

    assert count_down(2) == 0
    assert count_down.__doc__ == "Count."
    assert told(mine) == ["count"] * 3 + ["SpanEnd"] * 3


def test_a_span_ends_when_its_block_raises(mine: Recorder) -> None:
    with pytest.raises(ValueError, match="on purpose"), span("step"):
        raise ValueError("on purpose")
    assert told(mine) == ["step", "SpanEnd"]


def test_a_decorated_function_records_on_the_rank_that_calls_it(mine: Recorder) -> None:
    """Ranks that are threads share the function, and each has its own recorder."""

    @span("work")
    def work() -> None:
        pass

    other = Recorder()

    def live() -> None:
        recording.install(other, this_thread_only=True)
        work()

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    assert told(mine) == []
    assert told(other) == ["work", "SpanEnd"]


def test_a_profiler_that_watches_sees_spans_as_ranges(mine: Recorder) -> None:
    with torch.profiler.profile() as profile, span("my forward"):
        torch.ones(3).sum()
    assert "my forward" in {event.key for event in profile.key_averages()}


def test_no_profiler_no_range(mine: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr("labkit.record.ranges.enter", fail)
    with span("forward"):
        pass


def test_fixed_work_is_work_that_no_hardware_changes(mine: Recorder) -> None:
    fixed(0.02)
    (event,) = mine.drain()
    assert isinstance(event, Operation)
    assert (event.fixed_s, event.flops, event.kernels) == (0.02, 0, 0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "1", True, None])
def test_fixed_work_takes_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"from 0 to 3600 s; got"):
        fixed(seconds)


def test_what_finds_no_room_is_counted_and_its_traffic_too() -> None:
    full = Recorder(max_pending=2)
    full.new_group("g", (0, 1))
    for _ in range(5):
        full.comm("all_reduce", "g", payload_bytes=100, dtype="uint8")
    assert full.dropped == 4
    assert len(full.drain()) == 2
    (row,) = full.counters.rows()
    assert (row.num_calls, row.payload_bytes, row.wire_bytes) == (5, 500, 500)


def test_a_run_begins_with_nothing_counted() -> None:
    full = Recorder(max_pending=1)
    for _ in range(2):
        full.comm("barrier", "g")
    full.drain()
    full.begin()
    assert (full.dropped, full.counters.rows()) == (0, ())


def test_a_caveat_is_told_once_a_run(mine: Recorder) -> None:
    for _ in range(3):
        mine.caveat("timing", "asks whether it has ended", None)
    mine.caveat("streams", "orders by streams", None)
    assert [type(event) for event in mine.drain()] == [Caveat, Caveat]
    mine.begin()
    mine.caveat("timing", "asks again", None)
    assert len(mine.drain()) == 1


def test_a_look_tells_of_each_end_once_and_how_unsure_it_is() -> None:
    recorder = Recorder()
    over: set[int] = set()
    for target in (7, 8):
        recorder.follow(target, lambda target=target: target in over)
    recorder.look()
    assert recorder.drain() == []
    over.add(8)
    recorder.look()
    recorder.look()
    (end,) = recorder.drain()
    assert isinstance(end, CommEnd)
    assert end.target == 8
    assert 0 < end.unsure_s < 1.0


def test_what_the_backend_tells_is_exact_and_only_of_what_is_followed() -> None:
    recorder = Recorder()
    recorder.follow(7, lambda: True)
    recorder.ended(7)
    recorder.ended(7)
    recorder.ended(9)
    recorder.look()
    (end,) = recorder.drain()
    assert isinstance(end, CommEnd)
    assert (end.target, end.unsure_s) == (7, 0.0)


def test_whoever_issues_or_waits_looks_and_a_wait_ends_the_following() -> None:
    recorder = Recorder()
    recorder.follow(7, lambda: True)
    recorder.comm("barrier", "g")
    assert [type(event) for event in recorder.drain()] == [CommEnd, CommStart]
    recorder.follow(0, lambda: False)
    with recorder.waiting(0):
        pass
    assert not recorder.follows_any


@pytest.mark.parametrize(
    "name", [1, None, b"a", ["a"], "a\nb", "\x00", "\ud800", "x" * 201]
)
def test_a_name_is_a_line_of_text(mine: Recorder, name: Any) -> None:
    for named in (span, mark):
        with pytest.raises(UsageError, match="a line of at most 200 printable"):
            named(name)
    assert not mine.drain()


@pytest.mark.parametrize("name", ["", "\u03b1 1", "<b>", "x" * 200])
def test_any_line_of_text_is_a_name(mine: Recorder, name: str) -> None:
    mark(name)
    with span(name):
        pass
    assert len(mine.drain()) == 3


@pytest.mark.parametrize("number", [-1, 1.5, True, "0", float("nan"), 2**70, [1]])
def test_micro_batches_and_stages_are_counted(mine: Recorder, number: Any) -> None:
    with pytest.raises(UsageError, match="micro_batch is a whole number from 0"):
        span("forward", micro_batch=number)
    with pytest.raises(UsageError, match="stage is a whole number from 0"):
        span("forward", stage=number)
    assert not mine.drain()


def test_a_span_that_was_not_entered_cannot_end(mine: Recorder) -> None:
    with pytest.raises(UsageError, match="'x' was left more often than it was entered"):
        span("x").__exit__(None, None, None)
    assert not mine.drain()
