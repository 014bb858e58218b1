"""A machine's knobs, its refusals, and what it answers to the engine."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.replay.catalog import hardware
from labkit.replay.curve import Curve
from labkit.replay.hardware import Hardware
from labkit.replay.machine import Machine
from tests.replay.issued import alone_s, comm, work

ONE = hardware("dgx-h100")
TWO = hardware("2x dgx-h100 infiniband")
BIG = 1 << 30


def as_machine(machine: Machine) -> Machine:
    """Pyright's word that a model is what the engine asks for."""
    return machine


def moving_s(machine: Hardware, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> float:
    return machine.demand(comm("all_reduce", BIG), ranks).moving_s


def test_it_is_what_the_engine_asks_for() -> None:
    machine = as_machine(ONE)
    assert machine.name == "dgx-h100"
    assert not machine.is_cpu
    assert machine.capacity_bytes_per_s(("out", 3)) == 370e9
    assert machine.capacity_bytes_per_s(("nic_in", 0)) == 8 * 48e9


def test_half_the_link_takes_twice_as_long() -> None:
    half = ONE.with_(link_bytes_per_s=ONE.link_bytes_per_s / 2)
    assert moving_s(half) == pytest.approx(2 * moving_s(ONE))
    assert half.link_bytes_per_s == pytest.approx(ONE.link_bytes_per_s / 2)
    assert half.name == "dgx-h100 with links x0.5"


def test_the_deciding_link_is_a_port_in_one_node_and_the_nics_in_two() -> None:
    assert ONE.link_bytes_per_s == 370e9
    assert TWO.link_bytes_per_s == 8 * 48e9
    ranks = tuple(range(16))
    twice = TWO.with_(link_bytes_per_s=2 * 8 * 48e9)
    assert moving_s(twice, ranks) == pytest.approx(moving_s(TWO, ranks) / 2)


def test_latency_and_flops_turn_alone() -> None:
    slow = TWO.with_(latency_s=10 * TWO.latency_s)
    before, after = (
        machine.demand(comm("barrier", 0), (0, 8)).latency_s for machine in (TWO, slow)
    )
    assert after == pytest.approx(10 * before)
    assert moving_s(slow) == pytest.approx(moving_s(TWO))
    fast = TWO.with_(flops_per_s=2 * TWO.flops_per_s)
    assert fast.work_s(work(1e15)) == pytest.approx(TWO.work_s(work(1e15)) / 2)
    assert fast.flops_per_s == pytest.approx(2 * 989.4e12)
    assert alone_s(fast.demand(comm("send", BIG), (0, 8))) == pytest.approx(
        alone_s(TWO.demand(comm("send", BIG), (0, 8)))
    )


def test_fewer_ranks_a_node_are_more_nodes() -> None:
    spread = ONE.with_(ranks_per_node=2)
    links = dict(spread.demand(comm("all_reduce", BIG), (0, 1, 2, 3)).links)
    assert ("nic_out", 1) in links
    assert moving_s(spread) > moving_s(ONE)
    assert spread.name == "dgx-h100 with 2 ranks a node"


def test_knobs_as_they_were_change_nothing() -> None:
    same = TWO.with_(
        link_bytes_per_s=TWO.link_bytes_per_s, latency_s=TWO.latency_s,
        flops_per_s=TWO.flops_per_s, ranks_per_node=TWO.ranks_per_node,
    )  # fmt: skip
    assert same.name == TWO.name
    assert moving_s(same, tuple(range(16))) == moving_s(TWO, tuple(range(16)))


@pytest.mark.parametrize("field", ["link_bytes_per_s", "latency_s", "flops_per_s"])
@pytest.mark.parametrize("value", [0, -1.0, nan, inf, "fast", True])
def test_a_knob_turned_too_far_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{field} of 'dgx-h100' must be .* above 0"):
        ONE.with_(**{field: value})


def test_a_machine_without_latency_has_no_knob_for_it() -> None:
    message = Curve.line(0.0, 1e9)
    none = replace(ONE, network=replace(ONE.network, message=message))
    with pytest.raises(UsageError, match="'dgx-h100' has 0 s, and 1e-06 s was asked"):
        none.with_(latency_s=1e-6)


@pytest.mark.parametrize("value", [0, -1, 2.0, nan, "two", True])
def test_ranks_a_node_are_counted(value: Any) -> None:
    with pytest.raises(
        UsageError, match="ranks_per_node of 'dgx-h100' must be a whole"
    ):
        ONE.with_(ranks_per_node=value)


@pytest.mark.parametrize("field", ["launch_s", "comm_launch_s"])
@pytest.mark.parametrize("value", [None, -1e-9, nan, inf, "short"])
def test_times_that_no_machine_has_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{field} of 'dgx-h100' must be .*got"):
        replace(ONE, **{field: value})


def test_a_rank_that_the_machine_lacks_is_named() -> None:
    with pytest.raises(UsageError, match=r'1 x 8 ranks; rank 8 takes part.*"2x dgx'):
        ONE.demand(comm("all_reduce", 8), (0, 8))
    with pytest.raises(UsageError, match=r'1 x 8 ranks; rank 63.*"8x dgx'):
        ONE.demand(comm("all_reduce", 8), tuple(range(64)))


def test_the_answer_depends_on_what_is_asked_alone() -> None:
    asked = comm("all_to_all", 400, send_splits=(0, 100), recv_splits=(0, 0))
    first = ONE.demand(asked, (0, 1))
    ONE.demand(asked._replace(rank=1, recv_splits=(100, 0)), (0, 1))
    assert ONE.demand(asked._replace(seq=9, id=9), (0, 1)) == first
