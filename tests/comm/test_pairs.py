"""Every autograd pair against plain PyTorch on one process: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.comm import pairs
from labkit.errors import UsageError
from tests.comm import pair_programs as programs

Clusters = Callable[[int], Cluster]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    kept: dict[int, Cluster] = {}

    def of(size: int) -> Cluster:
        if size not in kept:
            kept[size] = Cluster(size, device="cpu", quiet=True, live=False)
        return kept[size]

    yield of
    for cluster in kept.values():
        cluster.close()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", programs.cases())
def test_values_and_gradients_are_those_of_one_process(
    clusters: Clusters, name: str, size: int
) -> None:
    got = clusters(size).run(programs.on_a_rank, name).results
    for (y, grad), (right_y, right_grad) in zip(
        got, programs.on_one_process(name, size), strict=True
    ):
        torch.testing.assert_close(y, right_y, rtol=0, atol=0)
        torch.testing.assert_close(grad, right_grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("copy", ["all_reduce"]), ("all_reduce", ["all_reduce"]),
        ("split 0", ["all_gather"]), ("join 1", ["all_gather"]),
        ("all_gather 0", ["all_gather", "reduce_scatter"]),
        ("reduce_scatter 1", ["reduce_scatter", "all_gather"]),
        ("all_to_all", ["all_to_all", "all_to_all"]),
    ],
)  # fmt: skip
def test_the_backward_runs_the_opposite_and_nothing_else(
    clusters: Clusters, name: str, kinds: list[str]
) -> None:
    run = clusters(2).run(programs.on_a_rank, name)
    issued = [e.kind for e in run.events[0] if type(e).__name__ == "CommStart"]
    assert issued == kinds


def test_a_size_that_does_not_divide_is_refused_before_anything_is_sent(
    clusters: Clusters,
) -> None:
    def refused() -> list[str]:
        group, told = dist.group.WORLD, []
        assert group is not None
        for call in (pairs.split, pairs.reduce_scatter):
            try:
                call(torch.ones(3, 7), group, dim=1)
            except UsageError as error:
                told.append(str(error))
        try:
            pairs.all_to_all(torch.ones(3), group, send_rows=[1, 1], recv_rows=[1, 1])
        except UsageError as error:
            told.append(str(error))
        return told

    run = clusters(2).run(refused)
    for split, scatter, swap in run.results:
        assert "dimension 1 must divide by the group's 2 ranks" in split
        assert "Pad it to 8" in scatter
        assert "3 in all as x has" in swap
    assert run.record.traffic == ()
