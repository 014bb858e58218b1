"""Broadcast and reduce along a binomial tree: log2 p rounds instead of p - 1.

    root 0, p = 8        round 0     0 ─> 1
    ranks counted        round 1     0 ─> 2, 1 ─> 3
    from the root        round 2     0 ─> 4, 1 ─> 5, 2 ─> 6, 3 ─> 7

Who knows tells: each round doubles the ranks that have x. A reduce is the same tree
with all arrows turned, the last round first.

Cost: p - 1 messages of S in all, ceil(log2 p) rounds; the root sends in each of them.
Paper: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.collectives.chunks import flat
from labkit.comm.collectives.exchange import recv, send


def broadcast_tree(x_N: Tensor, root: int, group: dist.ProcessGroup) -> None:
    """Before: the root holds x. After: every rank does.

    Cost: at most ceil(log2 p) S from a rank, p - 1 messages in all, ceil(log2 p)
    rounds.
    """
    flat_N = flat(x_N)
    for giver, taker in _rounds(root, group):
        if taker == dist.get_rank(group):
            recv(flat_N, giver, group)
        else:
            send(flat_N, taker, group)


def reduce_tree(x_N: Tensor, root: int, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: the root's x is the sum of all.

    The other ranks' x are then sums of a part of the tree.

    Cost: S from each rank but the root, 1 message each, ceil(log2 p) rounds.
    """
    flat_N = flat(x_N)
    scratch_N: Tensor | None = None
    for taker, giver in reversed(list(_rounds(root, group))):
        if giver == dist.get_rank(group):
            send(flat_N, taker, group)
            continue
        if scratch_N is None:
            scratch_N = torch.empty_like(flat_N)
        recv(scratch_N, giver, group)
        flat_N.add_(scratch_N)


def all_reduce_tree(x_N: Tensor, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: every rank's x is the sum of all.

    Cost: at most (1 + ceil(log2 p)) S from a rank, 2 (p - 1) S in all, 2 ceil(log2 p)
    rounds.
    """
    reduce_tree(x_N, 0, group)
    broadcast_tree(x_N, 0, group)


def _rounds(root: int, group: dist.ProcessGroup) -> Iterator[tuple[int, int]]:
    """The messages of a broadcast that this rank takes part in: (from, to), in order.

    In round k, places below 2**k from the root have x and send it 2**k further.
    """
    size = dist.get_world_size(group)
    place = (dist.get_rank(group) - root) % size
    step = 1
    while step < size:
        if place < step and place + step < size:
            yield (place + root) % size, (place + step + root) % size
        elif step <= place < 2 * step:
            yield (place - step + root) % size, (place + root) % size
        step *= 2
