"""Answers to the exercises of lesson 00: other right ones, and named wrong ones."""

# Learners write no annotations.
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import time
from collections import defaultdict

import torch
import torch.distributed as dist

# 0.1, right


def asynchronous(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1, dtype=torch.uint8)
    if rank:
        dist.irecv(token, group_src=rank - 1, group=group).wait()
    say()
    if rank + 1 < size:
        dist.isend(token, group_dst=rank + 1, group=group).wait()


def rank_as_token(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    heard = torch.tensor(-1)
    if rank > 0:
        dist.recv(heard, group_src=rank - 1, group=group)
        assert heard.item() == rank - 1
    say()
    if rank < size - 1:
        dist.send(torch.tensor(rank), group_dst=rank + 1, group=group)


def from_anybody(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1, dtype=torch.bfloat16)
    if rank > 0:
        dist.recv(token, group=group)
    say()
    if rank < size - 1:
        dist.send(token, group_dst=rank + 1, group=group)


def one_message(operation, tensor, peer, group):
    return dist.P2POp(operation, tensor, group=group, group_peer=peer)


def batched(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(2)

    def one(operation, peer):
        for work in dist.batch_isend_irecv(
            [one_message(operation, token, peer, group)]
        ):
            work.wait()

    if rank > 0:
        one(dist.irecv, rank - 1)
    say()
    if rank < size - 1:
        one(dist.isend, rank + 1)


# 0.1, wrong


def by_the_clock(say, group):
    time.sleep(0.01 * dist.get_rank(group))
    say()


def a_barrier_a_turn(say, group):
    for turn in range(dist.get_world_size(group)):
        if turn == dist.get_rank(group):
            say()
        dist.barrier(group=group)


def gather_and_speak_on_0(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = torch.tensor([rank])
    parts = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, parts, group_dst=0, group=group)
    for _ in parts or ():
        say()


def token_all_the_way_round(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, group_src=rank - 1, group=group)
    say()
    dist.send(token, group_dst=(rank + 1) % size, group=group)
    if rank == 0:
        dist.recv(token, group_src=size - 1, group=group)


def send_then_speak(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, group_src=rank - 1, group=group)
    if rank < size - 1:
        dist.send(token, group_dst=rank + 1, group=group)
    say()


def at_once(say, group):
    say()


def twice(say, group):
    rank_as_token(say, group)
    say()


def never(say, group):
    rank_as_token(lambda: None, group)


def a_large_token(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(3)
    if rank > 0:
        dist.recv(token, group_src=rank - 1, group=group)
    say()
    if rank < size - 1:
        dist.send(token, group_dst=rank + 1, group=group)


def a_master_that_calls(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, group_src=0, group=group)
        say()
        dist.send(token, group_dst=0, group=group)
        return
    say()
    for peer in range(1, size):
        dist.send(token, group_dst=peer, group=group)
        dist.recv(token, group_src=peer, group=group)


def places_as_ranks(say, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, src=rank - 1, group=group)
    say()
    if rank < size - 1:
        dist.send(token, dst=rank + 1, group=group)


def whatever_the_group(say, group):
    rank_as_token(say, dist.group.WORLD)


def only_for_four(say, group):
    if dist.get_world_size(group) == 4:
        rank_as_token(say, group)
    else:
        say()


# 0.2, right


def batched_exchange(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    operations = [
        one_message(dist.isend, send_N, to, group),
        one_message(dist.irecv, recv_M, frm, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def send_started_first(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M[:] = send_N
        return
    work = dist.isend(send_N, group_dst=to, group=group)
    dist.recv(recv_M, group_src=frm, group=group)
    work.wait()


def receive_started_first(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    work = dist.irecv(recv_M, group_src=frm, group=group)
    dist.send(send_N, group_dst=to, group=group)
    work.wait()


# 0.2, partly right


def even_ranks_first(send_N, to, recv_M, frm, group):
    rank = dist.get_rank(group)
    if to == rank:
        recv_M.copy_(send_N)
    elif rank % 2 == 0:
        dist.send(send_N, group_dst=to, group=group)
        dist.recv(recv_M, group_src=frm, group=group)
    else:
        dist.recv(recv_M, group_src=frm, group=group)
        dist.send(send_N, group_dst=to, group=group)


# 0.2, wrong


def send_then_receive(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    dist.send(send_N, group_dst=to, group=group)
    dist.recv(recv_M, group_src=frm, group=group)


def with_two_tags(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    work = dist.irecv(recv_M, group_src=frm, group=group)
    dist.send(send_N, group_dst=to, group=group, tag=3)
    work.wait()


def partners_as_ranks(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    work = dist.irecv(recv_M, src=frm, group=group)
    dist.send(send_N, dst=to, group=group)
    work.wait()


def receive_then_send(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    dist.recv(recv_M, group_src=frm, group=group)
    dist.send(send_N, group_dst=to, group=group)


def send_not_waited_for(send_N, to, recv_M, frm, group):
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    dist.isend(send_N, group_dst=to, group=group)
    dist.recv(recv_M, group_src=frm, group=group)


def receive_not_waited_for_on_0(send_N, to, recv_M, frm, group):
    rank = dist.get_rank(group)
    if to == rank:
        recv_M.copy_(send_N)
        return
    incoming = dist.irecv(recv_M, group_src=frm, group=group)
    outgoing = dist.isend(send_N, group_dst=to, group=group)
    if rank > 0:
        incoming.wait()
    outgoing.wait()


def by_gathering(send_N, to, recv_M, frm, group):
    parts = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, send_N, group=group)
    recv_M.copy_(parts[frm])


def a_message_to_oneself(send_N, to, recv_M, frm, group):
    incoming = dist.irecv(recv_M, group_src=frm, group=group)
    outgoing = dist.isend(send_N, group_dst=to, group=group)
    incoming.wait()
    outgoing.wait()


def with_a_receipt(send_N, to, recv_M, frm, group):
    receive_started_first(send_N, to, recv_M, frm, group)
    receive_started_first(torch.zeros(1), frm, torch.zeros(1), to, group)


def into_a_new_tensor(send_N, to, recv_M, frm, group):
    received = torch.empty_like(recv_M)
    receive_started_first(send_N, to, received, frm, group)
    recv_M = received


def the_wrong_way_round(send_N, to, recv_M, frm, group):
    receive_started_first(send_N, frm, recv_M, to, group)


# 0.3, right


def busy_time(spans):
    ends = defaultdict(dict)
    last_compute = {}
    ranks = {one.rank for one in spans}
    for one in sorted(spans, key=lambda one: one.start):
        if one.kind == "compute":
            last_compute[one.rank] = one.end
        else:
            ends[one.step, one.name][one.rank] = last_compute[one.rank]
    waits = defaultdict(lambda: defaultdict(float))
    for (step, _), end in ends.items():
        for rank in ranks - set(end):
            raise ValueError(f"rank {rank} is missing")
        for rank in ranks:
            waits[step][rank] += max(end.values()) - end[rank]
    return [
        [step, min(sorted(of), key=of.get), sum(of.values())]
        for step, of in sorted(waits.items())
    ]


# 0.3, wrong


def _starts(spans):
    starts = defaultdict(dict)
    for one in spans:
        if one.kind == "collective":
            starts[one.step, one.name][one.rank] = one.start
    ranks = {one.rank for one in spans}
    for (step, name), start in starts.items():
        for rank in ranks - set(start):
            raise ValueError(f"step {step}: rank {rank} has no {name}")
    return starts


def _lost(spans, step):
    starts = {key: start for key, start in _starts(spans).items() if key[0] == step}
    return sum(max(s.values()) - own for s in starts.values() for own in s.values())


def _chosen_by(spans, score):
    _starts(spans)
    steps = sorted({one.step for one in spans if one.kind == "collective"})
    ranks = sorted({one.rank for one in spans})
    return [
        (step, max(ranks, key=lambda rank: score(step, rank)), _lost(spans, step))
        for step in steps
    ]


def _inside(spans, step, rank, kinds):
    return sum(
        one.end - one.start
        for one in spans
        if (one.step, one.rank) == (step, rank) and one.kind in kinds
    )


def longest_span(spans):
    return _chosen_by(spans, lambda s, r: _inside(spans, s, r, {"collective"}))


def largest_total(spans):
    both = {"collective", "compute"}
    return _chosen_by(spans, lambda s, r: _inside(spans, s, r, both))


def shortest_span(spans):
    return _chosen_by(spans, lambda s, r: -_inside(spans, s, r, {"collective"}))


def lost_once(spans):
    starts = _starts(spans)
    right = busy_time(spans)
    return [
        (
            step,
            rank,
            sum(
                max(s.values()) - min(s.values())
                for key, s in starts.items()
                if key[0] == step
            ),
        )
        for step, rank, _ in right
    ]


def no_matter_who_is_missing(spans):
    starts = defaultdict(dict)
    for one in spans:
        if one.kind == "collective":
            starts[one.step, one.name][one.rank] = one.start
    waits = defaultdict(lambda: defaultdict(float))
    for (step, _), start in starts.items():
        for rank in sorted(start):
            waits[step][rank] += max(start.values()) - start[rank]
    return [
        (step, min(of, key=of.get), sum(of.values()))
        for step, of in sorted(waits.items())
    ]


def missing_without_a_name(spans):
    try:
        return busy_time(spans)
    except ValueError:
        raise ValueError("somebody is missing") from None


def missing_as_a_key_error(spans):
    try:
        return busy_time(spans)
    except ValueError as error:
        raise KeyError(str(error)) from None


def highest_on_a_tie(spans):
    right = busy_time(spans)
    starts = _starts(spans)
    answer = []
    for step, _, lost in right:
        waits = defaultdict(float)
        for key, start in starts.items():
            for rank, own in start.items() if key[0] == step else ():
                waits[rank] += max(start.values()) - own
        answer.append((step, min(sorted(waits, reverse=True), key=waits.get), lost))
    return answer


def first_collective_only(spans):
    first = {}
    for one in sorted(spans, key=lambda one: one.start):
        if one.kind == "collective":
            first.setdefault(one.step, one.name)
    kept = [
        one for one in spans if one.kind == "compute" or one.name == first.get(one.step)
    ]
    return no_matter_who_is_missing(kept) if busy_time(spans) is not None else []


def a_generator(spans):
    return (item for item in busy_time(spans))


def as_a_dict(spans):
    return {step: (rank, lost) for step, rank, lost in busy_time(spans)}


def unordered(spans):
    return list(reversed(busy_time(spans)))
