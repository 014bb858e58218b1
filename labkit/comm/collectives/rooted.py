"""Collectives with one rank in the middle: right, simple, and slow.

                rank 1
                  │
    rank 2 ── [ root ] ── rank 3       All p - 1 messages pass one rank, one after
                  │                    another, while the others stand idle.
                rank 4

Cost: the root moves (p - 1) S, in p - 1 rounds. `tree` needs log2 p rounds, `ring`
spreads the bytes. What runs in production: a gather to log metrics, a scatter of work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.collectives.chunks import flat
from labkit.comm.collectives.exchange import recv, send
from labkit.errors import UsageError


def broadcast_naive(x_N: Tensor, root: int, group: dist.ProcessGroup) -> None:
    """Before: the root holds x. After: every rank does.

    Cost: S from the root to each, p - 1 messages, p - 1 rounds.
    """
    flat_N = flat(x_N)
    if dist.get_rank(group) != root:
        recv(flat_N, root, group)
        return
    for peer in _others(root, group):
        send(flat_N, peer, group)


def reduce_naive(x_N: Tensor, root: int, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: the root's x is the sum; others keep theirs.

    Cost: S from each rank but the root, 1 message each, p - 1 rounds.
    """
    flat_N = flat(x_N)
    if dist.get_rank(group) != root:
        send(flat_N, root, group)
        return
    scratch_N = torch.empty_like(flat_N)
    for peer in _others(root, group):
        recv(scratch_N, peer, group)
        flat_N.add_(scratch_N)


def all_reduce_naive(x_N: Tensor, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: every rank's x is the sum of all.

    Cost: (p - 1) S from rank 0, S from each other rank; 2 (p - 1) rounds.
    """
    reduce_naive(x_N, 0, group)
    broadcast_naive(x_N, 0, group)


def gather(
    x_n: Tensor, sizes: Sequence[int], root: int, group: dist.ProcessGroup
) -> list[Tensor] | None:
    """Before: rank r holds `sizes[r]` elements. After: the root has a list of all.

    Returns:
        One tensor a rank on the root, in the order of ranks; None elsewhere.

    Cost: each rank's own x, 1 message, from every rank but the root.

    Raises:
        UsageError: This rank's x has another size, or there is not one size a rank.
    """
    rank, flat_n = dist.get_rank(group), flat(x_n)
    _check_sizes("gather", [flat_n.numel()], [_size_of("gather", sizes, group)[rank]])
    if rank != root:
        send(flat_n, root, group)
        return None
    gathered = [flat_n.new_empty(size) for size in sizes]
    gathered[root].copy_(flat_n)
    for peer in _others(root, group):
        recv(gathered[peer], peer, group)
    return gathered


def scatter(
    parts: Sequence[Tensor] | None,
    x_n: Tensor,
    root: int,
    group: dist.ProcessGroup,
) -> None:
    """Before: the root has one tensor for each rank. After: x is this rank's.

    Args:
        parts: One a rank, of the size of that rank's x; None but on the root.
        x_n: Is written.
        root: Who has the parts.
        group: The ranks.

    Cost: every other rank's part from the root, p - 1 messages.

    Raises:
        UsageError: The root has not one part for each rank.
    """
    flat_n = flat(x_n)
    if dist.get_rank(group) != root:
        recv(flat_n, root, group)
        return
    given = [flat(part) for part in parts or ()]
    _size_of("scatter", [part.numel() for part in given], group)
    _check_sizes("scatter", [flat_n.numel()], [given[root].numel()])
    flat_n.copy_(given[root])
    for peer in _others(root, group):
        send(given[peer], peer, group)


def _others(root: int, group: dist.ProcessGroup) -> list[int]:
    return [peer for peer in range(dist.get_world_size(group)) if peer != root]


def _size_of(
    name: str, sizes: Sequence[int], group: dist.ProcessGroup
) -> Sequence[int]:
    world_size = dist.get_world_size(group)
    if len(sizes) != world_size:
        raise UsageError(
            f"{name} needs one size for each of the group's {world_size} ranks; rank "
            f"{dist.get_rank(group)} gave {len(sizes)}. Give 0 where there is nothing"
        )
    return sizes


def _check_sizes(name: str, got: Sequence[int], wanted: Sequence[int]) -> None:
    if list(got) != list(wanted):
        raise UsageError(
            f"{name} moves as many elements as was agreed, {list(wanted)}; this rank "
            f"handed over {list(got)}. Give each rank the size of its own tensor"
        )
