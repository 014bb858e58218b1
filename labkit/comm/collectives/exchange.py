"""Two messages at once, one out and one in, and no rank ever stuck.

    rank 0:  irecv, isend, wait, wait     Both are started before either is waited for,
    rank 1:  irecv, isend, wait, wait     so ranks in a circle cannot wait for ever.

It is the only way in which the real algorithms beside it send and receive at once.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def exchange(
    send_N: Tensor, to: int, recv_M: Tensor, frm: int, group: dist.ProcessGroup
) -> None:
    """Before: each rank holds `send_N`. After: `recv_M` is what `frm` sent to it.

    `to` and `frm` are places in the group. Whoever sends to itself copies. Empty
    tensors are not sent: both ends know their sizes.

    Cost: N elements in 1 message, 1 round.
    """
    if to == frm == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    under_way: list[dist.Work] = []
    if recv_M.numel():
        under_way.append(irecv(recv_M, frm, group))
    if send_N.numel():
        under_way.append(isend(send_N, to, group))
    for work in under_way:
        work.wait()


def send(x_N: Tensor, to: int, group: dist.ProcessGroup) -> None:
    """Send to a place in the group, and wait; an empty tensor is not sent."""
    if x_N.numel():
        dist.send(x_N, group=group, group_dst=to)


def recv(x_N: Tensor, frm: int, group: dist.ProcessGroup) -> None:
    """Receive from a place in the group, and wait; an empty tensor is not sent."""
    if x_N.numel():
        dist.recv(x_N, group=group, group_src=frm)


def isend(x_N: Tensor, to: int, group: dist.ProcessGroup) -> dist.Work:
    """Start to send to a place in the group; the caller waits."""
    work = dist.isend(x_N, group=group, group_dst=to)
    assert work is not None, "only a rank outside the group gets no work"
    return work


def irecv(x_N: Tensor, frm: int, group: dist.ProcessGroup) -> dist.Work:
    """Start to receive from a place in the group; the caller waits."""
    work = dist.irecv(x_N, group=group, group_src=frm)
    assert work is not None, "only a rank outside the group gets no work"
    return work
