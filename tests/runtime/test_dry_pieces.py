"""Dry runs of collectives with a tensor for each rank: as many as a backend takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from labkit import Cluster
from labkit.errors import RankFailed
from labkit.record.program import Comm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, quiet=True) as made:
        yield made


def at_root(pieces: list[Tensor]) -> list[Tensor] | None:
    return pieces if dist.get_rank() == 0 else None


Body = Callable[[list[Tensor], Tensor], object]
BODIES: dict[str, Body] = {
    "all_gather": lambda pieces, x: dist.all_gather(pieces, x),
    "reduce_scatter": lambda pieces, x: dist.reduce_scatter(x, pieces),
    "all_to_all": lambda pieces, x: dist.all_to_all(
        [torch.empty(2) for _ in pieces], pieces
    ),
    "gather": lambda pieces, x: dist.gather(x, at_root(pieces)),
    "scatter": lambda pieces, x: dist.scatter(x, at_root(pieces)),
}


def with_pieces(body: Body, num_pieces: int) -> None:
    body([torch.ones(2) for _ in range(num_pieces)], torch.ones(2))


@pytest.mark.parametrize("kind", BODIES)
def test_a_tensor_for_each_rank(cluster: Cluster, kind: str) -> None:
    program = cluster.dry(with_pieces, BODIES[kind], 2).record
    assert [e.kind for e in program if isinstance(e, Comm)] == [kind, kind]
    with pytest.raises(RankFailed, match=r"each rank of its group, 2; rank . gave 3"):
        cluster.dry(with_pieces, BODIES[kind], 3)
