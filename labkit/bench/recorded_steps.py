"""What the ranks of `labkit bench record` do: the same DDP step, recorded and bare.

The bare group is a second gloo world over the same ranks, without the recording group
around it, so that both steps run in the same processes, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.comm.groups import backend
from labkit.record.recorder import span


@dataclass(frozen=True)
class StepSize:
    """A stack of equal layers, and the buckets that DDP reduces it in."""

    name: str
    num_layers: int
    dim: int
    batch: int
    bucket_mb: float


@dataclass(frozen=True)
class _Options:
    """What a backend is made from."""

    store: dist.Store
    group_rank: int
    group_size: int


class Timed(NamedTuple):
    """Seconds of each round."""

    recorded_s: list[float]
    bare_s: list[float]
    bare_again_s: list[float]


def timed_steps(size: StepSize, rounds: int, warm_up: int = 5) -> Timed:
    """Time the recorded step once and the bare one twice a round; who is first rotates.

    Each rank times its own steps; a barrier before each lets them begin together.
    """
    steps = [_step(size, None), _step(size, _bare_group())]
    turns = [(0, 0), (1, 1), (2, 1)]
    timings: list[list[float]] = [[], [], []]
    for number in range(warm_up + rounds):
        first = number % len(turns)
        for slot, which in (*turns[first:], *turns[:first]):
            dist.barrier()
            start_s = time.perf_counter()
            steps[which]()
            if number >= warm_up:
                timings[slot].append(time.perf_counter() - start_s)
    return Timed(*timings)


@cache
def _bare_group() -> dist.ProcessGroup:
    """A gloo world that records nothing; DDP reduces on it in C++ alone.

    It stays: where DDP's reducer holds the last reference, torch joins gloo's threads
    with the interpreter's lock in hand, which one of them may be waiting for.
    """
    world = dist.group.WORLD
    assert world is not None
    store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    prefix = dist.PrefixStore("bare", store)
    return backend.gloo(_Options(prefix, world.rank(), world.size()))


def _step(size: StepSize, group: dist.ProcessGroup | None) -> Callable[[], None]:
    torch.manual_seed(0)
    layers = [nn.Linear(size.dim, size.dim) for _ in range(size.num_layers)]
    model = DistributedDataParallel(
        nn.Sequential(*layers), process_group=group, bucket_cap_mb=size.bucket_mb
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(size.batch, size.dim)

    def bare() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return span("step")(bare) if group is None else bare


def timed_span_seconds(num_spans: int, repeats: int) -> list[float]:
    """Seconds that one span takes, each repeat's mean."""
    taken_s: list[float] = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        for _ in range(num_spans):
            with span("forward"):
                pass
        taken_s.append((time.perf_counter() - start_s) / num_spans)
        time.sleep(0.03)
    return taken_s


def timed_step(size: StepSize, repeats: int) -> list[float]:
    """Seconds of each of some steps, whatever the level of recording."""
    step = _step(size, None)
    taken_s: list[float] = []
    for _ in range(repeats):
        dist.barrier()
        start_s = time.perf_counter()
        step()
        taken_s.append(time.perf_counter() - start_s)
    return taken_s
