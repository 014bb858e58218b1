"""Programs that use all of torch.distributed, each the same on every kind of world.

Every function is run by four ranks and returns plain numbers. Run as a program, this
file plays them on a plain gloo world, with nothing of labkit, and saves what comes out:

    python torch_programs.py FOLDER
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 4
Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Add a program to the list."""
    PROGRAMS[function.__name__] = function
    return function


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers that differ from rank to rank and from place to place."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 5 + dist.get_rank() * 3) % 11
    return values.reshape(shape).to(dtype)


def named(*names: str) -> Callable[..., Any]:
    """torch.distributed's function by the first of its names that this torch has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def numbers(*tensors: torch.Tensor) -> list[Any]:
    """Tensors as lists, exactly."""
    return [tensor.detach().double().tolist() for tensor in tensors]


def small_model(seed: int = 0) -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


# Collectives.


@program
def all_reduce_of_every_op() -> Any:
    ops = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    out = []
    for op in ops:
        data = mine(6, dtype=torch.int64) + 1
        dist.all_reduce(data, getattr(dist.ReduceOp, op))
        out.append(data)
    return numbers(*out)


@program
def all_reduce_of_every_dtype() -> Any:
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8)
    out = [mine(6, dtype=dtype) for dtype in dtypes]
    for data in out:
        dist.all_reduce(data)
    return numbers(*out)


@program
def broadcast_from_each() -> Any:
    out = [mine(3) for _ in range(WORLD_SIZE)]
    for source, data in enumerate(out):
        dist.broadcast(data, source)
    return numbers(*out)


@program
def reduce_to_each() -> Any:
    out = [mine(3) for _ in range(WORLD_SIZE)]
    for target, data in enumerate(out):
        dist.reduce(data, target)
    return numbers(out[dist.get_rank()])


@program
def gather_and_scatter() -> Any:
    is_root = dist.get_rank() == 2
    parts = [torch.empty(2, 2) for _ in range(WORLD_SIZE)] if is_root else None
    dist.gather(mine(2, 2), parts, 2)
    back = torch.empty(2, 2)
    dist.scatter(back, [part * 2 for part in parts] if parts else None, 2)
    return numbers(back)


@program
def all_gather_in_each_form() -> Any:
    parts = [torch.empty(3) for _ in range(WORLD_SIZE)]
    dist.all_gather(parts, mine(3))
    whole = torch.empty(3 * WORLD_SIZE)
    named("all_gather_single", "all_gather_into_tensor")(whole, mine(3))
    return numbers(*parts, whole)


@program
def reduce_scatter_in_each_form() -> Any:
    out, single = torch.empty(2), torch.empty(2)
    dist.reduce_scatter(out, list(mine(8).split(2)))
    named("reduce_scatter_single", "reduce_scatter_tensor")(single, mine(8))
    return numbers(out, single)


@program
def all_to_all_in_each_form() -> Any:
    rank = dist.get_rank()
    even, uneven = torch.empty(8), torch.empty(sum(range(1, 5)), 2)
    dist.all_to_all_single(even, mine(8))
    dist.all_to_all_single(
        uneven, mine(4 * (rank + 1), 2), [1, 2, 3, 4], [rank + 1] * 4
    )
    parts = [torch.empty(2) for _ in range(WORLD_SIZE)]
    dist.all_to_all(parts, list(mine(8).split(2)))
    return numbers(even, uneven, *parts)


@program
def async_works_waited_in_any_order() -> Any:
    data = [mine(5) + i for i in range(4)]
    works = [dist.all_reduce(each, async_op=True) for each in data]
    for i in (2, 0, 3, 1):
        works[i].wait()
    works[0].wait()
    return numbers(*data), [work.is_completed() for work in works]


@program
def futures_of_works() -> Any:
    data = mine(5)
    work = dist.all_reduce(data, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    return numbers(doubled.wait())


@program
def barriers() -> Any:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    return dist.get_backend(), dist.get_world_size()


@program
def coalesced() -> Any:
    data = [mine(3), mine(4) + 1]
    dist.all_reduce_coalesced(data)
    return numbers(*data)


@program
def empty_tensors() -> Any:
    data = torch.empty(0)
    dist.all_reduce(data)
    dist.broadcast(data, 1)
    return numbers(data)


@program
def shapes_that_differ_but_hold_as_much() -> Any:
    data = mine(6) if dist.get_rank() % 2 else mine(6).reshape(2, 3)
    dist.all_reduce(data)
    return numbers(data.reshape(-1))


# Messages.


@program
def messages_with_tags_and_any_source() -> Any:
    rank = dist.get_rank()
    got = [torch.empty(2) for _ in range(WORLD_SIZE - 1)]
    if rank == 0:
        # A tag of its own: a rank that is done may be sending in the next program.
        sources = [dist.recv(data, tag=5) for data in got]
        return sorted(sources), numbers(torch.stack(got).sum(0))
    dist.send(mine(2), 0, tag=5)
    if rank == 1:
        sends = dist.isend(mine(2), 2, tag=8), dist.isend(mine(2) + 100, 2, tag=9)
        for work in sends:
            work.wait()
    elif rank == 2:
        dist.recv(got[1], 1, tag=9)
        dist.recv(got[0], 1, tag=8)
    return numbers(*got[:2]) if rank == 2 else None


@program
def ring_in_each_form() -> Any:
    rank, out = dist.get_rank(), []
    after, before = (rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE
    got = torch.empty(3)
    send = dist.isend(mine(3), after)
    dist.recv(got, before)
    send.wait()
    out.append(got)
    got = torch.empty(3)
    receive = dist.irecv(got, before)
    dist.send(mine(3), after)
    receive.wait()
    out.append(got)
    got = torch.empty(3)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(3), after), dist.P2POp(dist.irecv, got, before)]
    ):
        work.wait()
    return numbers(*out, got)


@program
def objects() -> Any:
    rank = dist.get_rank()
    every: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(every, {"rank": rank, "text": "x" * rank})
    at_root: list[Any] | None = [None] * WORLD_SIZE if rank == 1 else None
    dist.gather_object(("mine", rank), at_root, 1)
    from_root: list[Any] = [["a", rank], rank]
    dist.broadcast_object_list(from_root, 3)
    piece: list[Any] = [None]
    dist.scatter_object_list(piece, list("abcd") if rank == 0 else None, 0)
    told: list[Any] = [rank]
    if rank == 0:
        dist.send_object_list(["hello"], 1)
    elif rank == 1:
        dist.recv_object_list(told, 0)
    return every, at_root, from_root, piece, told


# Groups and meshes.


@program
def groups_of_every_make() -> Any:
    rank, out = dist.get_rank(), []
    own, _ = dist.new_subgroups(2)
    chosen, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    local = dist.new_group(
        [0, 1] if rank < 2 else [2, 3], use_local_synchronization=True
    )
    odd = dist.new_group([1, 3])
    for group in (own, chosen, local, *([odd] if rank in (1, 3) else [])):
        data = mine(2)
        dist.all_reduce(data, group=group)
        out.append(data)
    last = dist.get_process_group_ranks(chosen)
    dist.broadcast(out[1], last[1], group=chosen)
    return numbers(*out), last, dist.get_group_rank(chosen, rank)


@program
def mesh_of_two_dimensions() -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    out = []
    for name in ("dp", "tp"):
        data = mine(3)
        dist.all_reduce(data, group=mesh[name].get_group())
        out.append(data)
    flat = mesh._flatten("all")
    data = mine(2)
    dist.all_reduce(data, group=flat.get_group())
    return numbers(*out, data), mesh.get_coordinate()


@program
def functional_collectives() -> Any:
    group = dist.group.WORLD
    assert group is not None
    ranks = list(range(WORLD_SIZE))
    gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
    scatter = getattr(
        functional, "reduce_scatter_single", functional.reduce_scatter_tensor
    )
    out = [
        functional.all_reduce(mine(4), "sum", group),
        functional.all_reduce(mine(4), "max", ranks),
        functional.broadcast(mine(4), 2, group),
        gather(mine(4), 0, group),
        scatter(mine(8), "sum", 0, group),
        functional.all_to_all_single(mine(8), [2] * 4, [2] * 4, group),
        functional.permute_tensor(mine(4), [1, 2, 3, 0], group),
    ]
    out += functional.all_reduce_coalesced([mine(2), mine(3)], "sum", group)
    return numbers(*[functional.wait_tensor(each) for each in out])


@program
def differentiable_collectives() -> Any:
    from torch.distributed.nn import functional as differentiable

    x = mine(4).requires_grad_()
    y = differentiable.all_reduce(x * 2)
    parts = differentiable.all_gather(x)
    (y.sum() + sum(part.square().sum() for part in parts)).backward()
    assert x.grad is not None
    return numbers(y, x.grad)


# Techniques of torch's own.


def batches(count: int = 3) -> Iterator[torch.Tensor]:
    """This rank's inputs, real numbers."""
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    for _ in range(count):
        yield torch.randn(4, 8, generator=generator)


def trained(model: nn.Module, weights: Callable[[], list[torch.Tensor]]) -> Any:
    """Three steps, and the losses and weights that come of them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for x in batches():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return numbers(*losses, *weights())


@program
def ddp() -> Any:
    model = DistributedDataParallel(
        small_model(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True
    )
    return trained(model, lambda: list(model.parameters()))


@program
def ddp_static_graph() -> Any:
    model = DistributedDataParallel(small_model(), static_graph=True)
    return trained(model, lambda: list(model.parameters()))


@program
def ddp_with_unused_parameters() -> Any:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = small_model(), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    torch.manual_seed(1)
    model = DistributedDataParallel(Half(), find_unused_parameters=True)
    return trained(model, lambda: list(model.module.used.parameters()))


def _halved(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer() / 2, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@program
def ddp_without_sync_and_with_hook() -> Any:
    model = DistributedDataParallel(small_model())
    model.register_comm_hook(None, lambda _, bucket: _halved(bucket))
    first, second = batches(2)
    with model.no_sync():
        model(first).sum().backward()
    model(second).sum().backward()
    return numbers(*[p.grad for p in model.parameters() if p.grad is not None])


@program
def ddp_with_uneven_inputs() -> Any:
    model = DistributedDataParallel(small_model())
    with Join([model]):
        for x in batches(1 + dist.get_rank() % 2):
            model(x).sum().backward()
    return numbers(*[p.grad for p in model.parameters() if p.grad is not None])


@program
def fsdp() -> Any:
    model = small_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return trained(model, lambda: _full(model))


@program
def fsdp_of_mixed_precision() -> Any:
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = small_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mp_policy=policy)
    return trained(model, lambda: _full(model))


@program
def fsdp_of_two_dimensions() -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = small_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return trained(model, lambda: _full(model))


def _full(model: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor() for p in model.parameters() if isinstance(p, DTensor)]


@program
def dtensor() -> Any:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    torch.manual_seed(3)
    whole = torch.randn(8, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    partial = DTensor.from_local(mine(4, 4), mesh, [Partial()])
    return numbers(
        rows.to_local(),
        columns.to_local(),
        (rows @ columns).full_tensor(),
        partial.redistribute(mesh, [Replicate()]).to_local(),
        partial.redistribute(mesh, [Shard(0)]).to_local(),
        rows.sum().full_tensor(),
    )


class Block(nn.Module):
    """A norm and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


def _tensor_parallel(mesh: Any, *, sequence: bool) -> nn.Module:
    torch.manual_seed(5)
    up = ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate())
    down = RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    plan: dict[str, Any] = {"up": up, "down": down}
    if sequence:
        plan["norm"] = SequenceParallel()
    return parallelize_module(Block(), mesh, plan)


@program
def tensor_parallel() -> Any:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    model = _tensor_parallel(mesh, sequence=False)
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8)
    y = model(x)
    y.square().sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return numbers(
        y, *[g.full_tensor() if isinstance(g, DTensor) else g for g in grads]
    )


@program
def sequence_parallel() -> Any:
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    model = _tensor_parallel(mesh, sequence=True)
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8)
    local = x.chunk(WORLD_SIZE, dim=1)[dist.get_rank()].contiguous()
    y = model(local)
    y = y.to_local() if isinstance(y, DTensor) else y
    y.square().sum().backward()
    return numbers(y, *[g.full_tensor() for g in _grads(model)])


def _grads(model: nn.Module) -> list[DTensor]:
    return [p.grad for p in model.parameters() if isinstance(p.grad, DTensor)]


@program
def fsdp_of_tensor_parallel() -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _tensor_parallel(mesh["tp"], sequence=False)
    fully_shard(model, mesh=mesh["dp"])
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8) + dist.get_rank() // 2
    model(x).square().sum().backward()
    return numbers(*[g.full_tensor() for g in _grads(model)])


def _pipelined(schedule: Callable[..., Any]) -> Any:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    stage = PipelineStage(module, rank, WORLD_SIZE, torch.device("cpu"))
    runner = schedule(stage, n_microbatches=8, loss_fn=F.mse_loss)
    x = torch.linspace(-1, 1, 128).reshape(16, 8)
    losses: list[torch.Tensor] = []
    for _ in range(2):
        if rank == 0:
            runner.step(x)
        elif rank == WORLD_SIZE - 1:
            runner.step(target=x.flip(0), losses=losses)
        else:
            runner.step()
    return numbers(
        *losses, *[p.grad for p in module.parameters() if p.grad is not None]
    )


@program
def pipeline_gpipe() -> Any:
    return _pipelined(ScheduleGPipe)


@program
def pipeline_1f1b() -> Any:
    return _pipelined(Schedule1F1B)


@program
def zero_optimizer() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(small_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    for x in batches():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(*model.parameters())


@program
def checkpoint() -> Any:
    model = small_model(seed=2)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    folders: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folders)
    saved = numbers(*_full(model))
    dcp.save(model.state_dict(), checkpoint_id=folders[0], no_dist=False)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folders[0])
    model.load_state_dict(state)
    assert numbers(*_full(model)) == saved
    return saved


# A plain world.


@contextmanager
def plain_world(rank: int, folder: Path) -> Iterator[None]:
    """gloo as any script would start it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


def _be_rank(rank: int, folder: Path) -> None:
    with plain_world(rank, folder):
        results = {name: function() for name, function in PROGRAMS.items()}
        (folder / f"results-{rank}").write_bytes(pickle.dumps(results))


def main(folder: Path) -> None:
    """Fork four ranks, and wait for them."""
    pids = []
    for rank in range(WORLD_SIZE):
        pid = os.fork()
        if pid == 0:
            try:
                _be_rank(rank, folder)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
