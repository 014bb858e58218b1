"""Any correct program runs unreported and right; any with a fault in it is told."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from labkit import Cluster, Run
from labkit.errors import (
    AbsentRankError,
    MismatchError,
    RankDied,
    RankFailed,
    RunError,
    StuckError,
)
from labkit.record.events import CommStart
from tests.runtime.conftest import MakeCluster
from tests.runtime.programs import (
    WHATS,
    Fault,
    Step,
    expected,
    play_all,
    play_or_leave,
    program,
    random_fault,
    subgroups,
    takes_part,
)

LENGTH = 12
Programs = list[list[Step]]


def batch(
    seed: int, world_size: int, count: int
) -> tuple[Programs, list[tuple[int, ...]]]:
    rng = random.Random(seed)
    groups = subgroups(rng, world_size, 3)
    return [program(rng, groups, LENGTH) for _ in range(count)], groups


def wanted(programs: Programs, rank: int) -> object:
    return [
        [(s.number, expected(s, rank)) for s in steps if takes_part(s, rank)]
        for steps in programs
    ]


def check_batch(cluster: Cluster, seed: int, count: int) -> Run:
    programs, groups = batch(seed, cluster.world_size, count)
    run = cluster.run(play_all, programs, groups)
    for rank, got in enumerate(run.results):
        assert got == wanted(programs, rank), f"seed {seed}, rank {rank}"
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "rendezvous"), [(2, False), (3, True), (4, False)]
)
def test_RT_34_random_correct_programs_give_the_right_values_and_no_report(
    make_cluster: MakeCluster, world_size: int, rendezvous: bool
) -> None:
    cluster = make_cluster(world_size, rendezvous=rendezvous)
    for seed in range(2):
        check_batch(cluster, seed=100 * world_size + seed, count=15)


@pytest.mark.grid
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world_size", "rendezvous"), [(4, False), (3, True)])
def test_RT_34_ten_thousand_random_programs(
    make_cluster: MakeCluster, world_size: int, rendezvous: bool
) -> None:
    cluster = make_cluster(world_size, rendezvous=rendezvous)
    for seed in range(25):
        check_batch(cluster, seed=10_000 * world_size + seed, count=200)


def check_told(error: RunError, fault: Fault) -> None:
    """The right kind, and the right rank."""
    if fault.what == "raise":
        assert isinstance(error, RankFailed)
        assert error.rank == fault.rank
        assert f"on purpose, at step {fault.number}" in str(error)
    elif fault.what == "die":
        assert isinstance(error, RankDied)
        assert str(error).startswith(f"rank {fault.rank} must return")
        assert "exit status 9" in str(error)
    elif fault.what == "leave":
        assert isinstance(error, AbsentRankError)
        assert fault.rank in error.finding.absent  # type: ignore[attr-defined]
    elif fault.what == "skip":
        assert isinstance(error, StuckError)
    else:
        assert isinstance(error, MismatchError)
        assert fault.rank in error.finding.calls  # type: ignore[attr-defined]


def check_fault(cluster: Cluster, seed: int, what: str) -> None:
    rng = random.Random(seed)
    groups = subgroups(rng, cluster.world_size, 2)
    steps = program(rng, groups, LENGTH)
    fault = random_fault(rng, steps, what)
    if fault is None:
        return
    with pytest.raises(RunError) as caught:
        cluster.run(play_or_leave, [steps], groups, fault)
    try:
        check_told(caught.value, fault)
    except AssertionError as wrong:
        raise AssertionError(f"seed {seed}, {fault}: {caught.value}") from wrong


@pytest.mark.slow
@pytest.mark.parametrize("what", WHATS)
def test_a_random_fault_is_told_by_the_right_kind_and_rank(
    cluster4: Cluster, what: str
) -> None:
    for seed in range(4):
        check_fault(cluster4, seed, what)


@pytest.mark.grid
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", WHATS)
def test_sixty_random_faults_of_each_kind(make_cluster: MakeCluster, what: str) -> None:
    for rendezvous in (False, True):
        cluster = make_cluster(4, rendezvous=rendezvous)
        for seed in range(30):
            check_fault(cluster, 1000 + seed, what)


def order_of(run: Run) -> list[tuple[object, ...]]:
    """All ranks' transfers in the order in which they were made."""
    made = [
        (comm.issued_s, rank, comm.kind, comm.peer, comm.tag, comm.shapes)
        for rank, events in enumerate(run.events)
        for comm in events
        if isinstance(comm, CommStart)
    ]
    return [each[1:] for each in sorted(made, key=lambda each: each[0])]


@pytest.mark.slow
def test_threads_give_the_same_results_as_processes(make_cluster: MakeCluster) -> None:
    threads = make_cluster(4, backend="threads")
    for seed in range(2):
        check_batch(threads, seed=400 + seed, count=15)


@pytest.mark.slow
def test_threads_keep_the_same_order_twenty_times_in_twenty(
    make_cluster: MakeCluster,
) -> None:
    threads = make_cluster(4, backend="threads")
    orders = [order_of(check_batch(threads, seed=77, count=3)) for _ in range(20)]
    assert len(orders[0]) > 4 * LENGTH
    assert orders == [orders[0]] * 20


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in WHATS if what != "die"])
def test_on_threads_a_random_fault_is_told_by_the_right_kind_and_rank(
    make_cluster: MakeCluster, what: str
) -> None:
    threads = make_cluster(4, backend="threads")
    for seed in range(3):
        check_fault(threads, seed, what)


def test_the_generator_covers_every_kind_and_finds_a_place_for_every_fault() -> None:
    rng = random.Random(0)
    programs: list[Sequence[Step]] = batch(1, 4, 60)[0]  # type: ignore[assignment]
    assert len({step.kind for steps in programs for step in steps}) == 11
    for what in WHATS:
        found = [random_fault(rng, steps, what) for steps in programs]
        assert sum(fault is not None for fault in found) > 50


def test_the_oracle_would_see_a_wrong_value(cluster4: Cluster) -> None:
    """One element off by one, in one step of one program, on one rank."""
    programs, _ = batch(5, 4, 3)
    got = [wanted(programs, rank) for rank in range(4)]
    values = next(v for _, v in got[2][1] if v)  # type: ignore[index]
    values[0] += 1
    assert got[2] != wanted(programs, 2)
