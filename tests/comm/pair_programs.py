"""What ranks run in the tests of autograd pairs, and the same on one process.

Each case gives a rank's y and the gradient of its x, for a loss that is the sum over
ranks of <weight, y>. Where y is the same on every rank, that loss counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm import pairs

ROWS, COLUMNS = 8, 12


class Case(NamedTuple):
    """A pair along a dimension; `shared_x` and `shared_y`: the same on every rank."""

    call: Callable[[Tensor, dist.ProcessGroup], Tensor]
    oracle: Callable[[Sequence[Tensor], int], Tensor]
    dim: int | None = None
    cut_x: bool = False
    shared_x: bool = False
    shared_y: bool = False


def rows_for(frm: int, to: int) -> int:
    return (frm + 2 * to) % 3


def swap(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return pairs.all_to_all(
        x[: sum(rows_for(rank, to) for to in range(size))],
        group,
        send_rows=[rows_for(rank, to) for to in range(size)],
        recv_rows=[rows_for(frm, rank) for frm in range(size)],
    )


def swapped(xs: Sequence[Tensor], rank: int) -> Tensor:
    came = []
    for frm, x in enumerate(xs):
        start = sum(rows_for(frm, to) for to in range(rank))
        came.append(x[start : start + rows_for(frm, rank)])
    return torch.cat(came)


def slice_of(x: Tensor, size: int, rank: int, dim: int) -> Tensor:
    return x.chunk(size, dim)[rank]


def cases() -> dict[str, Case]:
    found = {
        "copy": Case(pairs.copy, lambda xs, r: xs[r], shared_x=True),
        "all_reduce": Case(pairs.all_reduce, lambda xs, r: sum_of(xs), shared_y=True),
        "all_to_all": Case(swap, swapped),
    }
    for dim in (0, 1, -1):
        found[f"split {dim}"] = Case(
            lambda x, g, d=dim: pairs.split(x, g, dim=d),
            lambda xs, r, d=dim: slice_of(xs[r], len(xs), r, d), dim, shared_x=True,
        )  # fmt: skip
        found[f"join {dim}"] = Case(
            lambda x, g, d=dim: pairs.join(x, g, dim=d),
            lambda xs, r, d=dim: torch.cat(list(xs), d), dim, True, shared_y=True,
        )  # fmt: skip
        found[f"all_gather {dim}"] = Case(
            lambda x, g, d=dim: pairs.all_gather(x, g, dim=d),
            lambda xs, r, d=dim: torch.cat(list(xs), d), dim, True,
        )  # fmt: skip
        found[f"reduce_scatter {dim}"] = Case(
            lambda x, g, d=dim: pairs.reduce_scatter(x, g, dim=d),
            lambda xs, r, d=dim: slice_of(sum_of(xs), len(xs), r, d), dim,
        )  # fmt: skip
    return found


def sum_of(xs: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(xs)).sum(0)


def start(case: Case, size: int, rank: int) -> Tensor:
    """What a rank begins with: whole numbers, so that sums are exact."""
    seed = torch.Generator().manual_seed(0 if case.shared_x else rank)
    x = torch.randint(-9, 10, (ROWS, COLUMNS), generator=seed).float()
    if case.cut_x:
        x = slice_of(x, size, 0, case.dim or 0).contiguous()
    return x.requires_grad_()


def weight(case: Case, rank: int, shape: torch.Size) -> Tensor:
    seed = torch.Generator().manual_seed(100 if case.shared_y else 100 + rank)
    return torch.randint(-3, 4, shape, generator=seed).float()


def on_a_rank(name: str) -> tuple[Tensor, Tensor]:
    """A rank's y, and the gradient of its x."""
    case, group = cases()[name], dist.group.WORLD
    assert group is not None
    rank, size = dist.get_rank(), dist.get_world_size()
    x = start(case, size, rank)
    y = case.call(x, group)
    (y * weight(case, rank, y.shape)).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def on_one_process(name: str, size: int) -> list[tuple[Tensor, Tensor]]:
    """The same for all ranks, by plain PyTorch."""
    case = cases()[name]
    xs = [start(case, size, rank) for rank in range(size)]
    if case.shared_x:
        xs = [xs[0]] * size
    ys = [case.oracle(xs, rank) for rank in range(size)]
    counted = ys[:1] if case.shared_y else ys
    loss = sum((y * weight(case, r, y.shape)).sum() for r, y in enumerate(counted))
    assert isinstance(loss, Tensor)
    loss.backward()
    found = []
    for y, x in zip(ys, xs, strict=True):
        assert x.grad is not None
        found.append((y.detach(), x.grad))
    return found
