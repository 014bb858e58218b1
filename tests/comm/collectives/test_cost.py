"""What each algorithm sends, in how many rounds, and how much scratch it needs.

Counted in the record, against closed forms: exact for each rank, message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, log2
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.bench.collectives import CALLS
from labkit.checks import verify
from labkit.comm import collectives as c
from labkit.comm.collectives.price import price
from labkit.errors import UsageError
from labkit.record.program import Alloc, Free, Program
from labkit.replay.machine import AlphaBeta
from tests.comm.collectives.programs import world

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
ITEM = 4


class Sent(NamedTuple):
    """What one rank sent: elements, and messages."""

    elements: int
    messages: int


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[[int], Cluster]]:
    kept: dict[int, Cluster] = {}

    def of(size: int) -> Cluster:
        if size not in kept:
            kept[size] = Cluster(
                size, backend="threads", rendezvous=True, quiet=True, live=False
            )
        return kept[size]

    yield of
    for cluster in kept.values():
        cluster.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[Cluster]:
    with Cluster(4, rendezvous=True, quiet=True, live=False, device="cpu") as cluster:
        yield cluster


def sent(program: Program) -> list[Sent]:
    """By rank; only messages are ours, so anything else is a fault."""
    found = {rank: Sent(0, 0) for rank in program.header.ranks}
    for row in program.traffic:
        assert row.kind in ("send", "recv"), row
        if row.kind == "send":
            elements, messages = found[row.rank]
            found[row.rank] = Sent(
                elements + row.payload_bytes // ITEM, messages + row.num_calls
            )
    return list(found.values())


def naive_all_reduce(p: int, n: int) -> list[Sent]:
    return [Sent((p - 1) * n, p - 1), *[Sent(n, 1)] * (p - 1)]


def to_root(p: int, n: int) -> list[Sent]:
    return [Sent(0, 0), *[Sent(n, 1)] * (p - 1)]


def from_root(p: int, n: int) -> list[Sent]:
    return [Sent((p - 1) * n, p - 1), *[Sent(0, 0)] * (p - 1)]


def tree(p: int, n: int) -> list[Sent]:
    """Each place sends to those whose number has its own as all but the top bit."""
    children = [
        sum(place + (1 << k) < p for k in range(place.bit_length(), 4))
        for place in range(p)
    ]
    return [Sent(each * n, each) for each in children]


def tree_all_reduce(p: int, n: int) -> list[Sent]:
    down, up = tree(p, n), to_root(p, n)
    return [Sent(a[0] + b[0], a[1] + b[1]) for a, b in zip(down, up, strict=True)]


def all_chunks_but(kept: Callable[[int, int], int]) -> Callable[[int, int], list[Sent]]:
    def formula(p: int, n: int) -> list[Sent]:
        sizes = c.chunk_sizes(n, p)
        return [Sent(n - sizes[kept(rank, p)], p - 1) for rank in range(p)]

    return formula


def ring_all_reduce(p: int, n: int) -> list[Sent]:
    sizes = c.chunk_sizes(n, p)
    return [
        Sent(2 * n - sizes[rank] - sizes[(rank + 1) % p], 2 * (p - 1))
        for rank in range(p)
    ]


class Case(NamedTuple):
    """What each rank sends in an algorithm, and how many rounds it takes."""

    sent: Callable[[int, int], list[Sent]]
    rounds: Callable[[int], int]


def levels(p: int) -> int:
    return ceil(log2(p))


CASES = {
    "broadcast_naive": Case(from_root, lambda p: p - 1),
    "reduce_naive": Case(to_root, lambda p: p - 1),
    "all_reduce_naive": Case(naive_all_reduce, lambda p: 2 * (p - 1)),
    "broadcast_tree": Case(tree, levels),
    "reduce_tree": Case(to_root, levels),
    "all_reduce_tree": Case(tree_all_reduce, lambda p: 2 * levels(p)),
    "reduce_scatter_ring": Case(all_chunks_but(lambda r, p: r), lambda p: p - 1),
    "reduce_scatter_direct": Case(all_chunks_but(lambda r, p: r), lambda p: p - 1),
    "all_gather_ring": Case(all_chunks_but(lambda r, p: (r + 1) % p), lambda p: p - 1),
    "all_reduce_ring": Case(ring_all_reduce, lambda p: 2 * (p - 1)),
}


def on_an_array(call: Callable[..., Any], num_elements: int) -> None:
    call(torch.ones(num_elements), world())


@pytest.mark.parametrize("num_elements", [257, 64])
@pytest.mark.parametrize("name", CASES)
def test_each_rank_sends_exactly_what_is_said(
    clusters: Callable[[int], Cluster], name: str, num_elements: int
) -> None:
    case = CASES[name]
    for size in SIZES:
        run = clusters(size).run(on_an_array, CALLS[name], num_elements)
        assert sent(run.record) == case.sent(size, num_elements), size
        assert verify.rounds(run.events) == case.rounds(size), size


@pytest.mark.parametrize("size", SIZES)
def test_halving_sends_as_little_as_a_ring_in_fewer_rounds(
    clusters: Callable[[int], Cluster], size: int
) -> None:
    num_elements, power = 256, 1 << (size.bit_length() - 1)
    run = clusters(size).run(on_an_array, c.all_reduce_halving, num_elements)
    walk = Sent(2 * num_elements * (power - 1) // power, 2 * levels(power))
    beyond = size - power
    partners = [Sent(walk.elements + num_elements, walk.messages + 1)] * beyond
    expected = [
        *partners,
        *[walk] * (power - beyond),
        *[Sent(num_elements, 1)] * beyond,
    ]
    assert sent(run.record) == expected
    assert verify.rounds(run.events) == walk.messages + 2 * (beyond > 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_elements", [257, 64, 5])
@pytest.mark.parametrize(
    "call",
    [c.all_reduce_naive, c.all_reduce_tree, c.all_reduce_ring, c.all_reduce_halving],
)
def test_all_all_reduces_send_the_same_in_all(
    clusters: Callable[[int], Cluster], call: Any, num_elements: int, size: int
) -> None:
    run = clusters(size).run(on_an_array, call, num_elements)
    total = sum(each.elements for each in sent(run.record))
    assert total == 2 * (size - 1) * num_elements


@pytest.mark.parametrize("size", [2, 4, 8])
def test_halving_near_partners_first_keeps_bytes_inside_a_node(
    clusters: Callable[[int], Cluster], size: int
) -> None:
    """Two nodes of half the ranks each: S leaves a node, whatever their size."""
    num_elements = 64
    run = clusters(size).run(on_an_array, c.all_reduce_halving, num_elements)
    half = size // 2
    leaving = sum(
        row.payload_bytes // ITEM for row in run.record.traffic
        if row.kind == "send" and row.peer is not None
        and row.rank < half <= row.peer
    )  # fmt: skip
    assert leaving == num_elements


@pytest.mark.parametrize("name", CALLS)
def test_the_alpha_beta_model_is_what_replay_gives(
    clusters: Callable[[int], Cluster], name: str
) -> None:
    """The rounds on a machine without beta, the bytes on one without alpha."""
    rounds_only = AlphaBeta(alpha_s=1.0, beta_s_per_byte=1e-15)
    bytes_only = AlphaBeta(alpha_s=0.0, beta_s_per_byte=1.0 / (ITEM * 840))
    for size in (1, 3, 4, 6):
        run = clusters(size).run(on_an_array, CALLS[name], 840, record="work")
        expected = price(name, size)
        rounds = run.replay(rounds_only).record.duration_s
        assert rounds == pytest.approx(expected.rounds, abs=1e-6), size
        if expected.arrays:
            arrays = run.replay(bytes_only).record.duration_s
            assert arrays == pytest.approx(expected.arrays, rel=0.02), size


def test_a_price_is_of_a_collective_and_of_ranks() -> None:
    with pytest.raises(UsageError, match=r"all_reduce_ring, .*'ring' was asked for"):
        price("ring", 4)
    with pytest.raises(UsageError, match="at least 1 rank; 0 were given"):
        price("gather", 0)
    assert price("all_reduce_ring", 4).seconds(100, 1.0, 0.1) == pytest.approx(21.0)


def hot_spots(run: Any) -> list[int]:
    """Messages that the busiest rank receives in each round of rotating pairs."""
    rounds: list[list[int]] = []
    for events in run.events:
        peers = [e.peer for e in events if getattr(e, "kind", None) == "send"]
        rounds.append(peers)
    return [
        max(targets.count(rank) for rank in targets)
        for targets in zip(*rounds, strict=True)
    ]


def exchanged(num_elements: int) -> None:
    size = dist.get_world_size()
    c.all_to_all([torch.ones(num_elements)] * size, [num_elements] * size, world())


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_in_an_all_to_all_each_rank_receives_once_a_round(
    clusters: Callable[[int], Cluster], size: int
) -> None:
    run = clusters(size).run(exchanged, 6)
    assert sent(run.record) == [Sent(6 * (size - 1), size - 1)] * size
    assert hot_spots(run) == [1] * (size - 1)


def test_nothing_is_sent_where_there_is_nothing(
    clusters: Callable[[int], Cluster],
) -> None:
    run = clusters(4).run(exchanged, 0)
    assert sent(run.record) == [Sent(0, 0)] * 4


def peak_bytes(program: Program, rank: int) -> int:
    """The most that was held at once of what was made since the first transfer."""
    held = peak = 0
    for event in program.of(rank):
        if isinstance(event, Alloc):
            held += event.num_bytes
        elif isinstance(event, Free):
            held -= event.num_bytes
        peak = max(peak, held)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (c.all_reduce_ring, lambda n: 2 * n), (c.reduce_scatter_ring, lambda n: 3 * n),
        (CALLS["all_gather_ring"], lambda n: 4 * n),
        (c.all_reduce_halving, lambda n: 3 * n),
        (c.reduce_scatter_direct, lambda n: 2 * n),
    ],
    ids=["all_reduce_ring", "reduce_scatter_ring", "all_gather_ring", "halving",
         "direct"],
)  # fmt: skip
def test_scratch_is_within_what_is_said(
    processes: Cluster, call: Any, extra: Any
) -> None:
    """Beside x itself, N elements: chunks of n = N / 4, the result among them."""
    num_elements = 4096
    record = processes.run(on_an_array, call, num_elements, record="work").record
    for rank in range(4):
        over = peak_bytes(record, rank) - ITEM * num_elements
        assert 0 < over <= ITEM * extra(num_elements // 4) + 64, over
