"""Every algorithm against one process: all world sizes, lengths, dtypes and roots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from labkit import Cluster, mark
from labkit.checks import verify
from labkit.comm import collectives as c
from labkit.comm.collectives.ring import SEGMENT_BYTES
from labkit.errors import RankFailed, UsageError
from tests.comm.collectives import programs
from tests.comm.collectives.programs import PROGRAMS, world

NAMES = tuple(PROGRAMS)


def ranks(size: int, backend: str = "threads") -> Cluster:
    return Cluster(size, backend=backend, rendezvous=True, quiet=True, live=False)


def check(size: int, by_rank: list[list[Any]]) -> None:
    """Whole numbers below 128: exact in every dtype, however they are added."""
    for number, case in enumerate(programs.cases(size, NAMES)):
        name, num_elements, dtype, root = case
        expected = PROGRAMS[name][1](size, num_elements, dtype, root)
        for rank, wanted in enumerate(expected):
            if wanted is not None:
                got = by_rank[rank][number]
                assert equal(got, wanted), (case, rank, got, wanted)


def equal(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, Tensor):
        return got.dtype == wanted.dtype and torch.equal(got, wanted)
    return len(got) == len(wanted) and all(map(equal, got, wanted))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8])
def test_values_are_those_of_one_process(size: int) -> None:
    with ranks(size) as cluster:
        check(size, cluster.run(programs.grid, size, NAMES).results)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_values_are_right_on_processes(size: int) -> None:
    with ranks(size, "gloo") as cluster:
        check(size, cluster.run(programs.grid, size, NAMES).results)


def test_ranks_of_a_subgroup_are_counted_in_it() -> None:
    def in_a_group() -> list[Tensor]:
        group = dist.new_group([3, 1, 2])
        if dist.get_rank() == 0:
            return []
        x_N = torch.full((7,), float(dist.get_rank()))
        tree_N = x_N.clone()
        c.broadcast_tree(tree_N, 0, group)
        c.all_reduce_ring(x_N, group)
        chunk_n = c.reduce_scatter_direct(x_N, group)
        return [tree_N, x_N, chunk_n]

    with ranks(4) as cluster:
        results = cluster.run(in_a_group).results
        first = cluster.run(
            lambda: dist.get_process_group_ranks(dist.new_group([3, 1, 2]))
        ).results[1][0]
    for tree_N, x_N, chunk_n in results[1:]:
        assert tree_N.tolist() == [float(first)] * 7
        assert x_N.tolist() == [6.0] * 7
        assert chunk_n.tolist() == [18.0] * chunk_n.numel()


def test_all_ranks_get_the_same_bits_from_a_ring() -> None:
    def irrational() -> Tensor:
        x_N = torch.randn(
            1001, generator=torch.Generator().manual_seed(dist.get_rank())
        )
        c.all_reduce_ring(x_N, world())
        return x_N

    with ranks(5) as cluster:
        first, *others = cluster.run(irrational).results
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("backend", ["threads", "gloo"])
@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_a_chunk_of_several_segments_is_summed_whole(
    segments: int, over: int, backend: str, lots: dict[str, Cluster]
) -> None:
    """Chunks that end just before, on and just after the end of a segment."""

    def in_segments() -> list[int]:
        count = SEGMENT_BYTES // 8 * segments + over
        x_N = torch.arange(3 * count + 1) * (dist.get_rank() + 1)
        c.all_reduce_ring(x_N, world())
        return torch.nonzero(x_N != torch.arange(3 * count + 1) * 6).flatten().tolist()

    assert lots[backend].run(in_segments).results == [[], [], []]


@pytest.fixture(scope="module")
def lots() -> Iterator[dict[str, Cluster]]:
    with ranks(3) as threads, ranks(3, "gloo") as processes:
        yield {"threads": threads, "gloo": processes}


def bf16_error(call: Any) -> float:
    """The largest relative error of sums of numbers from 1 to 2, in bfloat16."""
    rank, size = dist.get_rank(), dist.get_world_size()
    every = torch.stack([
        1 + torch.rand(4096, generator=torch.Generator().manual_seed(each)).bfloat16()
        for each in range(size)
    ])  # fmt: skip
    exact = c.chunks(every.double().sum(0), size)[rank]
    chunk_n = call(every[rank].clone(), world())
    return float(((chunk_n.double() - exact) / exact).abs().max())


def test_a_direct_sum_in_bf16_is_rounded_once_and_a_rings_again_and_again() -> None:
    half_an_ulp = 2.0**-8
    with ranks(8) as cluster:
        direct = max(cluster.run(bf16_error, c.reduce_scatter_direct).results)
        ring = max(cluster.run(bf16_error, c.reduce_scatter_ring).results)
    assert direct <= half_an_ulp
    assert ring > 1.5 * half_an_ulp


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_barrier_lets_nobody_through_before_the_last_has_come(size: int) -> None:
    """Not by clocks: a chain of messages tells every rank of every other."""

    def come() -> None:
        mark("came")
        c.barrier(world())
        mark("left")

    with ranks(size) as cluster:
        record = cluster.run(come).events
    came = [verify.find_mark(record, rank, "came") for rank in range(size)]
    left = [verify.find_mark(record, rank, "left") for rank in range(size)]
    assert all(verify.happened_before(record, a, b) for a in came for b in left)


def test_any_shape_is_summed_in_place_and_a_gap_in_memory_is_refused() -> None:
    def shaped() -> Tensor:
        x = torch.ones(3, 4)
        c.all_reduce_ring(x, world())
        return x

    def with_gaps() -> None:
        c.all_reduce_ring(torch.ones(4, 4)[:, ::2], world())

    with ranks(3) as cluster:
        assert all(
            torch.equal(x, torch.full((3, 4), 3.0)) for x in cluster.run(shaped).results
        )
        with pytest.raises(RankFailed, match=r"one after another in memory.*\(4, 2\)"):
            cluster.run(with_gaps)


@pytest.mark.parametrize(
    ("send", "recv_sizes", "message"),
    [
        ([1], [1, 1], "gave 1 tensors and 2 sizes"),
        ([1, 1], [1], "gave 2 tensors and 1 sizes"),
        ([1, 1], [3, 3], "has 1 elements for itself and expects 3"),
    ],
)
def test_all_to_all_refuses_what_does_not_fit_before_it_sends(
    send: list[int], recv_sizes: list[int], message: str
) -> None:
    def call() -> str:
        try:
            c.all_to_all([torch.ones(n) for n in send], recv_sizes, world())
        except UsageError as error:
            return str(error)
        return ""

    with ranks(2) as cluster:
        run = cluster.run(call)
    assert message in run.results[0]


@pytest.mark.parametrize(
    ("num_elements", "num_chunks", "sizes"),
    [(10, 4, (3, 3, 2, 2)), (5, 4, (2, 1, 1, 1)), (0, 3, (0, 0, 0)), (2, 3, (1, 1, 0))],
)
def test_chunks_are_balanced(
    num_elements: int, num_chunks: int, sizes: tuple[int, ...]
) -> None:
    assert c.chunk_sizes(num_elements, num_chunks) == sizes
    x_N = torch.arange(num_elements)
    assert torch.equal(torch.cat(c.chunks(x_N, num_chunks)), x_N)
