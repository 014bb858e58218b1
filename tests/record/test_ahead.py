"""Whether the host ran ahead: read off the times."""

from __future__ import annotations

from labkit.record.ahead import runs_ahead
from labkit.record.program import Program
from tests.record import made


def record(issued: float, *, lane: int = 0, **more: object) -> Program:
    rank = made.Rank(0)
    rank.work(0.0, 1.0, lane=lane)
    rank.comm("all_reduce", issued, 2.0, 1.0)
    return made.program(rank, **more)


def test_a_lane_that_comes_before_its_work_has_ended_runs_ahead() -> None:
    assert runs_ahead(record(0.5, source="replayed"))
    assert not runs_ahead(record(1.0, source="replayed"))


def test_what_another_lane_computes_is_not_waited_for() -> None:
    assert not runs_ahead(record(0.5, lane=1, source="replayed"))


def test_storages_tell_where_there_is_but_one_lane() -> None:
    def single(at: float, other_lane: int) -> Program:
        rank = made.Rank(0)
        rank.work(0.0, 1.0)
        rank.work(1.0, 2.0, lane=other_lane)
        rank.alloc(0, 8, "scratch", at)
        return made.program(rank, source="replayed")

    assert runs_ahead(single(0.5, 0))
    assert not runs_ahead(single(2.0, 0))
    assert not runs_ahead(single(0.5, 1))


def test_a_gpu_always_does_and_a_measured_cpu_never() -> None:
    assert runs_ahead(record(1.0, device="cuda"))
    assert not runs_ahead(record(0.5))
    assert not runs_ahead(made.program())
