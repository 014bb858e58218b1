"""What each kind asks of the network: bytes by the formula, times by the curve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.record.events import Kind
from labkit.replay.catalog import hardware
from labkit.replay.collectives import capacity_bytes_per_s, demand
from labkit.replay.curve import Curve
from labkit.replay.machine import Demand
from labkit.replay.network import Network
from tests.replay.issued import alone_s, bytes_on, comm

S, N = 4096, 4
ALPHA_S, RATE = 1e-3, 1e6  # Of an edge of a ring: every time below follows from them.
GROUP = (0, 1, 2, 3)


def network(ranks_per_node: int = 8, num_nics: int = 1) -> Network:
    """Rings of 1 MB/s an edge, NICs of 0.1 MB/s."""
    ring = {
        n: Curve.line(2 * (n - 1) * ALPHA_S, RATE * n / (2 * (n - 1)))
        for n in range(2, 9)
    }
    return Network(
        all_reduce=ring,
        ring=ring,
        message=Curve.line(ALPHA_S, RATE),
        port_bytes_per_s=RATE,
        ranks_per_node=ranks_per_node,
        num_nodes=None,
        num_nics=num_nics,
        nic_bytes_per_s=RATE / 10,
        hop_s=10 * ALPHA_S,
    )


def ask(kind: Kind, num_bytes: int = S, **fields: object) -> Demand:
    return demand(network(), comm(kind, num_bytes, **fields), GROUP)


def even(num_bytes: float) -> dict[tuple[str, int], float]:
    return {(way, rank): num_bytes for rank in GROUP for way in ("out", "in")}


@pytest.mark.parametrize(
    ("kind", "payload", "edge_bytes", "steps"),
    [
        ("all_reduce", S, 2 * (N - 1) / N * S, 2 * (N - 1)),
        ("reduce_scatter", S, (N - 1) / N * S, N - 1),
        ("all_gather", S // N, (N - 1) / N * S, N - 1),
        ("all_to_all", S, (N - 1) / N * S, N - 1),
    ],
)
def test_even_collectives(
    kind: Kind, payload: int, edge_bytes: float, steps: int
) -> None:
    asked = ask(kind, payload)
    assert asked.latency_s == pytest.approx(steps * ALPHA_S)
    assert asked.moving_s == pytest.approx(edge_bytes / RATE)
    assert bytes_on(asked) == pytest.approx(even(edge_bytes))


def test_a_broadcast_puts_the_tensor_on_each_edge_of_a_chain_from_the_root() -> None:
    asked = ask("broadcast", peer=2)
    assert asked.moving_s == pytest.approx(S / RATE)
    ways = [("out", 2), ("in", 0), ("out", 0), ("in", 1), ("out", 1), ("in", 3)]
    assert bytes_on(asked) == dict.fromkeys(ways, float(S))


def test_a_reduce_is_a_broadcast_backwards() -> None:
    asked = ask("reduce", peer=2)
    assert alone_s(asked) == alone_s(ask("broadcast", peer=2))
    ways = [("in", 2), ("out", 0), ("in", 0), ("out", 1), ("in", 1), ("out", 3)]
    assert bytes_on(asked) == dict.fromkeys(ways, float(S))


@pytest.mark.parametrize(
    ("kind", "towards", "away"), [("gather", "in", "out"), ("scatter", "out", "in")]
)
def test_a_gather_meets_at_the_root(kind: Kind, towards: str, away: str) -> None:
    asked = ask(kind, S, peer=1)
    assert asked.moving_s == pytest.approx((N - 1) * S / RATE)
    others = {(away, rank): float(S) for rank in (0, 2, 3)}
    assert bytes_on(asked) == {(towards, 1): (N - 1) * S, **others}


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_message_is_alpha_and_beta(kind: Kind) -> None:
    asked = demand(network(), comm(kind, S), (3, 1))
    assert (asked.latency_s, asked.moving_s) == pytest.approx((ALPHA_S, S / RATE))
    assert bytes_on(asked) == {("out", 3): S, ("in", 1): S}


@pytest.mark.parametrize("kind", ["barrier", "new_group"])
def test_a_barrier_is_the_smallest_all_reduce(kind: Kind) -> None:
    smallest = ask("all_reduce", 0)
    asked = ask(kind, 0)
    assert (asked.latency_s, asked.moving_s) == (smallest.latency_s, 0.0)
    assert asked.links == ()


def test_an_uneven_exchange_takes_what_leaves_or_comes_whichever_is_more() -> None:
    """Rank 1 keeps 100 elements, sends 10 to each other one, gets 50 from each."""
    asked = ask(
        "all_to_all", 4 * 130, rank=1,
        send_splits=(10, 100, 10, 10), recv_splits=(50, 100, 50, 50),
    )  # fmt: skip
    assert bytes_on(asked) == pytest.approx(even(4 * 150))
    assert asked.moving_s == pytest.approx(4 * 150 / RATE)


def test_an_exchange_of_nothing_takes_its_latency() -> None:
    asked = ask("all_to_all", 0, send_splits=(0,) * 4, recv_splits=(0,) * 4)
    assert asked.moving_s == 0
    assert asked.links == ()


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "barrier", "all_to_all"])
def test_alone_in_a_group_nothing_moves(kind: Kind) -> None:
    assert demand(network(), comm(kind, S), (5,)) == Demand(0.0, 0.0)


def test_across_nodes_each_passes_an_edge_on_by_its_nics() -> None:
    """Four ranks on two nodes: every edge carries 1.5 S, the NICs too."""
    asked = demand(network(ranks_per_node=2), comm("all_reduce", S), GROUP)
    edge = 1.5 * S
    assert asked.moving_s == pytest.approx(edge / (RATE / 10))
    assert asked.latency_s == pytest.approx(2 * ALPHA_S + 2 * 10 * ALPHA_S)
    nics = {(way, node): edge for node in (0, 1) for way in ("nic_out", "nic_in")}
    assert bytes_on(asked) == pytest.approx({**even(edge), **nics})


def test_a_message_between_nodes_takes_one_nic_and_a_hop() -> None:
    asked = demand(network(ranks_per_node=2, num_nics=2), comm("send", S), (1, 2))
    assert asked.latency_s == pytest.approx(11 * ALPHA_S)
    assert asked.moving_s == pytest.approx(S / (RATE / 10))
    assert bytes_on(asked)["nic_out", 0] == bytes_on(asked)["nic_in", 1] == S


def test_a_broadcast_crosses_to_each_node_once() -> None:
    asked = demand(network(ranks_per_node=2), comm("broadcast", S, peer=3), GROUP)
    on = bytes_on(asked)
    assert {link: num for link, num in on.items() if link[0].startswith("nic")} == {
        ("nic_out", 1): S, ("nic_in", 0): S,
    }  # fmt: skip


def test_a_gather_crosses_with_what_other_nodes_have() -> None:
    asked = demand(network(ranks_per_node=1), comm("gather", S, peer=0), GROUP)
    on = bytes_on(asked)
    assert on["nic_in", 0] == 3 * S
    assert [on["nic_out", node] for node in (1, 2, 3)] == [S] * 3
    assert asked.moving_s == pytest.approx(3 * S / (RATE / 10))


def test_an_exchange_crosses_with_what_is_for_other_nodes() -> None:
    """Of 3 S / 4 that a rank sends, two of three parts are for the other node."""
    asked = demand(network(ranks_per_node=2), comm("all_to_all", S), GROUP)
    crossing = 2 * (0.75 * S) * 2 / 3
    assert bytes_on(asked)["nic_out", 0] == pytest.approx(crossing)
    assert asked.moving_s == pytest.approx(crossing / (RATE / 10))


def cases() -> Iterator[tuple[str, Kind, tuple[int, ...]]]:
    kinds: tuple[Kind, ...] = (
        "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
        "reduce", "gather", "scatter",
    )  # fmt: skip
    for name in (
        "dgx-a100",
        "dgx-h100",
        "2x dgx-h100 infiniband",
        "2x dgx-a100 ethernet",
    ):
        groups = [(0, 1), (0, 3, 5), tuple(range(8))]
        if name.startswith("2x"):
            groups += [(0, 8), (0, 1, 2, 8), tuple(range(16))]
        for kind in kinds:
            yield from ((name, kind, group) for group in groups)


@pytest.mark.parametrize(("name", "kind", "group"), list(cases()))
def test_no_transfer_asks_more_of_a_link_than_it_carries(
    name: str, kind: Kind, group: tuple[int, ...]
) -> None:
    model = hardware(name)
    last_s = 0.0
    for size in (1, 1 << 10, 1 << 20, 1 << 26, 1 << 32):
        asked = model.demand(comm(kind, size, peer=group[-1]), group)
        for link, num_bytes in asked.links:
            carried = asked.moving_s * capacity_bytes_per_s(model.network, link)
            assert num_bytes <= carried * (1 + 1e-9)
        assert alone_s(asked) >= last_s  # More bytes never take less.
        last_s = alone_s(asked)
