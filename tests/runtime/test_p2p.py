"""Messages between two ranks: what gloo does with them, and past faults of ours."""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed as dist

from tests.runtime.conftest import MakeCluster

LATE_S = 0.5


def send_to_a_late_receiver() -> float:
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(LATE_S)
        dist.recv(torch.empty(1), 0)
        return 0.0
    began_s = time.monotonic()
    dist.send(torch.ones(1), 1)
    return time.monotonic() - began_s


def test_a_send_of_gloo_waits_for_its_receive_however_small(
    make_cluster: MakeCluster,
) -> None:
    """The ledger takes a blocked send of gloo for exact, and rests on this."""
    sender_s, _ = make_cluster().run(send_to_a_late_receiver).results
    assert sender_s > 0.8 * LATE_S


def exchange_and_drop_the_handle() -> float:
    rank = dist.get_rank()
    theirs = torch.empty(3)
    dist.isend(torch.full((3,), float(rank)), 1 - rank)
    gc.collect()
    dist.recv(theirs, 1 - rank)
    return theirs[0].item()


def test_a_send_whose_handle_is_dropped_still_arrives(
    make_cluster: MakeCluster,
) -> None:
    """Once a hang without a word: gloo gave the message up with its handle."""
    cluster = make_cluster()
    for _ in range(3):
        assert cluster.run(exchange_and_drop_the_handle).results == [1.0, 0.0]


def receive_from_anybody_then_by_name() -> list[float]:
    got = []
    for position, size in enumerate((3, 5, 7)):
        x_N = torch.full((size,), float(size))
        if dist.get_rank() == 0:
            dist.send(x_N, 1)
        else:
            x_N.zero_()
            dist.recv(x_N, None if position == 0 else 0)
        got.append(x_N.sum().item())
    return got


def test_receives_from_anybody_and_by_name_may_be_mixed(
    make_cluster: MakeCluster,
) -> None:
    """Once a false alarm: the named receives were compared with the wrong sends."""
    cluster = make_cluster()
    for _ in range(2):
        results = cluster.run(receive_from_anybody_then_by_name).results
        assert results == [[9.0, 25.0, 49.0]] * 2
