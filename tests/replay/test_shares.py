"""The critical path: what it consists of, in closed forms and under small changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.errors import UsageError
from labkit.record.program import Program
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta
from labkit.replay.shares import Shares, shares
from tests.replay.programs import Draft, draw, draw_machine

# A second a FLOP, a tenth of that to launch.
PLAIN = AlphaBeta(
    alpha_s=0.25, beta_s_per_byte=0.5, flops_per_s=1.0, launch_s=0.1, comm_launch_s=0.2
)


def seconds(draft: Draft, machine: AlphaBeta = PLAIN) -> dict[str, float]:
    """What the critical path consists of, without what is not on it."""
    program = draft.program()
    return in_seconds(shares(replay(program, machine), machine))


def in_seconds(found: Shares) -> dict[str, float]:
    parts = {**vars(found)}
    whole_s = parts.pop("whole_s")
    return {name: share * whole_s for name, share in parts.items() if share}


def test_a_long_operation_hides_the_launches_after_it() -> None:
    draft = Draft(1)
    for _ in range(5):
        draft.work(0, 3.0)
    assert seconds(draft) == pytest.approx({"launches": 0.1, "computing": 15.0})


def test_short_operations_wait_for_their_launches() -> None:
    draft = Draft(1)
    for _ in range(5):
        draft.work(0, 0.05)
    assert seconds(draft) == pytest.approx({"launches": 0.5, "computing": 0.05})


def test_on_a_cpu_every_launch_counts() -> None:
    draft = Draft(1)
    for _ in range(5):
        draft.work(0, 3.0)
    found = seconds(draft, replace(PLAIN, is_cpu=True))
    assert found == pytest.approx({"launches": 0.5, "computing": 15.0})


def test_a_transfer_is_latency_and_bytes() -> None:
    """A ring of 2 ranks: 2 steps, in each half the tensor."""
    draft = Draft(2)
    draft.sync("all_reduce", num_bytes=8)
    expected = {"launches": 0.2, "latency": 0.5, "moving_bytes": 4.0}
    assert seconds(draft) == pytest.approx(expected)


def test_what_is_hidden_is_not_on_the_path() -> None:
    """The transfer ends in the middle of the compute that it was issued before."""
    draft = Draft(2)
    for rank in range(2):
        gathered = draft.comm(rank, "all_gather", num_bytes=8)
        draft.work(rank, 100.0)
        draft.wait(rank, gathered)
        draft.work(rank, 1.0)
    assert seconds(draft) == pytest.approx({"launches": 0.3, "computing": 101.0})


def test_the_path_goes_by_the_rank_that_comes_last() -> None:
    draft = Draft(2)
    draft.work(1, 7.0)
    draft.work(0, 1.0, fixed_s=2.0)
    draft.sync("all_reduce", num_bytes=8)
    expected = {"launches": 0.1, "computing": 7.0, "latency": 0.5, "moving_bytes": 4.0}
    assert seconds(draft) == pytest.approx(expected)


def test_it_goes_by_the_queue_that_a_transfer_waits_for() -> None:
    draft = Draft(2)
    for rank in range(2):
        draft.comm(rank, "all_reduce", num_bytes=8)
        draft.comm(rank, "all_reduce", num_bytes=80)
    expected = {"launches": 0.2, "latency": 1.0, "moving_bytes": 44.0}
    assert seconds(draft) == pytest.approx(expected)


def test_fixed_time_is_apart() -> None:
    draft = Draft(1)
    draft.work(0, 5.0, fixed_s=3.0)
    draft.work(0, 1.0)
    expected = {"fixed": 3.0, "launches": 0.1, "computing": 1.0}
    assert seconds(draft) == pytest.approx(expected)


def test_two_that_share_a_nic_are_slowed_down_not_delayed() -> None:
    machine = replace(
        PLAIN, ranks_per_node=2, nic_bytes_per_s=2.0, comm_launch_s=0.0, alpha_s=0.25
    )
    draft = Draft(4)
    for rank in range(2):
        draft.message(rank, rank + 2, 8)
    expected = {"latency": 0.25, "moving_bytes": 8.0}
    assert seconds(draft, machine) == pytest.approx(expected)


def test_nothing_has_no_parts() -> None:
    found = shares(replay(Draft(1).program(), PLAIN), PLAIN)
    assert set(vars(found).values()) == {0.0}
    assert not found.is_launch_bound


@pytest.mark.parametrize(("flops", "is_bound"), [(0.01, True), (1.0, False)])
def test_launch_bound_is_more_than_half(flops: float, is_bound: bool) -> None:
    draft = Draft(1)
    draft.work(0, flops)
    found = shares(replay(draft.program(), PLAIN), PLAIN)
    assert found.is_launch_bound is is_bound


@pytest.mark.parametrize("since", range(0, 400, 50))
def test_the_path_is_as_long_as_the_program(since: int) -> None:
    """Of any program on any machine, links shared or not."""
    for seed in range(since, since + 50):
        machine = draw_machine(seed)
        replayed = replay(draw(seed, has_ties=seed % 2 == 0), machine)
        found = shares(replayed, machine)
        assert found.whole_s == pytest.approx(replayed.duration_s, abs=1e-12), seed
        shared = sum(in_seconds(found).values())
        assert shared == pytest.approx(found.whole_s, abs=1e-12), seed


@pytest.mark.parametrize("seed", range(0, 120, 2))
def test_a_part_is_what_the_program_gains_by_it(seed: int) -> None:
    """Where no link is shared: a millionth more of it is a millionth of it longer."""
    machine = replace(
        draw_machine(seed), shares_ports=False, ranks_per_node=None, alpha_s=1.7e-4,
        launch_s=3.1e-5, comm_launch_s=2.3e-5,
    )  # fmt: skip
    program = draw(seed)
    found = in_seconds(shares(replay(program, machine), machine))
    more = 1 + 1e-6
    changes = {
        "launches": {
            "launch_s": machine.launch_s * more,
            "comm_launch_s": machine.comm_launch_s * more,
        },
        "latency": {"alpha_s": machine.alpha_s * more},
        "moving_bytes": {"beta_s_per_byte": machine.beta_s_per_byte * more},
        "computing": {
            "flops_per_s": machine.flops_per_s / more,
            "bytes_per_s": machine.bytes_per_s and machine.bytes_per_s / more,
        },
    }
    before_s = duration_s(program, machine)
    for part, fields in changes.items():
        gained_s = duration_s(program, replace(machine, **fields)) - before_s
        expected_s = found.get(part, 0.0) * 1e-6
        assert gained_s == pytest.approx(expected_s, rel=1e-3, abs=1e-12), part


def duration_s(program: Program, machine: AlphaBeta) -> float:
    return replay(program, machine).duration_s


def test_stretches_kept_as_measured_are_computing() -> None:
    draft = Draft(1)
    draft.work(0, 0.0, kernels=0)
    program = draft.program(source="measured", level="comm")
    stretch = program.events[0][0]._replace(start_s=1.0, end_s=3.5)
    program = replace(program, events=((stretch,),))
    replayed = replay(program, PLAIN, compute="as measured")
    assert in_seconds(shares(replayed, PLAIN)) == pytest.approx({"computing": 2.5})


def test_the_times_of_another_machine_are_refused() -> None:
    draft = Draft(1)
    draft.work(0, 1.0)
    with pytest.raises(UsageError, match=r"replayed on 'other'.*'alpha-beta model'"):
        shares(replay(draft.program(), PLAIN), replace(PLAIN, name="other"))
    with pytest.raises(UsageError, match="this one is planned"):
        shares(draft.program(), PLAIN)
