"""Programs that are recorded: as learners write them, and as torch does."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit import span


class TinyModel(nn.Module):
    """Embedding, two layers, a head: gradients of several sizes."""

    def __init__(self, dim: int = 32, vocabulary: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def _loss(model: nn.Module) -> Tensor:
    tokens = torch.arange(40).view(4, 10) % 64
    logits = model(tokens[:, :-1]).flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def naive(steps: int = 2) -> None:
    """One all-reduce a parameter, after backward."""
    torch.manual_seed(0)
    model = TinyModel()
    for _ in range(steps):
        with span("step"):
            with span("forward"):
                loss = _loss(model)
            with span("backward"):
                loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            _update(model)


def overlapped(steps: int = 2, *, waits: bool = True) -> None:
    """All-reduces under way while backward goes on; waited for before the update."""
    torch.manual_seed(0)
    model = TinyModel()
    works: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    for _ in range(steps):
        with span("step"):
            with span("forward"):
                loss = _loss(model)
            with span("backward"):
                loss.backward()
            if waits:
                for work in works:
                    work.wait()
            _update(model)
            if not waits:
                dist.barrier()
            works.clear()


def ddp(steps: int = 2) -> None:
    """torch's own data parallelism, in buckets of a few KiB."""
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel(), bucket_cap_mb=0.01)
    for _ in range(steps):
        with span("step"):
            _loss(model).backward()
            _update(model)


def _update(model: nn.Module) -> None:
    with span("optimizer"), torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad / dist.get_world_size()
            parameter.grad = None


def ring() -> None:
    """Each rank passes a tensor on, as often as there are ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((100,), float(rank))
    for _ in range(size):
        incoming = torch.empty_like(x)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, x, (rank + 1) % size),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
        ]):  # fmt: skip
            work.wait()
        x = incoming + 1


def subgroups() -> None:
    """Pairs of ranks sum among themselves, then all do."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = torch.ones(10)
    dist.all_reduce(mine, group=groups[rank // 2])
    dist.all_gather_into_tensor(torch.empty(40), mine)
    dist.reduce_scatter_tensor(torch.empty(10), torch.ones(40))


def in_silence(multiply_s: float = 0.2) -> None:
    """An all-reduce of 1 MB under way while the rank multiplies, waited for late."""
    buffer, matrix = torch.ones(1 << 18), torch.randn(300, 300)
    dist.barrier()
    with span("long"):
        work = dist.all_reduce(buffer, async_op=True)
        since_s = time.monotonic()
        while time.monotonic() - since_s < multiply_s:
            matrix @ matrix
        work.wait()
