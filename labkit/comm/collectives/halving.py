"""All-reduce by recursive halving and doubling: as few bytes as a ring, log2 p rounds.

    p = 4, who owns the sum of what:
    halving    distance 1   0 <-> 1, 2 <-> 3    each keeps half, gives the other
               distance 2   0 <-> 2, 1 <-> 3    each keeps a quarter: a reduce-scatter
    doubling   distance 2, then 1               the same way back: an all-gather

The near partner comes first: the largest messages stay between neighbours, inside a
node, and what leaves it is small. Where p is no power of two, the ranks beyond the
largest power P give their x to a partner first, and get the sum at the end.

Cost: 2 (p - 1) / p S in 2 log2 p messages and rounds, where p is a power of two.
Otherwise S from each rank beyond P, and S more from its partner.
Paper: Thakur, Rabenseifner, Gropp 2005, section 4.5.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.collectives.chunks import flat
from labkit.comm.collectives.exchange import exchange, recv, send


def all_reduce_halving(x_N: Tensor, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: every rank's x is the sum of all.

    Cost: 2 (P - 1) / P S in 2 log2 P messages, P the largest power of two up to p; a
    rank beyond P sends S in 1 message, and its partner S and 1 message more. Scratch of
    half an x, or of one where a rank beyond P gives its x.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    flat_N, power = flat(x_N), 1 << (size.bit_length() - 1)
    partner = rank ^ power
    if rank >= power:
        send(flat_N, partner, group)
        recv(flat_N, partner, group)
        return
    if partner < size:
        _add_what_comes(flat_N, partner, group)
    _halve_and_double(flat_N, power, group)
    if partner < size:
        send(flat_N, partner, group)


def _halve_and_double(flat_N: Tensor, power: int, group: dist.ProcessGroup) -> None:
    """The first `power` ranks: see the picture at the head."""
    rank, distance = dist.get_rank(group), 1
    kept, walked = flat_N, []
    while distance < power:
        middle = kept.numel() // 2
        low, high = kept[:middle], kept[middle:]
        kept, given = (low, high) if rank & distance == 0 else (high, low)
        arrived = torch.empty_like(kept)
        exchange(given, rank ^ distance, arrived, rank ^ distance, group)
        kept.add_(arrived)
        walked.append((kept, given, rank ^ distance))
        distance *= 2
    for owned, missing, peer in reversed(walked):
        exchange(owned, peer, missing, peer, group)


def _add_what_comes(flat_N: Tensor, peer: int, group: dist.ProcessGroup) -> None:
    arrived_N = torch.empty_like(flat_N)
    recv(arrived_N, peer, group)
    flat_N.add_(arrived_N)
