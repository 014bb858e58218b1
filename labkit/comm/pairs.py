"""Collectives inside a model: what runs forward has its opposite run backward.

    function         forward            backward           x is            y is
    copy             nothing            all-reduce         on every rank   on every rank
    all_reduce       all-reduce         nothing            a partial sum   on every rank
    split            own slice          all-gather         on every rank   own slice
    join             all-gather         own slice          own slice       on every rank
    all_gather       all-gather         reduce-scatter     own slice       one a rank
    reduce_scatter   reduce-scatter     all-gather         one a rank      own slice
    all_to_all       all-to-all         all-to-all back    pieces          pieces

"On every rank" says that all ranks hold the same, and go on to compute the same from
it, so that one rank's gradient of it is everybody's. "One a rank" says that each goes
on by itself: the gradients of all ranks have to be added. `join` and `all_gather`
differ in nothing else. Megatron-LM calls `copy` and `all_reduce` f and g.

The tensors are the backend's to move: these are not the collectives that
`labkit.comm.collectives` builds, but the backend's own.

Cost: with S bytes of the whole tensor, forward or backward, a ring's: all-reduce
2 (p - 1) / p S, all-gather and reduce-scatter (p - 1) / p S, all-to-all what is for
others.
Paper: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.errors import UsageError


def copy(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Before: every rank holds x. After: the same; gradients of all ranks are added.

    Cost: nothing forward, an all-reduce of x's size backward.
    """
    return _Copy.apply(x, group)  # pyright: ignore[reportReturnType]


def all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Before: each rank holds a partial sum. After: every rank has the whole sum.

    Cost: an all-reduce of x's size forward, nothing backward.
    """
    return _AllReduce.apply(x, group)  # pyright: ignore[reportReturnType]


def split(x: Tensor, group: dist.ProcessGroup, *, dim: int = 0) -> Tensor:
    """Before: every rank holds x. After: each has its slice of x along `dim`.

    Cost: nothing forward, an all-gather backward.

    Raises:
        UsageError: The size of `dim` does not divide by the group's.
    """
    return _Split.apply(x, group, dim)  # pyright: ignore[reportReturnType]


def join(x: Tensor, group: dist.ProcessGroup, *, dim: int = 0) -> Tensor:
    """Before: each rank holds a slice along `dim`. After: every rank has the whole.

    All ranks compute the same from it: each takes its own slice of the gradient.

    Cost: an all-gather forward, nothing backward.
    """
    return _Join.apply(x, group, dim)  # pyright: ignore[reportReturnType]


def all_gather(x: Tensor, group: dist.ProcessGroup, *, dim: int = 0) -> Tensor:
    """Before: each rank holds a slice along `dim`. After: every rank has the whole.

    Each rank computes something else from it: the gradients of all are added.

    Cost: an all-gather forward, a reduce-scatter backward.
    """
    return _AllGather.apply(x, group, dim)  # pyright: ignore[reportReturnType]


def reduce_scatter(x: Tensor, group: dist.ProcessGroup, *, dim: int = 0) -> Tensor:
    """Before: each rank holds a partial sum. After: its slice, along `dim`, of the sum.

    Cost: a reduce-scatter forward, an all-gather backward.

    Raises:
        UsageError: The size of `dim` does not divide by the group's.
    """
    return _ReduceScatter.apply(x, group, dim)  # pyright: ignore[reportReturnType]


def all_to_all(
    x: Tensor,
    group: dist.ProcessGroup,
    *,
    send_rows: Sequence[int],
    recv_rows: Sequence[int],
) -> Tensor:
    """Before: x's rows are for each rank, in order. After: the rows from each rank.

    Args:
        x: `sum(send_rows)` rows.
        group: The ranks.
        send_rows: Rows for each rank.
        recv_rows: Rows from each rank.

    Cost: the rows for other ranks forward, those from other ranks backward.

    Raises:
        UsageError: There is not one number for each rank, or they are not x's rows.
    """
    size = dist.get_world_size(group)
    if not len(send_rows) == len(recv_rows) == size or sum(send_rows) != len(x):
        raise UsageError(
            f"all_to_all needs rows for each of the group's {size} ranks, {len(x)} in "
            f"all as x has; rank {dist.get_rank(group)} gave send_rows="
            f"{list(send_rows)} and recv_rows={list(recv_rows)}. Give 0 where there is "
            "nothing"
        )
    rows = tuple(send_rows), tuple(recv_rows)
    return _AllToAll.apply(x, group, *rows)  # pyright: ignore[reportReturnType]


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _slices(x: Tensor, group: dist.ProcessGroup, dim: int) -> list[Tensor]:
    """One slice along `dim` for each rank, each in one piece in memory."""
    size = dist.get_world_size(group)
    if x.shape[dim] % size:
        raise UsageError(
            f"dimension {dim} must divide by the group's {size} ranks; rank "
            f"{dist.get_rank(group)} has {x.shape[dim]} (shape {tuple(x.shape)}). Pad "
            f"it to {-(-x.shape[dim] // size) * size}"
        )
    return [part.contiguous() for part in x.chunk(size, dim)]


def _own(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    return _slices(x, group, dim)[dist.get_rank(group)].clone()


def _gathered(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    own = x.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.cat(parts, dim)


def _scattered(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    parts = _slices(x, group, dim)
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


def _swapped(
    x: Tensor, group: dist.ProcessGroup, send_rows: Any, recv_rows: Any
) -> Tensor:
    came = x.new_empty((sum(recv_rows), *x.shape[1:]))
    dist.all_to_all_single(
        came, x.contiguous(), list(recv_rows), list(send_rows), group=group
    )
    return came


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _summed(grad_outputs[0], ctx.group), None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None


class _Along(torch.autograd.Function):
    """Keeps the group and the dimension for the way back."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.group, ctx.dim = inputs


class _Split(_Along):
    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        return _own(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _gathered(grad_outputs[0], ctx.group, ctx.dim), None, None


class _Join(_Along):
    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _own(grad_outputs[0], ctx.group, ctx.dim), None, None


class _AllGather(_Along):
    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _scattered(grad_outputs[0], ctx.group, ctx.dim), None, None


class _ReduceScatter(_Along):
    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        return _scattered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _gathered(grad_outputs[0], ctx.group, ctx.dim), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, group: dist.ProcessGroup, send_rows: Any, recv_rows: Any
    ) -> Tensor:
        return _swapped(x, group, send_rows, recv_rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.group, ctx.send_rows, ctx.recv_rows = inputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        back = _swapped(grad, ctx.group, ctx.recv_rows, ctx.send_rows)
        return back, None, None, None
