"""Dry runs of what torch builds on meshes: DTensor, FSDP2, functional collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from labkit import Cluster
from labkit.errors import UsageError
from labkit.record.program import Comm, Program, Wait


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, quiet=True) as made:
        yield made


def moved(program: Program) -> list[tuple[Any, ...]]:
    """What each rank transfers, of which type, and where it waits."""
    comms = {(e.rank, e.id): e.kind for e in program if isinstance(e, Comm)}
    return [
        (e.rank, e.kind, e.group, e.peer, e.logical_bytes, e.dtype, e.op, e.recv_splits)
        if isinstance(e, Comm)
        else (e.rank, "wait", comms[e.rank, e.target])
        for e in program
        if isinstance(e, (Comm, Wait))
    ]


def sharded() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    for layer in (*net, net):
        fully_shard(layer, mesh=mesh)
    net(torch.randn(2, 4)).sum().backward()


def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    net(torch.randn(4, 8)).sum().backward()


def functionals() -> None:
    x_TD, world = torch.ones(4, 6), dist.group.WORLD
    functional.all_reduce(x_TD, "avg", world) + 1
    functional.all_gather_single(x_TD, 0, world) + 1
    functional.reduce_scatter_single(x_TD, "sum", 0, world) + 1
    splits = [3, 1] if dist.get_rank() == 0 else [1, 3]
    functional.all_to_all_single(x_TD, splits, splits, world) + 1
    functional.broadcast(x_TD, 1, world) + 1


@pytest.mark.parametrize("body", [sharded, tensor_parallel, functionals])
def test_a_dry_record_has_the_transfers_of_the_real_one(
    cluster: Cluster, body: Callable[[], None]
) -> None:
    assert moved(cluster.dry(body).record) == moved(cluster.run(body).record) != []


def grid() -> None:
    """Two ranks a row: each rank's row and column are those of a real run."""
    rank, rows = dist.get_rank(), dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (rows, 2), mesh_dim_names=("dp", "tp"))
    assert list(mesh.get_coordinate() or ()) == [rank // 2, rank % 2]
    assert mesh["dp"].mesh.tolist() == list(range(rank % 2, 2 * rows, 2))
    assert DeviceMesh("cpu", [0, 1], _init_backend=False).size() == 2
    for axis in ("dp", "tp"):
        dist.all_reduce(torch.ones(3), group=mesh.get_group(axis))


def test_a_mesh_has_its_ranks(cluster: Cluster) -> None:
    program = cluster.dry(grid, world_size=6).record
    (last,) = [[e.group for e in program.of(5) if isinstance(e, Comm) and
                e.logical_bytes == 12]]  # fmt: skip
    assert [program.groups[group] for group in last] == [(1, 3, 5), (4, 5)]


def coalesced() -> None:
    functional.all_reduce_coalesced([torch.ones(3)], "sum", dist.group.WORLD)


def replicated() -> None:
    nn.parallel.DistributedDataParallel(nn.Linear(4, 4))


def formatted() -> None:
    print(f"{torch.randn(()):.3f}")


def saved() -> None:
    torch.save(torch.ones(3), "/dev/null")


@pytest.mark.parametrize(
    ("body", "words"),
    [(coalesced, "calls all_reduce_coalesced, which a dry run cannot issue"),
     (replicated, "needs the data"), (formatted, "needs the data"),
     (saved, "needs the data")],
)  # fmt: skip
def test_what_would_go_wrong_or_unrecorded_is_refused(
    cluster: Cluster, body: Callable[[], None], words: str
) -> None:
    with pytest.raises(UsageError, match=rf"line \d+ of {body.__name__} {words}"):
        cluster.dry(body)
