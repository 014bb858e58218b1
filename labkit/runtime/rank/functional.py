"""Functional collectives on fake tensors: torch answers them, and moves nothing.

`torch.distributed.tensor` and `_functional_collectives` hand their tensors to
operators, not to a group. On fake tensors those answer with a shape and issue no
transfer, so it is issued here, as their C++ does on real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

_NAMESPACE = "_c10d_functional"
Issue = Callable[..., dist.Work]


def _group(name: str) -> Any:
    registry: Any = dist.distributed_c10d
    return registry._resolve_process_group(name)


def _op(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


def _reducing(options: Any, op: str) -> Any:
    options.reduceOp = _op(op)
    return options


def _all_reduce(out: Any, x: Any, op: str, group: str) -> dist.Work:
    return _group(group).allreduce([out], _reducing(c10d.AllreduceOptions(), op))


def _all_gather(out: Any, x: Any, size: int, group: str) -> dist.Work:
    return _group(group)._allgather_base(out, x, c10d.AllgatherOptions())


def _reduce_scatter(out: Any, x: Any, op: str, size: int, group: str) -> dist.Work:
    options = _reducing(c10d.ReduceScatterOptions(), op)
    return _group(group)._reduce_scatter_base(out, x, options)


def _all_to_all(out: Any, x: Any, received: Any, sent: Any, group: str) -> dist.Work:
    options = c10d.AllToAllOptions()
    return _group(group).alltoall_base(out, x, list(received), list(sent), options)


def _broadcast(out: Any, x: Any, source: int, group: str) -> dist.Work:
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    return _group(group).broadcast([out], options)


_ISSUED: dict[str, Issue] = {
    "all_reduce": _all_reduce, "all_reduce_": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast, "broadcast_": _broadcast,
}  # fmt: skip


class UnissuedError(Exception):
    """A functional collective that would go unrecorded; the message names it."""


class FunctionalTransfers(TorchDispatchMode):
    """Within it, functional collectives on fake tensors are issued as transfers."""

    def __init__(self) -> None:
        super().__init__()
        self._works: dict[int, tuple[torch.Tensor, dist.Work]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let the operator answer, and issue what it stands for."""
        if func.namespace != _NAMESPACE:
            return func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "wait_tensor":
            _, work = self._works.pop(id(args[0]), (None, None))
            if work is not None:
                work.wait()
            return func(*args, **(kwargs or {}))
        if name not in _ISSUED:
            raise UnissuedError(f"calls {name}, which a dry run cannot issue")
        result = func(*args, **(kwargs or {}))
        work = _ISSUED[name](result, *args, **(kwargs or {}))
        self._works[id(result)] = result, work
        return result
