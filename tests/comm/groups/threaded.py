"""What the tests of threaded ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from labkit.comm.groups.threads import Outcome, run_threads
from labkit.record.recorder import Recorder

T = TypeVar("T")


def _first(owner: Any, *names: str) -> Callable[..., Any]:
    """torch's function by its first name that this torch has: 2.13 renamed some."""
    return next(getattr(owner, name) for name in names if hasattr(owner, name))


all_gather_single = _first(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _first(dist, "reduce_scatter_single", "reduce_scatter_tensor")
gather_function = _first(functional, "all_gather_single", "all_gather_tensor")


def recorders(world_size: int) -> list[Recorder]:
    return [Recorder(rank) for rank in range(world_size)]


def outcomes(
    world_size: int, body: Callable[[int], T], **options: Any
) -> list[Outcome[T]]:
    return run_threads(world_size, body, recorders=recorders(world_size), **options)


def results(world_size: int, body: Callable[[int], T], **options: Any) -> list[T]:
    """What `body` returned on each rank; raises what it raised."""
    found = outcomes(world_size, body, **options)
    for outcome in found:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in found]  # type: ignore[misc]


def errors(found: Sequence[Outcome[Any]]) -> list[type[BaseException] | None]:
    return [None if each.error is None else type(each.error) for each in found]
