"""Reduce-scatter, all-gather and all-reduce around a ring: the bytes are spread.

Each rank only ever sends to its right and receives from its left, one chunk a step.
With p = 4, where the partial sums of the chunks are (chunk c ends whole on rank c):

    step        rank 0    rank 1    rank 2    rank 3
    0 sends     c3        c0        c1        c2
    1 sends     c2        c3        c0        c1       after adding its own to each
    2 sends     c1        c2        c3        c0
    then holds  c0        c1        c2        c3       summed over all ranks

An all-gather goes round the same way and copies instead of adding. All-reduce is one
after the other.

Cost: reduce-scatter and all-gather (p - 1) / p S each, in p - 1 messages a rank and as
many rounds; all-reduce twice that, which no algorithm of sends and receives undercuts.
Paper: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", section 3. Read next: NCCL's ring (src/device/all_reduce.h).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.collectives.chunks import chunks, flat
from labkit.comm.collectives.exchange import exchange, irecv, isend

SEGMENT_BYTES = 4 << 20


def reduce_scatter_ring(x_N: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Before: each rank holds an x. After: rank r has the sum of chunk r, and its x.

    Returns:
        This rank's chunk, flat, `n` elements.

    Cost: at most (p - 1) ceil(N / p) elements in p - 1 messages; scratch of 1 chunk.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = chunks(x_N, size)
    partial_n = mine[(rank - 1) % size].clone()
    for step in range(size - 1):
        own_n = mine[(rank - step - 2) % size]
        arrived_n = torch.empty_like(own_n)
        exchange(partial_n, (rank + 1) % size, arrived_n, (rank - 1) % size, group)
        partial_n = arrived_n.add_(own_n)
    return partial_n


def all_gather_ring(
    chunk_n: Tensor, num_elements: int, group: dist.ProcessGroup
) -> Tensor:
    """Before: rank r holds chunk r. After: every rank has all chunks, in order.

    Args:
        chunk_n: This rank's chunk of `num_elements`, as `chunk_sizes` cuts them.
        num_elements: `N`, of all chunks together.
        group: The ranks.

    Returns:
        The whole array, flat, `N` elements.

    Cost: at most (p - 1) ceil(N / p) elements in p - 1 messages; no scratch.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own_n = flat(chunk_n)
    whole_N = own_n.new_empty(num_elements)
    parts = chunks(whole_N, size)
    parts[rank].copy_(own_n)
    _pass_on([parts[(rank - step) % size] for step in range(size)], group)
    return whole_N


def all_reduce_ring(x_N: Tensor, group: dist.ProcessGroup) -> None:
    """Before: each rank holds an x. After: every rank's x is the sum of all.

    All ranks get the same bits: each chunk is summed on one path, then copied.

    Cost: at most 2 (p - 1) ceil(N / p) elements, in 2 (p - 1) messages where a chunk
    fits in one segment of `SEGMENT_BYTES`; scratch of 2 segments, or chunks if shorter.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    parts = chunks(x_N, size)
    _pass_on([parts[(rank - step) % size] for step in range(1, size + 1)], group, True)
    _pass_on([parts[(rank - step) % size] for step in range(size)], group)


def _pass_on(order: list[Tensor], group: dist.ProcessGroup, add: bool = False) -> None:
    """Before: `order[0]` is ready. After: what came from the left is in all others.

    `order[0]` is sent to the right; each that comes from the left is written to its
    place in `order`, or added to it, and sent on, but for the last. This is done by
    segments: while one is added, the next arrives and the last leaves.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    length = SEGMENT_BYTES // order[0].element_size()
    first, *others = [_segments(part_n, length) for part_n in order]
    coming = [segment for segments in others for segment in segments]
    going_on = sum(map(len, others[:-1]))
    longest = max(map(Tensor.numel, coming), default=0)
    scratch = order[0].new_empty(2, longest if add else 0)

    def receive(number: int) -> dist.Work:
        segment = coming[number]
        place = scratch[number % 2, : segment.numel()] if add else segment
        return irecv(place, left, group)

    leaving = [isend(segment, right, group) for segment in first] if others else []
    arriving = [receive(number) for number in range(min(2, len(coming)))]
    for number, segment in enumerate(coming):
        arriving[number].wait()
        if add:
            segment.add_(scratch[number % 2, : segment.numel()])
        if number < going_on:
            leaving.append(isend(segment, right, group))
        if number + 2 < len(coming):
            arriving.append(receive(number + 2))
    for work in leaving:
        work.wait()


def _segments(part_n: Tensor, length: int) -> list[Tensor]:
    return [segment for segment in part_n.split(length) if segment.numel()]
