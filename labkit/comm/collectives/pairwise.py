"""Every rank to every rank, in rotating pairs: nobody receives from two at once.

    p = 4      round 1               round 2               round 3
    sends to   0>1 1>2 2>3 3>0       0>2 1>3 2>0 3>1       0>3 1>0 2>1 3>2

In round s, rank r sends to r + s and receives from r - s. If instead all sent to rank 0
first, then to rank 1, one link would carry everything while the others stood idle.

Cost: what is for others, in at most p - 1 messages, p - 1 rounds.
Paper: Thakur, Rabenseifner, Gropp 2005, section 4.4 (pairwise exchange).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.collectives.chunks import chunks, flat
from labkit.comm.collectives.exchange import exchange
from labkit.errors import UsageError

_ADDED_IN_FLOAT32 = (torch.bfloat16, torch.float16)


def all_to_all(
    send: Sequence[Tensor], recv_sizes: Sequence[int], group: dist.ProcessGroup
) -> list[Tensor]:
    """Before: rank r has a tensor for each rank. After: it has one from each.

    Args:
        send: One flat tensor for each rank of the group, of any sizes.
        recv_sizes: Elements that come from each rank.
        group: The ranks.

    Returns:
        One flat tensor from each rank, in the order of ranks.

    Cost: the elements for other ranks, in at most p - 1 messages; its own piece is
    copied.

    Raises:
        UsageError: There is not one tensor and one size for each rank, or this rank's
            own piece has another size than it expects of itself.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    _check_counts(send, recv_sizes, rank, size)
    outgoing = [flat(piece) for piece in send]
    arrived = [outgoing[rank].new_empty(count) for count in recv_sizes]
    for shift in range(size):
        to, frm = (rank + shift) % size, (rank - shift) % size
        exchange(outgoing[to], to, arrived[frm], frm, group)
    return arrived


def reduce_scatter_direct(x_N: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Before: each rank holds an x. After: rank r has the sum of chunk r, and its x.

    Every rank gets all others' values of its chunk and adds them at once, in float32
    for bfloat16 and float16, so that a sum is rounded once, whatever p is. (Around a
    ring it is rounded p - 1 times.)

    Returns:
        This rank's chunk, flat, `n` elements.

    Cost: at most (p - 1) ceil(N / p) elements in p - 1 messages; scratch of 1 chunk,
    and of 1 chunk in float32.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = chunks(x_N, size)
    added_in = torch.float32 if x_N.dtype in _ADDED_IN_FLOAT32 else x_N.dtype
    total_n = mine[rank].to(added_in, copy=True)
    arrived_n = torch.empty_like(mine[rank])
    for shift in range(1, size):
        to, frm = (rank + shift) % size, (rank - shift) % size
        exchange(mine[to], to, arrived_n, frm, group)
        total_n.add_(arrived_n)
    return total_n.to(x_N.dtype)


def barrier(group: dist.ProcessGroup) -> None:
    """Before: ranks come when they come. After: every rank has come.

    In round k each rank tells the one 2**k further that it, and all it has heard of,
    are there (Hensgen, Finkel, Manber 1988: a dissemination barrier).

    Cost: 1 byte in each of ceil(log2 p) messages.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    told, heard = torch.zeros(1, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8)
    step = 1
    while step < size:
        exchange(told, (rank + step) % size, heard, (rank - step) % size, group)
        step *= 2


def _check_counts(
    send: Sequence[Tensor], recv_sizes: Sequence[int], rank: int, size: int
) -> None:
    if not len(send) == len(recv_sizes) == size:
        raise UsageError(
            f"all_to_all needs one tensor and one size for each of the group's {size} "
            f"ranks; rank {rank} gave {len(send)} tensors and {len(recv_sizes)} sizes. "
            "Give an empty tensor and a size of 0 where there is nothing"
        )
    if send[rank].numel() != recv_sizes[rank]:
        raise UsageError(
            f"a rank receives its own piece whole; rank {rank} has "
            f"{send[rank].numel()} elements for itself and expects {recv_sizes[rank]}. "
            "Let recv_sizes[rank] be send[rank].numel()"
        )
