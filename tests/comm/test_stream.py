"""Logical streams: values right, order in the record, and the same on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.comm import stream as streams
from labkit.comm.groups.threads import run_threads
from labkit.comm.stream import Stream, current
from labkit.errors import UsageError
from labkit.record import recorder
from labkit.record.events import CommStart, StreamMark, StreamWait, ValueRead
from labkit.record.program import Comm, Event, Mark, Moment, Wait, without_times
from labkit.record.recorder import Recorder
from tests.comm import stream_programs as programs
from tests.comm.groups.threaded import recorders, results
from tests.comm.stream_programs import LAYERS, PROGRAMS, SIZE, expected

pytestmark = pytest.mark.timeout(120)
WORLD_SIZE = 2
Body = Callable[..., list[float]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(WORLD_SIZE, quiet=True) as made:
        yield made


def known_at_each_use(events: tuple[Event, ...]) -> list[set[int]]:
    """Which transfers compute knows to have ended, at each "use" of their buffers.

    Only what streams wait for counts: on a GPU the host's waits order nothing.
    """
    known: defaultdict[int, set[int]] = defaultdict(set)
    marks: dict[int, set[int]] = {}
    uses: list[set[int]] = []
    for event in events:
        match event:
            case Mark():
                marks[event.id] = set(known[event.stream])
            case Wait(who="stream", cause="event"):
                known[event.stream] |= marks[event.target]
            case Wait(who="stream"):
                known[event.stream].add(event.target)
            case Moment(name="use"):
                uses.append(set(known[0]))
            case _:
                pass
    return uses


def needed_at_each_use(program: Body) -> list[set[int]]:
    """The transfers whose buffers are read."""
    if program is programs.prefetched_all_gather:
        return [{layer} for layer in range(LAYERS)]
    return [set() if program is programs.offloaded else set(range(LAYERS))]


def is_ordered(program: Body, events: tuple[Event, ...]) -> bool:
    """Whether compute waits for all that it reads, by the record alone."""
    needed = needed_at_each_use(program)
    known = known_at_each_use(events)
    return all(a <= b for a, b in zip(needed, known, strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_order_are_right_on_real_ranks(
    cluster: Cluster, program: Body
) -> None:
    run = cluster.run(program)
    assert run.results == cluster.run(expected, program).results
    for rank in range(WORLD_SIZE):
        assert is_ordered(program, run.record.of(rank))


MUTANTS: tuple[tuple[Body, dict[str, bool]], ...] = (
    (programs.overlapped_all_reduce, {"waits": False}),
    (programs.prefetched_all_gather, {"waits_for_transfer": False}),
    (programs.prefetched_all_gather, {"waits_for_copy": False}),
    (programs.reduce_scatter_after_backward, {"waits": False}),
)


@pytest.mark.parametrize(("program", "without"), MUTANTS)
def test_a_missing_wait_is_a_wrong_order_in_the_record(
    cluster: Cluster, program: Body, without: dict[str, bool]
) -> None:
    run = cluster.run(partial(program, **without))
    for rank in range(WORLD_SIZE):
        assert not is_ordered(program, run.record.of(rank))


@pytest.mark.slow
def test_a_missing_wait_for_a_transfer_is_a_race(cluster: Cluster) -> None:
    clean = cluster.run(programs.prefetched_all_gather, record="work").record
    assert clean.races == ()
    racy = partial(programs.prefetched_all_gather, waits_for_transfer=False)
    races = cluster.run(racy, record="work").record.races
    assert {(race.operation, race.access) for race in races} == {("aten.copy_", "read")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_records_are_equal_event_for_event(cluster: Cluster, program: Body) -> None:
    """Streams and marks are numbered from the run's beginning."""
    first, second = (cluster.run(program).record for _ in range(2))
    assert without_times(first) == without_times(second)
    assert {e.stream for e in first if isinstance(e, Mark)} <= {0, 1, 2}


def test_a_cpu_waits_for_a_transfer_no_earlier_than_it_must(cluster: Cluster) -> None:
    """Each layer's gather is under way while the layer before computes."""
    record = cluster.run(programs.prefetched_all_gather).record
    for rank in range(WORLD_SIZE):
        events = record.of(rank)
        issued = {e.id: e.seq for e in events if isinstance(e, Comm)}
        stood = {
            e.target: e.seq for e in events if isinstance(e, Wait) and e.who == "host"
        }
        uses = [e.seq for e in events if isinstance(e, Moment)]
        for layer in range(LAYERS - 1):
            assert issued[layer + 1] < stood[layer] < uses[layer] < stood[layer + 1]


def test_transfers_are_recorded_on_the_stream_that_issued_them(
    cluster: Cluster,
) -> None:
    record = cluster.run(programs.prefetched_all_gather).record
    assert {e.stream for e in record if isinstance(e, Comm)} == {1}
    waits = [e for e in record.of(0) if isinstance(e, Wait) and e.who == "stream"]
    assert {(e.stream, e.cause) for e in waits} == {
        (1, "event"), (2, "event"), (2, "wait"), (0, "event"),
    }  # fmt: skip


@pytest.mark.slow
def test_dry_runs_leave_the_same_marks_and_waits(cluster: Cluster) -> None:
    def on_streams(event: Event) -> bool:
        return isinstance(event, Mark) or (
            isinstance(event, Wait) and event.who == "stream"
        )

    program = programs.reduce_scatter_without_values
    wet = without_times(cluster.run(program).record)
    dry = without_times(cluster.dry(program).record)
    for ours, theirs in zip(wet, dry, strict=True):
        assert [e._replace(seq=0) for e in filter(on_streams, ours)] == [
            e._replace(seq=0) for e in filter(on_streams, theirs)
        ]


class FakeEvent:
    """A CUDA event; `behind` is what its stream had been given."""

    def __init__(self, behind: list[str]) -> None:
        self.behind = list(behind)


class FakeStream:
    """Keeps what a CUDA stream would be given."""

    def __init__(self, device: Any = None) -> None:
        self.given: list[str] = []

    def record_event(self) -> FakeEvent:
        return FakeEvent(self.given)

    def wait_event(self, event: FakeEvent) -> None:
        assert isinstance(event, FakeEvent)
        self.given.append("wait")

    def synchronize(self) -> None:
        self.given.append("synchronize")


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that take the way of a GPU, with CPU tensors and fake CUDA objects."""
    monkeypatch.setattr(streams, "_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)


def by_stream(mine: Recorder) -> dict[int, list[tuple[Any, ...]]]:
    """What each stream was given, without times."""
    given: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for event in mine.drain():
        match event:
            case CommStart():
                given[event.stream].append((event.kind, event.id, event.shapes))
            case StreamMark():
                given[event.stream].append(("mark", event.id))
            case StreamWait():
                given[event.stream].append(("wait", event.target, event.cause))
            case ValueRead():
                given[event.stream].append(("read",))
            case _:
                pass
    return dict(given)


def record_in_threads(program: Body) -> list[dict[int, list[tuple[Any, ...]]]]:
    """Each rank's record by stream, of a world of threads; checks the values too."""
    mine = recorders(WORLD_SIZE)

    def body(rank: int) -> None:
        recorder.current().begin()
        assert program() == expected(program)

    outcomes = run_threads(WORLD_SIZE, body, recorders=mine)
    assert [each.error for each in outcomes] == [None] * WORLD_SIZE
    return [by_stream(each) for each in mine]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gpu_leaves_the_same_record_stream_by_stream(
    request: pytest.FixtureRequest, program: Body
) -> None:
    on_cpu = record_in_threads(program)
    request.getfixturevalue("fake_cuda")
    assert record_in_threads(program) == on_cpu


def alone(body: Callable[[], Any]) -> Any:
    """What `body` returns on a world of one rank."""
    (result,) = results(1, lambda rank: body())
    return result


def test_a_step_behind_a_transfer_is_put_off_until_its_mark_is_waited_for() -> None:
    def body() -> list[list[str]]:
        done: list[str] = []
        side = Stream("cpu")
        side.run(done.append, "at once")
        seen = [list(done)]
        side.wait(dist.all_reduce(torch.ones(2), async_op=True))
        side.run(done.append, "first")
        first = side.mark()
        side.run(done.append, "second")
        seen.append(list(done))
        current("cpu").wait(first)
        seen.append(list(done))
        side.synchronize()
        return [*seen, done]

    assert alone(body) == [
        ["at once"], ["at once"], ["at once", "first"], ["at once", "first", "second"],
    ]  # fmt: skip


def test_a_mark_is_waited_for_through_other_streams() -> None:
    def body() -> list[str]:
        done: list[str] = []
        first, second = Stream("cpu"), Stream("cpu")
        first.wait(dist.all_reduce(torch.ones(2), async_op=True))
        first.run(done.append, "first")
        second.wait(first.mark())
        second.run(done.append, "second")
        assert done == []
        current("cpu").wait(second.mark())
        return done

    assert alone(body) == ["first", "second"]


def test_entering_a_stream_does_first_what_was_put_off() -> None:
    def body() -> list[str]:
        done: list[str] = []
        side = Stream("cpu")
        side.wait(dist.all_reduce(torch.ones(2), async_op=True))
        side.run(done.append, "put off")
        with side:
            done.append("block")
        return done

    assert alone(body) == ["put off", "block"]


def test_compute_may_be_told_to_wait_from_within_a_block() -> None:
    def body() -> list[str]:
        done: list[str] = []
        compute, side = current("cpu"), Stream("cpu")
        after = Stream("cpu")
        after.wait(dist.all_reduce(torch.ones(2), async_op=True))
        after.run(done.append, "after")
        with side:
            compute.wait(after.mark())
            done.append("side")
        done.append("compute")
        return done

    assert alone(body) == ["side", "after", "compute"]


def test_a_step_may_enter_a_stream_without_overtaking_what_follows() -> None:
    def body() -> list[str]:
        done: list[str] = []
        side, other = Stream("cpu"), Stream("cpu")

        def step() -> None:
            with other:
                done.append("other")
            done.append("step")

        side.wait(dist.all_reduce(torch.ones(2), async_op=True))
        side.run(step)
        side.run(done.append, "next")
        side.synchronize()
        return done

    assert alone(body) == ["other", "step", "next"]


def test_blocks_nest_and_end_where_they_began() -> None:
    def body() -> list[int]:
        mine, one, two = recorder.current(), Stream("cpu"), Stream("cpu")
        numbers = [mine.stream]
        with one:
            numbers.append(mine.stream)
            with two, one:
                numbers.append(mine.stream)
            numbers.append(mine.stream)
            assert current("cpu") is one
        with pytest.raises(ZeroDivisionError), two:
            numbers.append(mine.stream // 0)
        return [*numbers, mine.stream]

    assert alone(body) == [0, 1, 1, 1, 0]


def test_a_step_that_raises_leaves_the_stream_usable() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def body() -> list[str]:
        done: list[str] = []
        side = Stream("cpu")
        side.wait(dist.all_reduce(torch.ones(2), async_op=True))
        side.run(fail)
        side.run(done.append, "next")
        with pytest.raises(ZeroDivisionError):
            side.synchronize()
        assert current("cpu").number == 0
        side.synchronize()
        return done

    assert alone(body) == ["next"]


def test_a_mark_of_an_earlier_run_is_not_in_this_record() -> None:
    def body() -> list[StreamWait]:
        mine = recorder.current()
        old = Stream("cpu").mark()
        mine.begin()
        mine.drain()
        current("cpu").wait(old)
        return [event for event in mine.drain() if isinstance(event, StreamWait)]

    assert alone(body) == []


def test_what_cannot_be_waited_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got None. Issue .* async_op=True"):
        Stream("cpu").wait(None)


def test_a_mark_of_another_kind_of_device_is_refused(fake_cuda: None) -> None:
    there = Stream().mark()
    here = Stream()
    here.device = torch.device("cpu")
    with pytest.raises(UsageError, match=r"device, cpu; got one of cuda"):
        here.wait(there)


def test_memory_needs_no_keeping_on_a_cpu() -> None:
    x = torch.ones(SIZE)
    Stream("cpu").keep(x)
    assert x.sum() == SIZE


def test_a_stream_that_was_not_entered_cannot_be_left() -> None:
    def body() -> list[int]:
        one, two = Stream("cpu"), Stream("cpu")
        with pytest.raises(UsageError, match="0 are entered here"):
            one.__exit__(None, None, None)
        with one, two, pytest.raises(UsageError, match="2 are entered here"):
            one.__exit__(None, None, None)
        return [recorder.current().stream]

    assert alone(body) == [0]


def test_a_stream_that_was_never_left_ends_with_its_run() -> None:
    def body() -> list[bool]:
        mine = recorder.current()
        Stream("cpu").__enter__()
        still_in = not current("cpu").is_compute
        mine.begin()
        return [still_in, current("cpu").is_compute]

    assert alone(body) == [True, True]
