"""The engine: random programs against a slow reference, closed forms, refusals."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from labkit.bench import engine
from labkit.errors import UsageError
from labkit.record.program import Comm, Program, Race, Wait, Work
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta
from tests.replay.programs import Draft, draw, draw_machine, shuffled
from tests.replay.reference import live

ALPHA_S, BETA_S = 1e-3, 1e-6
PLAIN = AlphaBeta(alpha_s=ALPHA_S, beta_s_per_byte=BETA_S, flops_per_s=1.0)


def times_of(program: Program) -> dict[tuple[int, int], tuple[float | None, ...]]:
    """The times of what a machine decides, by rank and seq."""
    found: dict[tuple[int, int], tuple[float | None, ...]] = {}
    for event in program:
        match event:
            case Work() | Wait():
                found[event.rank, event.seq] = event.start_s, event.end_s
            case Comm():
                found[event.rank, event.seq] = (
                    event.issued_s, event.arrived_s, event.ended_s,
                )  # fmt: skip
            case _:
                pass
    return found


@pytest.mark.parametrize("since", range(0, 1000, 100))
def test_random_programs_get_the_times_of_the_reference(since: int) -> None:
    """Any mix of collectives, messages, lanes, streams, waits and reads."""
    for seed in range(since, since + 100):
        program = draw(seed, num_events=30, has_ties=seed % 2 == 0)
        meets_reference(program, draw_machine(seed))


@pytest.mark.grid
@pytest.mark.parametrize("since", range(1000, 11000, 1000))
def test_more_and_longer_random_programs(since: int) -> None:
    for seed in range(since, since + 1000):
        program = draw(seed, num_events=seed % 150, has_ties=seed % 2 == 0)
        meets_reference(program, draw_machine(seed))


def test_many_groups_over_the_same_links_get_the_times_of_the_reference() -> None:
    """The program that is timed: 32 ranks on 4 nodes, 4 groups a rank."""
    meets_reference(engine.program(3300, num_ranks=32), engine.SHARED)


def meets_reference(program: Program, machine: AlphaBeta) -> None:
    expected = live(program, machine)
    for place, times in times_of(replay(program, machine)).items():
        assert times == pytest.approx(expected[place], abs=1e-9), place


@pytest.mark.parametrize("seed", range(200))
def test_replay_is_the_same_whatever_comes_first(seed: int) -> None:
    """Byte for byte on repetition, and in whatever order the ranks are given."""
    program = draw(seed, has_ties=seed % 2 == 0)
    machine = draw_machine(seed)
    once = replay(program, machine)
    assert repr(replay(program, machine)) == repr(once)
    other = replay(shuffled(program, seed), machine)
    for rank in once.header.ranks:
        assert repr(other.of(rank)) == repr(once.of(rank))


def makespan(draft: Draft, machine: AlphaBeta = PLAIN) -> float:
    return replay(draft.program(), machine).duration_s


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_a_ring_all_reduce_takes_its_closed_form(size: int) -> None:
    """2 (n - 1) steps of alpha + beta S / n."""
    num_bytes = 840 * size
    draft = Draft(size)
    for _ in range(2 * (size - 1)):
        ids = [
            (draft.comm(r, "send", num_bytes=num_bytes // size, peer=(r + 1) % size),
             draft.comm(r, "recv", num_bytes=num_bytes // size, peer=(r - 1) % size))
            for r in range(size)
        ]  # fmt: skip
        for rank, pair in enumerate(ids):
            for target in pair:
                draft.wait(rank, target)
    expected = 2 * (size - 1) * (ALPHA_S + BETA_S * num_bytes / size)
    assert makespan(draft) == pytest.approx(expected)


@pytest.mark.parametrize("log_size", [1, 2, 3, 4])
def test_a_tree_broadcast_takes_its_closed_form(log_size: int) -> None:
    """log2 n steps of alpha + beta S: each step doubles who has it."""
    draft, num_bytes = Draft(2**log_size), 1000
    for level in range(log_size):
        for rank in range(2**level):
            draft.message(rank, rank + 2**level, num_bytes)
    assert makespan(draft) == pytest.approx(log_size * (ALPHA_S + BETA_S * num_bytes))


@pytest.mark.parametrize("log_size", [1, 2, 3, 4])
def test_halving_and_doubling_takes_its_closed_form(log_size: int) -> None:
    """2 log2 n latencies, 2 (n - 1) / n of the bytes."""
    size, num_bytes = 2**log_size, 16 * 1024
    draft = Draft(size)
    down = range(log_size)
    for level in (*down, *reversed(down)):
        part = num_bytes >> (level + 1)
        for rank in range(size):
            peer = rank ^ (1 << level)
            sent = draft.comm(rank, "send", num_bytes=part, peer=peer)
            draft.wait(rank, draft.comm(rank, "recv", num_bytes=part, peer=peer))
            draft.wait(rank, sent)
    expected = 2 * log_size * ALPHA_S + 2 * (size - 1) / size * num_bytes * BETA_S
    assert makespan(draft) == pytest.approx(expected)


def _two_groups_on_one_nic(stagger_s: float) -> list[float]:
    """Ends of two messages that leave one node together, each 1 s alone."""
    machine = AlphaBeta(
        beta_s_per_byte=1e-9, flops_per_s=1.0, ranks_per_node=2, nic_bytes_per_s=1e9
    )
    draft = Draft(4)
    for rank in (1, 3):
        draft.work(rank, stagger_s)
    draft.message(0, 2, 10**9)
    draft.message(1, 3, 10**9)
    program = replay(draft.program(), machine)
    return [e.ended_s or 0.0 for e in program if isinstance(e, Comm)][:2]


def test_two_that_share_a_nic_get_half_of_it_each() -> None:
    """2.0 s where one alone takes 1.0; begun half a second later, 1.5 and 2.0."""
    assert _two_groups_on_one_nic(0.0) == pytest.approx([2.0, 2.0])
    assert _two_groups_on_one_nic(0.5) == pytest.approx([1.5, 2.0])


def test_a_gather_before_the_compute_that_hides_it_costs_nothing() -> None:
    def step(*, prefetches: bool) -> float:
        draft = Draft(2)
        num_bytes = 1_000_000
        for rank in range(2):
            if prefetches:
                target = draft.comm(rank, "all_gather", num_bytes=num_bytes)
                draft.work(rank, 5.0)
            else:
                draft.work(rank, 5.0)
                target = draft.comm(rank, "all_gather", num_bytes=num_bytes)
            draft.wait(rank, target)
            draft.work(rank, 5.0)
        return makespan(draft)

    gather_s = ALPHA_S + 1_000_000 * BETA_S
    assert step(prefetches=True) == pytest.approx(10.0)
    assert step(prefetches=False) == pytest.approx(10.0 + gather_s)


def test_a_race_stays_in_the_record() -> None:
    draft = Draft(1)
    draft.work(0, 1.0)
    race = Race(0, 0, 0, "read", "aten.add", None)
    program = replace(draft.program(), races=(race,))
    replayed = replay(program, PLAIN)
    assert replayed.races == (race,)
    assert (replayed.header.source, replayed.header.hardware) == (
        "replayed", "alpha-beta model",
    )  # fmt: skip


def test_measured_stretches_can_be_kept() -> None:
    """A record without costs: its compute takes what it took, its transfers do not."""
    draft = Draft(2)
    for rank in range(2):
        draft.work(rank, 0.0, kernels=0)
    draft.sync("all_reduce", num_bytes=1000)
    program = draft.program(level="comm", source="measured")
    events = tuple(
        tuple(
            event._replace(name="compute", start_s=0.0, end_s=3.0)
            if isinstance(event, Work)
            else event
            for event in each
        )
        for each in program.events
    )
    program = replace(program, events=events)
    with pytest.raises(UsageError, match='record="work"'):
        replay(program, PLAIN)
    again = replay(program, PLAIN, compute="as measured")
    expected = 3.0 + 2 * (ALPHA_S + 1000 * BETA_S / 2)
    assert again.duration_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("header", "words"),
    [({"dropped": (3, 0)}, "3"), ({"timing_dependent": "rank 0: polls"}, "polls"),
     ({"stream_ordered": "rank 1: streams"}, "streams")],
)  # fmt: skip
def test_records_that_cannot_be_retimed_are_refused(
    header: dict[str, object], words: str
) -> None:
    draft = Draft(2)
    draft.sync("barrier")
    with pytest.raises(UsageError, match=words):
        replay(draft.program(**header), PLAIN)


def test_a_transfer_without_its_partner_is_refused() -> None:
    draft = Draft(2)
    draft.comm(0, "send", num_bytes=4, peer=1)
    with pytest.raises(UsageError, match=r"rank 0.*send|send.*rank 0"):
        replay(draft.program(), PLAIN)


def test_waits_in_a_circle_are_refused_and_named() -> None:
    """Each rank receives first, and sends only then."""
    draft = Draft(2)
    for rank in range(2):
        draft.wait(rank, draft.comm(rank, "recv", num_bytes=4, peer=1 - rank))
        draft.read(rank)
    for rank in range(2):
        draft.comm(rank, "send", num_bytes=4, peer=1 - rank)
    with pytest.raises(UsageError, match="circle"):
        replay(draft.program(), PLAIN)


@pytest.mark.parametrize("flops", [nan, inf, -1.0])
def test_costs_that_are_no_numbers_are_refused(flops: float) -> None:
    draft = Draft(1)
    draft.work(0, flops)
    with pytest.raises(UsageError, match="rank 0"):
        replay(draft.program(), PLAIN)


@pytest.mark.parametrize(
    "field", ["alpha_s", "beta_s_per_byte", "flops_per_s", "launch_s", "comm_launch_s"]
)
@pytest.mark.parametrize("value", [nan, inf, -1.0, None, "fast", True])
def test_a_machine_with_impossible_numbers_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{field} of 'alpha-beta model' must be"):
        AlphaBeta(**{field: value})


@pytest.mark.parametrize("field", ["bytes_per_s", "nic_bytes_per_s", "ranks_per_node"])
@pytest.mark.parametrize("value", [nan, inf, -1, 0, "fast", True])
def test_what_a_machine_may_lack_must_be_right_too(field: str, value: Any) -> None:
    lacking: dict[str, Any] = {field: None}
    assert getattr(AlphaBeta(**lacking), field) is None
    with pytest.raises(UsageError, match=f"{field} of 'alpha-beta model' must be"):
        AlphaBeta(**{field: value})
