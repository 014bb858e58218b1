"""Device meshes whose ranks are real while every other tensor is fake.

A mesh is a table of ranks. torch makes it with tensors and reads their values at once,
which fake tensors do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _python_dispatch

_modes: Any = _python_dispatch
_READS_RANKS = ("_flatten", "_unflatten", "_concatenate", "_get_all_submeshes")


@contextmanager
def real_meshes() -> Generator[None]:
    """Within it, a mesh that is made or asked has the ranks that it has in a run."""
    made: Any = DeviceMesh
    kept = {name: getattr(made, name) for name in _READS_RANKS if hasattr(made, name)}
    changed = {name: _unfaked(method) for name, method in kept.items()}
    kept |= {"__init__": made.__init__, "mesh": made.mesh}
    changed |= {"__init__": _made_real(made.__init__)}
    changed |= {"mesh": property(_unfaked(made.mesh.fget))}
    try:
        for name, method in changed.items():
            setattr(made, name, method)
        yield
    finally:
        for name, method in kept.items():
            setattr(made, name, method)


def _unfaked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return method(*args, **kwargs)

    return call


def _made_real(init: Callable[..., None]) -> Callable[..., None]:
    """`init_device_mesh` hands over the ranks in their order, by then a fake tensor."""
    unfaked = _unfaked(init)

    @wraps(init)
    def make(*args: Any, **kwargs: Any) -> None:
        ranks = kwargs.get("_rank_map")
        if isinstance(ranks, FakeTensor):
            # Nor is it work of the learner's.
            with _modes._disable_current_modes():
                kwargs["_rank_map"] = torch.arange(ranks.numel(), dtype=ranks.dtype)
        unfaked(*args, **kwargs)

    return make
