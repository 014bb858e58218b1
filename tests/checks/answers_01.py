"""Answers to the exercises of lesson 01: right ones, and wrong ones by name.

They stand on their own, as a learner's would: nothing of labkit is used.
"""

# Learners write no annotations.
# ruff: noqa: ANN001, ANN201, ANN202

import torch
import torch.distributed as dist


def exchange(send_N, to, recv_M, frm, group):
    incoming = dist.irecv(recv_M, group_src=frm, group=group)
    outgoing = dist.isend(send_N, group_dst=to, group=group)
    incoming.wait()
    outgoing.wait()


def cut(x_N, p):
    whole, more = divmod(x_N.numel(), p)
    return x_N.split([whole + (number < more) for number in range(p)])


# 1.1


def by_halving_the_range(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place, low, high = (rank - root) % p, 0, p
    while high - low > 1:
        middle = (low + high + 1) // 2
        if place == low:
            dist.send(x_N, group_dst=(middle + root) % p, group=group)
        elif place == middle:
            dist.recv(x_N, group_src=(low + root) % p, group=group)
        low, high = (low, middle) if place < middle else (middle, high)


def root_to_all(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        dist.recv(x_N, group_src=root, group=group)
        return
    for peer in range(p):
        if peer != root:
            dist.send(x_N, group_dst=peer, group=group)


def chain(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % p
    if place:
        dist.recv(x_N, group_src=(rank - 1) % p, group=group)
    if place < p - 1:
        dist.send(x_N, group_dst=(rank + 1) % p, group=group)


def absolute_ranks(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    step = 1
    while step < p:
        if rank < step and rank + step < p:
            dist.send(x_N, group_dst=rank + step, group=group)
        elif step <= rank < 2 * step:
            dist.recv(x_N, group_src=rank - step, group=group)
        step *= 2


def places_as_ranks(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % p
    step = 1
    while step < p:
        if place < step and place + step < p:
            dist.send(x_N, (place + step + root) % p, group=group)
        elif step <= place < 2 * step:
            dist.recv(x_N, (place - step + root) % p, group=group)
        step *= 2


def one_too_far(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % p
    step = 1
    while step < p:
        if place < step and place + step <= p:
            dist.send(x_N, group_dst=place + step + root, group=group)
        elif step <= place < 2 * step:
            dist.recv(x_N, group_src=(place - step + root) % p, group=group)
        step *= 2


def the_backends_broadcast(x_N, root, group):
    dist.broadcast(x_N, group_src=root, group=group)


def not_waited_for(x_N, root, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % p
    step = 1
    while step < p:
        if place < step and place + step < p:
            dist.isend(x_N, group_dst=(place + step + root) % p, group=group)
        elif step <= place < 2 * step:
            dist.recv(x_N, group_src=(place - step + root) % p, group=group)
        step *= 2


# 1.2


def ring_sums(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    partial = mine[(rank - 1) % p].clone()
    for step in range(p - 1):
        own = mine[(rank - step - 2) % p]
        arrived = torch.empty_like(own)
        exchange(partial, (rank + 1) % p, arrived, (rank - 1) % p, group)
        partial = arrived.add_(own)
    return partial


def the_other_way_round(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    partial = mine[(rank + 1) % p].clone()
    for step in range(p - 1):
        own = mine[(rank + step + 2) % p]
        arrived = torch.empty_like(own)
        exchange(partial, (rank - 1) % p, arrived, (rank + 1) % p, group)
        partial = arrived + own
    return partial


def whole_arrays(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    total, passed = x_N.clone(), x_N.clone()
    for _ in range(p - 1):
        arrived = torch.empty_like(x_N)
        exchange(passed, (rank + 1) % p, arrived, (rank - 1) % p, group)
        total += arrived
        passed = arrived
    return cut(total, p)[rank].clone()


def off_by_one(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    partial = mine[rank].clone()
    for step in range(p - 1):
        own = mine[(rank - step - 1) % p]
        arrived = torch.empty_like(own)
        exchange(partial, (rank + 1) % p, arrived, (rank - 1) % p, group)
        partial = arrived + own
    return partial


def torchs_chunks(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = list(x_N.chunk(p))
    mine += [x_N[:0]] * (p - len(mine))
    partial = mine[(rank - 1) % p].clone()
    for step in range(p - 1):
        own = mine[(rank - step - 2) % p]
        arrived = torch.empty_like(own)
        exchange(partial, (rank + 1) % p, arrived, (rank - 1) % p, group)
        partial = arrived + own
    return partial


def into_x_itself(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    for step in range(p - 1):
        own = mine[(rank - step - 2) % p]
        arrived = torch.empty_like(own)
        sent = mine[(rank - step - 1) % p]
        exchange(sent, (rank + 1) % p, arrived, (rank - 1) % p, group)
        own += arrived
    return mine[rank].clone()


def everything_kept(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    kept = [mine[(rank - 1) % p].clone()]
    for step in range(p - 1):
        own = mine[(rank - step - 2) % p]
        arrived = torch.empty_like(own)
        exchange(kept[-1], (rank + 1) % p, arrived, (rank - 1) % p, group)
        kept += [arrived, arrived + own]
    return kept[-1]


def straight_to_each(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    mine = cut(x_N, p)
    total = mine[rank].clone()
    for shift in range(1, p):
        arrived = torch.empty_like(total)
        to, frm = (rank + shift) % p, (rank - shift) % p
        exchange(mine[to], to, arrived, frm, group)
        total += arrived
    return total


def returns_nothing(x_N, group):
    ring_sums(x_N, group)


# 1.3


def ring_sum_everywhere(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % p, (rank - 1) % p
    parts = cut(x_N, p)
    scratch = torch.empty_like(parts[0])
    for step in range(p - 1):
        own = parts[(rank - step - 2) % p]
        arrived = scratch[: own.numel()]
        exchange(parts[(rank - step - 1) % p], right, arrived, left, group)
        own += arrived
    for step in range(p - 1):
        known, missing = parts[(rank - step) % p], parts[(rank - step - 1) % p]
        exchange(known, right, missing, left, group)


def from_two_halves(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    parts = cut(x_N, p)
    parts[rank].copy_(ring_sums(x_N, group))
    for step in range(p - 1):
        known, missing = parts[(rank - step) % p], parts[(rank - step - 1) % p]
        exchange(known, (rank + 1) % p, missing, (rank - 1) % p, group)


def gathers_whole_arrays(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    passed = x_N.clone()
    for _ in range(p - 1):
        arrived = torch.empty_like(x_N)
        exchange(passed, (rank + 1) % p, arrived, (rank - 1) % p, group)
        x_N += arrived
        passed = arrived


def a_mean(x_N, group):
    ring_sum_everywhere(x_N, group)
    if x_N.is_floating_point():
        x_N.div_(dist.get_world_size(group))
    else:
        x_N.floor_divide_(dist.get_world_size(group))


def buffers_in_a_list(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    parts = cut(x_N, p)
    buffers = [torch.empty_like(parts[0]) for _ in range(2 * (p - 1))]
    for step in range(p - 1):
        own = parts[(rank - step - 2) % p]
        arrived = buffers[step][: own.numel()]
        sent = parts[(rank - step - 1) % p]
        exchange(sent, (rank + 1) % p, arrived, (rank - 1) % p, group)
        own += arrived
    for step in range(p - 1):
        missing = parts[(rank - step - 1) % p]
        arrived = buffers[p - 1 + step][: missing.numel()]
        sent = parts[(rank - step) % p]
        exchange(sent, (rank + 1) % p, arrived, (rank - 1) % p, group)
        missing.copy_(arrived)


def half_of_it(x_N, group):
    cut(x_N, dist.get_world_size(group))[dist.get_rank(group)].copy_(
        ring_sums(x_N, group)
    )


def the_backends_all_reduce(x_N, group):
    dist.all_reduce(x_N, group=group)


# 1.4


def halve_and_double(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (p.bit_length() - 1)
    extra = rank ^ power
    if rank >= power:
        dist.send(x_N, group_dst=extra, group=group)
        dist.recv(x_N, group_src=extra, group=group)
        return
    if extra < p:
        arrived = torch.empty_like(x_N)
        dist.recv(arrived, group_src=extra, group=group)
        x_N += arrived
    kept, walked, distance = x_N, [], 1
    while distance < power:
        middle = kept.numel() // 2
        kept, given = kept[:middle], kept[middle:]
        if rank & distance:
            kept, given = given, kept
        arrived = torch.empty_like(kept)
        exchange(given, rank ^ distance, arrived, rank ^ distance, group)
        kept += arrived
        walked.append((kept, given, rank ^ distance))
        distance *= 2
    for owned, missing, peer in reversed(walked):
        exchange(owned, peer, missing, peer, group)
    if extra < p:
        dist.send(x_N, group_dst=extra, group=group)


def by_recursion(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (p.bit_length() - 1)
    if rank >= power:
        dist.send(x_N, group_dst=rank - power, group=group)
        dist.recv(x_N, group_src=rank - power, group=group)
        return
    if rank + power < p:
        arrived = torch.empty_like(x_N)
        dist.recv(arrived, group_src=rank + power, group=group)
        x_N += arrived
    recurse(x_N, 1, power, rank, group)
    if rank + power < p:
        dist.send(x_N, group_dst=rank + power, group=group)


def recurse(x_n, distance, power, rank, group):
    if distance == power:
        return
    low, high = x_n.tensor_split(2)
    mine, theirs = (high, low) if rank & distance else (low, high)
    peer, arrived = rank ^ distance, torch.empty_like(mine)
    exchange(theirs, peer, arrived, peer, group)
    mine += arrived
    recurse(mine, 2 * distance, power, rank, group)
    exchange(mine, peer, theirs, peer, group)


def powers_only(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    recurse(x_N, 1, 1 << (p.bit_length() - 1), rank, group)


def recursive_doubling(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (p.bit_length() - 1)
    if rank >= power:
        dist.send(x_N, group_dst=rank - power, group=group)
        dist.recv(x_N, group_src=rank - power, group=group)
        return
    arrived = torch.empty_like(x_N)
    if rank + power < p:
        dist.recv(arrived, group_src=rank + power, group=group)
        x_N += arrived
    distance = 1
    while distance < power:
        exchange(x_N.clone(), rank ^ distance, arrived, rank ^ distance, group)
        x_N += arrived
        distance *= 2
    if rank + power < p:
        dist.send(x_N, group_dst=rank + power, group=group)


def far_first(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (p.bit_length() - 1)
    if rank >= power:
        dist.send(x_N, group_dst=rank - power, group=group)
        dist.recv(x_N, group_src=rank - power, group=group)
        return
    if rank + power < p:
        arrived = torch.empty_like(x_N)
        dist.recv(arrived, group_src=rank + power, group=group)
        x_N += arrived
    kept, walked, distance = x_N, [], power // 2
    while distance:
        low, high = kept.tensor_split(2)
        kept, given = (high, low) if rank & distance else (low, high)
        arrived = torch.empty_like(kept)
        exchange(given, rank ^ distance, arrived, rank ^ distance, group)
        kept += arrived
        walked.append((kept, given, rank ^ distance))
        distance //= 2
    for owned, missing, peer in reversed(walked):
        exchange(owned, peer, missing, peer, group)
    if rank + power < p:
        dist.send(x_N, group_dst=rank + power, group=group)


def plus_instead_of_xor(x_N, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    kept, distance = x_N, 1
    while distance < p:
        low, high = kept.tensor_split(2)
        kept, given = (high, low) if rank & distance else (low, high)
        arrived = torch.empty_like(kept)
        exchange(given, rank + distance, arrived, rank + distance, group)
        kept += arrived
        distance *= 2


# 1.5


def predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte):
    levels = (p - 1).bit_length()
    rounds, units = {
        "naive": (2 * (p - 1), 2 * (p - 1)),
        "tree": (2 * levels, 2 * levels),
        "ring": (2 * (p - 1), 2 * (p - 1) / p),
        "halving": (2 * levels, 2 * (p - 1) / p),
    }[algorithm]
    return rounds * alpha_s + units * num_bytes * beta_s_per_byte


def crossover_bytes(p, alpha_s, beta_s_per_byte):
    levels = (p - 1).bit_length()
    if p - 1 <= levels:
        return 0.0
    return alpha_s / beta_s_per_byte * (p - 1 - levels) / (levels - (p - 1) / p)


def by_bisection(p, alpha_s, beta_s_per_byte):
    def is_ring_ahead(num_bytes):
        given = p, num_bytes, alpha_s, beta_s_per_byte
        return predict_s("ring", *given) <= predict_s("tree", *given)

    low, high = 0.0, 1e18
    if is_ring_ahead(low):
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if is_ring_ahead(middle) else (middle, high)
    return high


def alpha_once(algorithm, p, num_bytes, alpha_s, beta_s_per_byte):
    if algorithm == "ring":
        return alpha_s * (p > 1) + 2 * (p - 1) / p * num_bytes * beta_s_per_byte
    return predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte)


def rounded_down(algorithm, p, num_bytes, alpha_s, beta_s_per_byte):
    if algorithm == "tree":
        levels = p.bit_length() - 1
        return 2 * levels * (alpha_s + num_bytes * beta_s_per_byte)
    return predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte)


def whole_arrays_round_the_ring(algorithm, p, num_bytes, alpha_s, beta_s_per_byte):
    if algorithm == "ring":
        return 2 * (p - 1) * (alpha_s + num_bytes * beta_s_per_byte)
    return predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte)


def below_zero(p, alpha_s, beta_s_per_byte):
    levels = max(1, (p - 1).bit_length())
    return alpha_s / beta_s_per_byte * (p - 1 - levels) / (levels - (p - 1) / p)


# 1.6


def rotating_pairs(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(size) for size in recv_sizes]
    came[rank].copy_(send[rank])
    for shift in range(1, p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        exchange(send[to], to, came[frm], frm, group)
    return came


def all_started_at_once(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(size) for size in recv_sizes]
    came[rank].copy_(send[rank])
    works = []
    for shift in range(1, p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        works.append(dist.irecv(came[frm], group_src=frm, group=group))
        works.append(dist.isend(send[to], group_dst=to, group=group))
    for work in works:
        work.wait()
    return came


def from_0_to_the_last(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(size) for size in recv_sizes]
    came[rank].copy_(send[rank])
    works = [
        dist.irecv(came[r], group_src=r, group=group) for r in range(p) if r != rank
    ]
    works += [
        dist.isend(send[r], group_dst=r, group=group) for r in range(p) if r != rank
    ]
    for work in works:
        work.wait()
    return came


def padded(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(2048) for _ in recv_sizes]
    came[rank][: recv_sizes[rank]] = send[rank]
    for shift in range(1, p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        full = send[to].new_zeros(2048)
        full[: send[to].numel()] = send[to]
        exchange(full, to, came[frm], frm, group)
    return [piece[:size] for piece, size in zip(came, recv_sizes, strict=True)]


def in_order_of_arrival(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].clone()]
    for shift in range(1, p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        came.append(send[rank].new_empty(recv_sizes[frm]))
        exchange(send[to], to, came[-1], frm, group)
    return came


def skips_empty_sends(send, recv_sizes, group):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(size) for size in recv_sizes]
    came[rank].copy_(send[rank])
    for shift in range(1, p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        incoming = dist.irecv(came[frm], group_src=frm, group=group)
        if send[to].numel():
            dist.isend(send[to], group_dst=to, group=group).wait()
        incoming.wait()
    return came


def a_tuple(send, recv_sizes, group):
    return tuple(rotating_pairs(send, recv_sizes, group))


def one_tensor(send, recv_sizes, group):
    return torch.cat(rotating_pairs(send, recv_sizes, group))
