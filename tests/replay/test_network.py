"""Rings and trees across nodes, and groups of which a node has only some ranks."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.replay.catalog import hardware
from labkit.replay.network import Network

GIB = 1 << 30
H100 = hardware("2x dgx-h100 infiniband").network
A100 = hardware("2x dgx-a100 infiniband").network


def bandwidth(network: Network, ranks: tuple[int, ...]) -> float:
    """Bytes a second of a large all-reduce: the tensor over the time."""
    return GIB / sum(network.all_reduce_time(network.layout(ranks), GIB))


def test_a_rank_is_on_the_node_that_its_number_says() -> None:
    layout = H100.layout((0, 7, 8, 9, 15))
    assert layout.ranks_of == {0: 2, 1: 3}
    assert (layout.num_nodes, layout.most) == (2, 3)


def test_one_rank_a_node_sends_through_one_nic() -> None:
    """NVIDIA/nccl issue 1250: with each rank more a node, an all-reduce is faster."""
    rates = [
        bandwidth(H100, tuple(range(num)) + tuple(range(8, 8 + num)))
        for num in (1, 2, 4, 8)
    ]
    assert rates == sorted(rates)
    assert H100.nic_rate_bytes_per_s(1) == 48e9
    assert rates[0] == pytest.approx(48e9, rel=0.05)
    assert H100.nic_rate_bytes_per_s(8) == 8 * 48e9


def test_a_tree_only_where_two_nodes_add_in_their_switches() -> None:
    both = tuple(range(16))
    assert H100.uses_tree(H100.layout(both), GIB)
    assert not A100.uses_tree(A100.layout(both), GIB)
    four = tuple(range(32))
    assert not H100.uses_tree(H100.layout(four), GIB)
    assert not H100.uses_tree(H100.layout(tuple(range(8))), GIB)


def test_the_ring_over_many_nodes_reaches_what_the_slower_part_gives() -> None:
    """NVIDIA/nccl-tests issue 309: four H100 nodes, ring: 369 GB/s of bus bandwidth."""
    bus = bandwidth(H100, tuple(range(32))) * 2 * 31 / 32
    assert bus == pytest.approx(369e9, rel=0.05)


def test_two_a100_nodes_are_held_by_their_nics() -> None:
    bus = bandwidth(A100, tuple(range(16))) * 2 * 15 / 16
    assert bus == pytest.approx(8 * 24e9, rel=0.02)


def test_one_nic_a_node_is_far_slower() -> None:
    slow = hardware("2x dgx-h100 ethernet").network
    both = tuple(range(16))
    assert bandwidth(H100, both) > 15 * bandwidth(slow, both)
    assert bandwidth(slow, both) < 12e9


def test_ranks_that_nobody_measured_follow_the_nearest_ring() -> None:
    few = replace(A100, ring={4: A100.ring[4]}, all_reduce={4: A100.ring[4]})
    eight = few.ring_time(few.layout(tuple(range(8))), GIB)
    four = few.ring_time(few.layout((0, 1, 2, 3)), GIB)
    assert eight.latency_s == pytest.approx(four.latency_s * 7 / 3)
    assert eight.moving_s == pytest.approx(four.moving_s * (14 / 8) / (6 / 4))


def test_scaling_divides_every_moving_part_and_multiplies_every_latency() -> None:
    half = H100.scaled(rate=0.5, latency=3.0)
    for ranks in ((0, 1), tuple(range(8)), (0, 8), tuple(range(16))):
        before = H100.all_reduce_time(H100.layout(ranks), GIB)
        after = half.all_reduce_time(half.layout(ranks), GIB)
        assert after.latency_s == pytest.approx(3 * before.latency_s)
        assert after.moving_s == pytest.approx(2 * before.moving_s)


@pytest.mark.parametrize(
    "field",
    ["port_bytes_per_s", "nic_bytes_per_s", "hop_s", "num_nics", "ranks_per_node"],
)
@pytest.mark.parametrize("value", [None, -1.0, nan, inf, "fast", True])
def test_numbers_that_no_network_has_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{field} of 'a network' must be .*got"):
        replace(H100, **{field: value})


@pytest.mark.parametrize("field", ["all_reduce", "ring"])
def test_a_network_without_times_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match="labkit bench comm"):
        replace(H100, **{field: {}})
    with pytest.raises(UsageError, match=rf"{field} has them for \[1, 2\]"):
        replace(H100, **{field: {1: H100.message, 2: H100.message}})
