"""Records of real ranks: the same each time, with true ends, dependencies and races."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster, Run
from labkit.errors import RankFailed, UsageError
from labkit.record.export import to_perfetto
from labkit.record.intervals import rows
from labkit.record.program import (
    Comm,
    HostRead,
    Program,
    Span,
    Wait,
    Work,
    without_times,
)
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta
from labkit.runtime import drive
from labkit.runtime.recorded import load
from labkit.view.timeline import timeline
from tests.runtime import recorded_programs as programs
from tests.runtime.lines import bare_number_of

E = TypeVar("E")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Cluster]:
    with Cluster(4, quiet=True) as cluster:
        yield cluster


def of(program: Program, kind: type[E], rank: int = 0) -> list[E]:
    return [event for event in program.of(rank) if isinstance(event, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["comm", "work"])
@pytest.mark.parametrize(
    "body",
    [programs.naive, programs.overlapped, programs.ddp, programs.ring,
     programs.subgroups],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_two_records_of_a_program_are_equal_event_for_event(
    ranks: Cluster, body: Callable[[], None], level: str
) -> None:
    first, second = (ranks.run(body, record=level).record for _ in range(2))
    assert without_times(first) == without_times(second)
    assert (first.groups, first.traffic, first.races) == (
        second.groups, second.traffic, second.races,
    )  # fmt: skip
    assert first.header == second.header
    assert first.header.level == level


def test_the_end_of_a_transfer_is_not_the_wait_for_it(ranks: Cluster) -> None:
    """1 MB under 200 ms of compute: known from a look, not from the wait."""
    record = ranks.run(programs.in_silence).record
    for rank in range(4):
        call = of(record, Comm, rank)[1]
        wait = of(record, Wait, rank)[-1]
        assert call.ended_s is not None
        assert call.arrived_s is not None
        assert wait.start_s is not None
        assert call.end_source == "look"
        assert call.ended_s < wait.start_s
    bars = [s for s in transfers_of(record) if s[0] == "all_reduce#1"]
    assert all(end - start < 0.15 for _, start, end in bars)


def transfers_of(record: Program) -> list[tuple[str, float, float]]:
    return [(r.name, r.start, r.end) for r in rows(record) if r.kind == "transfer"]


@pytest.mark.parametrize("level", ["comm", "work"])
def test_ends_of_ddp_are_known_though_it_waits_in_cpp(
    ranks: Cluster, level: str
) -> None:
    record = ranks.run(programs.ddp, record=level).record
    sums = [c for c in of(record, Comm) if c.kind == "all_reduce"]
    assert len(sums) > 2
    told = {"look"} if level == "comm" else {"future", "look"}
    assert {call.end_source for call in sums} <= told


def test_ddps_waits_are_known_from_the_first_touch(ranks: Cluster) -> None:
    record = ranks.run(programs.ddp, record="work").record
    sums = {c.id for c in of(record, Comm) if c.kind == "all_reduce"}
    waits = [wait for wait in of(record, Wait) if wait.target in sums]
    assert {wait.target for wait in waits} == sums
    assert {wait.cause for wait in waits} == {"future"}
    assert record.races == ()


def test_a_missing_wait_is_a_race_with_its_buffer_operation_and_line(
    ranks: Cluster,
) -> None:
    record = ranks.run(programs.overlapped, waits=False, record="work").record
    race = record.races[0]
    call = next(c for c in of(record, Comm, race.rank) if c.id == race.target)
    assert call.kind == "all_reduce"
    assert race.storage in call.writes
    assert race.access == "read"
    assert race.operation == "aten.mul"
    assert race.site is not None
    assert race.site.line == bare_number_of(programs._update, "0.1 * parameter.grad")
    assert ranks.run(programs.overlapped, record="work").record.races == ()


def test_a_write_into_what_is_being_sent_is_a_race(ranks: Cluster) -> None:
    def overwrite() -> None:
        x = torch.ones(8)
        work = dist.broadcast(x, 0, async_op=True)
        x.zero_()
        work.wait()

    races = ranks.run(overwrite, record="work").record.races
    assert {(race.rank, race.access) for race in races} == {
        (rank, "write") for rank in range(4)
    }


def test_reading_what_is_only_read_is_no_race(ranks: Cluster) -> None:
    def gather() -> float:
        mine, every = torch.ones(8), torch.empty(32)
        work = dist.all_gather_into_tensor(every, mine, async_op=True)
        total = mine.sum()
        work.wait()
        return float(total + every.sum())

    run = ranks.run(gather, record="work")
    assert run.results == [40.0] * 4
    assert run.record.races == ()


def test_operations_have_costs_and_reads_of_values_are_known(ranks: Cluster) -> None:
    def multiply() -> float:
        return float((torch.ones(8, 16) @ torch.ones(16, 4)).sum())

    record = ranks.run(multiply, record="work").record
    product = next(work for work in of(record, Work) if work.name == "aten.mm")
    assert (product.flops, product.moved_bytes) == (2 * 8 * 16 * 4, 4 * (128 + 64 + 32))
    assert len(of(record, HostRead)) == 1


def test_polling_makes_a_record_timing_dependent(ranks: Cluster) -> None:
    def poll() -> None:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        while not work.is_completed():
            time.sleep(0.001)

    record = ranks.run(poll).record
    assert "asks whether all_reduce has ended" in record.header.timing_dependent


def test_the_header_says_who_recorded(ranks: Cluster) -> None:
    header = ranks.run(dist.get_rank, ranks=[1, 3]).record.header
    assert (header.world_size, header.ranks) == (4, (1, 3))
    assert (header.device, header.backend, header.source) == ("cpu", "gloo", "measured")
    assert header.torch == torch.__version__
    assert len(header.hosts) == 2


def test_threads_record_like_processes(ranks: Cluster) -> None:
    with Cluster(4, backend="threads", quiet=True) as threads:
        hosted = threads.run(programs.overlapped, record="work").record
    real = ranks.run(programs.overlapped, record="work").record
    assert without_times(hosted) == without_times(real)
    assert hosted.traffic == real.traffic


@pytest.mark.parametrize("level", ["all", None, 1, "Work"])
def test_an_unknown_level_is_refused(ranks: Cluster, level: object) -> None:
    with pytest.raises(UsageError, match=r'record is "comm" .* or "work"'):
        ranks.run(dist.get_rank, record=level)  # type: ignore[call-overload]


def test_a_failure_at_level_work_leaves_the_rank_as_it_was(ranks: Cluster) -> None:
    def fail() -> None:
        torch.ones(3) @ torch.ones(4)

    with pytest.raises(RankFailed):
        ranks.run(fail, record="work")
    record = ranks.run(programs.naive).record
    assert {work.name for work in of(record, Work)} == {"compute"}


MACHINE = AlphaBeta(
    alpha_s=1e-6, beta_s_per_byte=3e-9, flops_per_s=1e9, bytes_per_s=1e10,
    launch_s=1e-7, comm_launch_s=1e-7,
)  # fmt: skip


def exposed_share(run: Run) -> float:
    """What share of a step compute stands still for transfers, on MACHINE."""
    found = run.replay(MACHINE).measure(skip_steps=1)
    return found.exposed_s / found.step_s


@pytest.mark.slow
def test_ddp_overlaps_as_its_hand_written_twin_does(ranks: Cluster) -> None:
    """From records alone: within 2 points, where all-reduces in a row expose 10 %.

    Without its waits the twin looks better than either: the record says why.
    """
    shares = {
        body.__name__: exposed_share(ranks.run(body, record="work"))
        for body in (programs.naive, programs.overlapped, programs.ddp)
    }
    assert abs(shares["ddp"] - shares["overlapped"]) < 0.02
    assert shares["naive"] > shares["overlapped"] + 0.03
    racy = ranks.run(programs.overlapped, waits=False, record="work")
    assert exposed_share(racy) < shares["overlapped"] / 3
    assert racy.replay(MACHINE).record.races == racy.record.races != ()


def test_replay_of_a_run_needs_costs_or_keeps_what_was_measured(
    ranks: Cluster,
) -> None:
    run = ranks.run(programs.naive)
    with pytest.raises(UsageError, match='record="work"'):
        run.replay(MACHINE)
    kept = run.replay(MACHINE, compute="as measured")
    assert kept.record.header.hardware == MACHINE.name
    assert "computed by a model of alpha-beta model" in str(kept.timeline())


def test_a_run_is_measured_saved_and_loaded(ranks: Cluster, tmp_path: Path) -> None:
    run = ranks.run(programs.naive)
    assert run.measure().step_s > 0
    again = load(run.save(tmp_path / "naive.rec"))
    assert again.record == run.record
    assert again.measure() == run.measure()
    assert str(again.timeline()) == str(run.timeline())
    assert re.fullmatch(
        r"A record of \d ranks, measured: [\d,]+ events, [\d.]+ m?s on this machine",
        repr(again),
    )


def test_a_run_is_told_in_a_line(ranks: Cluster) -> None:
    found = repr(ranks.run(lambda: list(range(1000)), ranks=0))
    assert re.match(r"A run of 1 rank, [\d.]+ .?s, results \[\[0, 1, 2, ", found)
    assert len(found) < 500
    dry = ranks.dry(lambda: None, world_size=64)
    assert repr(dry) == "A dry run of 64 ranks: a record without results or times"
    assert repr(dry.record) == "A record of 64 ranks, dry: 64 events, without times"


@pytest.mark.slow
def test_fsdp2_orders_by_streams_and_is_refused(ranks: Cluster) -> None:
    """On a CPU torch's streams do nothing: there is no overlap to credit."""

    def shard() -> None:
        from torch.distributed.fsdp import fully_shard

        model = programs.TinyModel()
        fully_shard(model.layers)
        programs._loss(fully_shard(model)).backward()

    run = ranks.run(shard, record="work")
    assert "streams" in run.record.header.stream_ordered
    with pytest.raises(UsageError, match="stream"):
        run.replay(MACHINE)


def test_transfers_are_drawn_without_any_span(ranks: Cluster) -> None:
    """A user's own program has no spans; take away labkit's own too."""
    run = ranks.run(programs.overlapped)
    events = tuple(
        tuple(
            event._replace(span=None) if isinstance(event, Work | Comm) else event
            for event in each
            if not isinstance(event, Span)
        )
        for each in run.record.events
    )
    bare = replace(run.record, events=events)
    assert transfers_of(bare) == transfers_of(run.record) != []
    assert b"all_reduce" in to_perfetto(bare)
    timeline(bare)


def test_a_run_that_never_ends_leaves_a_bounded_record_and_exact_counts(
    ranks: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "MAX_EVENTS", 15)
    record = ranks.run(programs.ring).record
    monkeypatch.undo()
    whole = ranks.run(programs.ring).record
    assert all(dropped > 0 for dropped in record.header.dropped)
    assert record.traffic == whole.traffic
    assert len(record.of(0)) < len(whole.of(0))
    with pytest.raises(UsageError, match="found no room"):
        replay(record, MACHINE)
