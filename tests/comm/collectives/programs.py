"""What ranks run in the tests of collectives: one call each, with what came of it.

A program takes N, a dtype and a root, and returns what the rank holds afterwards.
`expected` is the same from one process, without any rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm import collectives as c

Program = Callable[[int, torch.dtype, int], Any]


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def array(rank: int, num_elements: int, dtype: torch.dtype) -> Tensor:
    """What a rank starts with: whole numbers, so that sums are exact in float32."""
    source = torch.Generator().manual_seed(1000 * num_elements + rank)
    return torch.randint(-9, 10, (num_elements,), generator=source).to(dtype)


def uneven(rank: int, to: int) -> int:
    """Elements that a rank has for another, some of them none."""
    return (3 * rank + 2 * to) % 5


def mine(num_elements: int, dtype: torch.dtype) -> Tensor:
    return array(dist.get_rank(), num_elements, dtype)


def in_place(call: Callable[[Tensor, dist.ProcessGroup], None]) -> Program:
    def program(num_elements: int, dtype: torch.dtype, root: int) -> Tensor:
        x_N = mine(num_elements, dtype)
        call(x_N, world())
        return x_N

    return program


def rooted(call: Callable[[Tensor, int, dist.ProcessGroup], None]) -> Program:
    def program(num_elements: int, dtype: torch.dtype, root: int) -> Tensor:
        x_N = mine(num_elements, dtype)
        call(x_N, root, world())
        return x_N

    return program


def scattered(call: Callable[[Tensor, dist.ProcessGroup], Tensor]) -> Program:
    def program(num_elements: int, dtype: torch.dtype, root: int) -> Tensor:
        x_N = mine(num_elements, dtype)
        chunk_n = call(x_N, world())
        assert torch.equal(x_N, mine(num_elements, dtype))
        assert chunk_n.data_ptr() != x_N.data_ptr() or not chunk_n.numel()
        return chunk_n

    return program


def all_gather(num_elements: int, dtype: torch.dtype, root: int) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    chunk_n = c.chunks(array(0, num_elements, dtype), size)[rank].clone()
    return c.all_gather_ring(chunk_n, num_elements, world())


def gather(num_elements: int, dtype: torch.dtype, root: int) -> list[Tensor] | None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [uneven(each, num_elements) for each in range(size)]
    return c.gather(array(rank, sizes[rank], dtype), sizes, root, world())


def scatter(num_elements: int, dtype: torch.dtype, root: int) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [array(each, uneven(each, num_elements), dtype) for each in range(size)]
    x_n = torch.full_like(parts[rank], 99)
    c.scatter(parts if rank == root else None, x_n, root, world())
    return x_n


def all_to_all(num_elements: int, dtype: torch.dtype, root: int) -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    send = [array(10 * rank + to, uneven(rank, to), dtype) for to in range(size)]
    return c.all_to_all(send, [uneven(frm, rank) for frm in range(size)], world())


def summed(size: int, num_elements: int, dtype: torch.dtype) -> Tensor:
    """The sum of all ranks' arrays, on one process."""
    whole = torch.stack([array(rank, num_elements, dtype) for rank in range(size)])
    return whole.sum(0, dtype=torch.float32 if dtype.is_floating_point else dtype)


def same(size: int, num_elements: int, dtype: torch.dtype, root: int) -> list[Any]:
    return [summed(size, num_elements, dtype).to(dtype)] * size


def of_root(size: int, num_elements: int, dtype: torch.dtype, root: int) -> list[Any]:
    return [array(root, num_elements, dtype)] * size


def at_root(size: int, num_elements: int, dtype: torch.dtype, root: int) -> list[Any]:
    found: list[Any] = [None] * size
    found[root] = summed(size, num_elements, dtype).to(dtype)
    return found


def by_chunk(size: int, num_elements: int, dtype: torch.dtype, root: int) -> list[Any]:
    return list(c.chunks(summed(size, num_elements, dtype).to(dtype), size))


def whole(size: int, num_elements: int, dtype: torch.dtype, root: int) -> list[Any]:
    return [array(0, num_elements, dtype)] * size


def at_root_all(size: int, num_elements: int, dtype: torch.dtype, root: int) -> Any:
    found: list[Any] = [None] * size
    found[root] = [array(r, uneven(r, num_elements), dtype) for r in range(size)]
    return found


def own_part(size: int, num_elements: int, dtype: torch.dtype, root: int) -> Any:
    return [array(rank, uneven(rank, num_elements), dtype) for rank in range(size)]


def transposed(size: int, num_elements: int, dtype: torch.dtype, root: int) -> Any:
    return [
        [array(10 * frm + to, uneven(frm, to), dtype) for frm in range(size)]
        for to in range(size)
    ]


# Name, what ranks do, what each then holds (None: whatever it likes).
PROGRAMS: dict[str, tuple[Program, Callable[..., list[Any]]]] = {
    "broadcast_naive": (rooted(c.broadcast_naive), of_root),
    "broadcast_tree": (rooted(c.broadcast_tree), of_root),
    "reduce_naive": (rooted(c.reduce_naive), at_root),
    "reduce_tree": (rooted(c.reduce_tree), at_root),
    "all_reduce_naive": (in_place(c.all_reduce_naive), same),
    "all_reduce_tree": (in_place(c.all_reduce_tree), same),
    "all_reduce_ring": (in_place(c.all_reduce_ring), same),
    "all_reduce_halving": (in_place(c.all_reduce_halving), same),
    "reduce_scatter_ring": (scattered(c.reduce_scatter_ring), by_chunk),
    "reduce_scatter_direct": (scattered(c.reduce_scatter_direct), by_chunk),
    "all_gather_ring": (all_gather, whole),
    "gather": (gather, at_root_all),
    "scatter": (scatter, own_part),
    "all_to_all": (all_to_all, transposed),
}
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def lengths(size: int) -> list[int]:
    """The storyboard's grid: none, one, around p, uneven, many."""
    return sorted({0, 1, size - 1, size, size + 1, 3 * size + 1, 257})


def grid(size: int, names: tuple[str, ...]) -> list[list[Any]]:
    """Every program, length, dtype and, for short arrays, root: results in order."""
    return [
        PROGRAMS[name][0](num_elements, dtype, root)
        for name, num_elements, dtype, root in cases(size, names)
    ]


def cases(size: int, names: tuple[str, ...]) -> list[tuple[str, int, torch.dtype, int]]:
    return [
        (name, num_elements, dtype, root)
        for name in names
        for num_elements in lengths(size)
        for dtype in DTYPES
        for root in (range(size) if _has_root(name) else (0,))
    ]


def _has_root(name: str) -> bool:
    return name in ("broadcast_naive", "broadcast_tree", "reduce_naive",
                    "reduce_tree", "gather", "scatter")  # fmt: skip
