"""What techniques do with streams, small: one source for a CPU and a GPU.

Each is a step of two ranks or more, with values that say whether the order was right.
A mutant leaves out one wait.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.stream import Mark, Stream, current
from labkit.record import recorder

LAYERS = 3
SIZE = 1024


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mine(*shape: int) -> Tensor:
    return torch.full(shape, dist.get_rank() + 1.0, device=device())


def use(*tensors: Tensor) -> list[float]:
    """What compute sees of them now; the record says when."""
    recorder.mark("use")
    return [tensor.sum().item() for tensor in tensors]


def overlapped_all_reduce(*, waits: bool = True) -> list[float]:
    """Gradients come one by one; each is reduced while the next is computed."""
    compute, side = current(), Stream()
    works: list[dist.Work | None] = []
    gradients: list[Tensor] = []
    for layer in range(LAYERS):
        gradient = mine(SIZE) * (layer + 1)
        side.wait(compute.mark())
        with side:
            works.append(dist.all_reduce(gradient, async_op=True))
            side.keep(gradient)
        gradients.append(gradient)
    if waits:
        for work in works:
            compute.wait(work)
    return use(*gradients)


def _gather(
    shard: Tensor, weight: Tensor, side: Stream, after: Stream, *, waits: bool
) -> Mark:
    flat, full = torch.empty_like(shard), torch.empty_like(weight)
    with side:
        flat.copy_(shard)
        single = getattr(dist, "all_gather_single", None)
        single = single or dist.all_gather_into_tensor
        work = single(full, flat, async_op=True)
        side.keep(flat, full)
    if waits:
        after.wait(work)
    after.run(weight.copy_, full)
    after.keep(full)
    return after.mark()


def prefetched_all_gather(
    *, waits_for_transfer: bool = True, waits_for_copy: bool = True
) -> list[float]:
    """Each layer's weights are gathered while the layer before computes."""
    world = dist.get_world_size()
    compute, side, after = current(), Stream(), Stream()
    shards = [mine(SIZE) * (layer + 1) for layer in range(LAYERS)]
    weights = [torch.zeros(world * SIZE, device=device()) for _ in range(LAYERS)]
    seen: list[float] = []
    side.wait(compute.mark())
    after.wait(compute.mark())
    gathered = [_gather(shards[0], weights[0], side, after, waits=waits_for_transfer)]
    for layer in range(LAYERS):
        if layer + 1 < LAYERS:
            gathered.append(_gather(
                shards[layer + 1], weights[layer + 1], side, after,
                waits=waits_for_transfer,
            ))  # fmt: skip
        if waits_for_copy:
            compute.wait(gathered[layer])
        seen += use(weights[layer])
    return seen


def reduce_scatter_after_backward(
    *, waits: bool = True, reads: bool = True
) -> list[float]:
    """Each layer's gradient is scattered while the backward pass goes on."""
    world = dist.get_world_size()
    compute, side, after = current(), Stream(), Stream()
    sums = [torch.zeros(SIZE, device=device()) for _ in range(LAYERS)]
    for layer, total in enumerate(sums):
        gradient = mine(world * SIZE) * (layer + 1)
        flat, part = torch.empty_like(gradient), torch.empty_like(total)
        side.wait(compute.mark())
        with side:
            flat.copy_(gradient)
            single = getattr(dist, "reduce_scatter_single", None)
            single = single or dist.reduce_scatter_tensor
            work = single(part, flat, async_op=True)
            side.keep(gradient, flat, part)
        after.wait(work)
        after.run(total.add_, part)
        after.keep(total, part)
    done = after.mark()
    if waits:
        compute.wait(done)
    return use(*sums) if reads else []


def reduce_scatter_without_values() -> None:
    """The same, for fake tensors: nothing reads a value."""
    reduce_scatter_after_backward(reads=False)


def offloaded() -> list[float]:
    """An activation goes to host memory on a side stream, and comes back."""
    compute, side = current(), Stream()
    activation = mine(SIZE)
    kept = torch.empty(SIZE, pin_memory=device().type == "cuda")
    side.wait(compute.mark())
    with side:
        kept.copy_(activation, non_blocking=True)
        side.keep(activation)
    side.synchronize()
    on_host = kept.sum().item()
    back = torch.empty(SIZE, device=device())
    with side:
        back.copy_(kept, non_blocking=True)
        side.keep(back)
    compute.wait(side.mark())
    return [on_host, *use(back)]


def ranks_sum() -> float:
    world = dist.get_world_size()
    return world * (world + 1) / 2


def expected(program: Callable[..., list[float]]) -> list[float]:
    """What the program returns on the rank that calls."""
    if program is offloaded:
        return [SIZE * (dist.get_rank() + 1.0)] * 2
    return [SIZE * ranks_sum() * (layer + 1) for layer in range(LAYERS)]


PROGRAMS: tuple[Callable[..., list[float]], ...] = (
    overlapped_all_reduce, prefetched_all_gather, reduce_scatter_after_backward,
    offloaded,
)  # fmt: skip
