"""What each kind of transfer asks of the network: its time alone, its bytes on links.

S is the whole tensor, n the group's ranks, s = S / n one rank's share.

    all_reduce              ring: 2 (n-1)/n S out of and into every rank; where the
                            switch adds up: S (n+1)/n
    reduce_scatter,         half a ring all-reduce: (n-1)/n S
    all_gather, all_to_all  (uneven: the larger of what this rank sends and receives)
    broadcast, reduce       a chain from the root, or to it: S on each edge
    gather, scatter         straight to the root, or from it: (n-1) s at the root
    send, recv              S
    barrier, new_group      the latency of the smallest all-reduce

Each node sends what an edge of the ring carries to the next node, once.
"""

from __future__ import annotations

from itertools import pairwise

from labkit.record.program import Comm
from labkit.replay.machine import Demand, Link
from labkit.replay.network import Layout, Network, Time, ring_edge_bytes

Links = dict[Link, float]


def demand(network: Network, comm: Comm, ranks: tuple[int, ...]) -> Demand:
    """What a transfer asks of the network.

    Args:
        network: Its times and rates.
        comm: The transfer, as one of its ranks issued it.
        ranks: Global: the group; of a message, source and destination.
    """
    if len(set(ranks)) < 2:
        return Demand(0.0, 0.0)
    group = network.layout(ranks)
    time, links = _asked(network, comm, ranks, group)
    # A link is never asked for more than it carries.
    least_s = max(
        (num / capacity_bytes_per_s(network, link) for link, num in links.items()),
        default=0.0,
    )
    used = tuple((link, num) for link, num in links.items() if num > 0)
    return Demand(time.latency_s, max(time.moving_s, least_s), used)


def capacity_bytes_per_s(network: Network, link: Link) -> float:
    """A rank's port, or all the NICs of a node."""
    if link[0] in ("out", "in"):
        return network.port_bytes_per_s
    return network.nic_bytes_per_s * network.num_nics


def _asked(
    network: Network, comm: Comm, ranks: tuple[int, ...], group: Layout
) -> tuple[Time, Links]:
    payload, n = float(comm.logical_bytes), len(ranks)
    match comm.kind:
        case "send" | "recv":
            return network.message_time(group, payload), _message(
                network, ranks, payload
            )
        case "all_reduce":
            return _all_reduce(network, ranks, group, payload)
        case "reduce_scatter":
            return _half_ring(network, ranks, group, payload)
        case "all_gather":
            return _half_ring(network, ranks, group, payload * n)
        case "all_to_all":
            return _all_to_all(network, comm, ranks, group)
        case "broadcast" | "reduce":
            return _chain(network, comm, ranks, group)
        case "gather" | "scatter":
            return _star(network, comm, ranks, group)
        case "barrier" | "new_group":
            return network.all_reduce_time(group, 0.0), {}


def _all_reduce(
    network: Network, ranks: tuple[int, ...], group: Layout, num_bytes: float
) -> tuple[Time, Links]:
    time = network.all_reduce_time(group, num_bytes)
    ring_bytes = ring_edge_bytes(len(ranks), num_bytes)
    if group.num_nodes > 1 and network.uses_tree(group, num_bytes):
        port_bytes = _switch_bytes(group.most, num_bytes)
        return time, _even(ranks, group, port_bytes, num_bytes)
    port_bytes = ring_bytes
    if network.adds_in_switch and group.num_nodes == 1:
        port_bytes = min(ring_bytes, _switch_bytes(len(ranks), num_bytes))
    return time, _even(ranks, group, port_bytes, ring_bytes)


def _switch_bytes(num_ranks: int, num_bytes: float) -> float:
    """Out of each rank where the switch adds up: its tensor, and its share of sums."""
    return num_bytes * (num_ranks + 1) / num_ranks if num_ranks > 1 else num_bytes


def _half_ring(
    network: Network, ranks: tuple[int, ...], group: Layout, num_bytes: float
) -> tuple[Time, Links]:
    edge_bytes = ring_edge_bytes(len(ranks), num_bytes) / 2
    time = network.ring_time(group, num_bytes).halved()
    return time, _even(ranks, group, edge_bytes, edge_bytes)


def _all_to_all(
    network: Network, comm: Comm, ranks: tuple[int, ...], group: Layout
) -> tuple[Time, Links]:
    n = len(ranks)
    leaving = _leaving_bytes(comm, ranks)
    links = _even(ranks, group, leaving, 0.0)
    moving_s = _inside_s(network, n, leaving * n / (n - 1))
    if group.num_nodes > 1:
        for node, count in group.ranks_of.items():
            crossing = count * leaving * (n - count) / (n - 1)
            links["nic_out", node] = links["nic_in", node] = crossing
            across_s = crossing / network.nic_rate_bytes_per_s(count)
            moving_s = max(moving_s, across_s)
    return Time(network.ring_time(group, 0.0).latency_s / 2, moving_s), links


def _inside_s(network: Network, num_ranks: int, num_bytes: float) -> float:
    """How long half a ring all-reduce moves, were all its ranks in one node."""
    one_node = Layout(num_ranks, {0: num_ranks})
    return network.ring_time(one_node, num_bytes).moving_s / 2


def _leaving_bytes(comm: Comm, ranks: tuple[int, ...]) -> float:
    """Bytes that the rank sends to others, or receives from them, whichever is more.

    Other ranks are taken to send and receive as much: only this one's splits are known.
    """
    sent, received = comm.send_splits or (), comm.recv_splits or ()
    if not sum(sent):
        return comm.logical_bytes * (len(ranks) - 1) / len(ranks)
    element_bytes = comm.logical_bytes / sum(sent)
    own = ranks.index(comm.rank) if comm.rank in ranks else 0
    return element_bytes * max(_to_others(sent, own), _to_others(received, own))


def _to_others(splits: tuple[int, ...], own: int) -> int:
    return sum(splits) - (splits[own] if own < len(splits) else 0)


def _chain(
    network: Network, comm: Comm, ranks: tuple[int, ...], group: Layout
) -> tuple[Time, Links]:
    """A chain of ranks with the tensor on each edge, node after node from the root."""
    n, payload = len(ranks), float(comm.logical_bytes)
    ring = network.ring_time(group, payload * n / (2 * (n - 1)))
    root = ranks[0] if comm.peer is None else comm.peer
    towards, away = ("in", "out") if comm.kind == "broadcast" else ("out", "in")
    order = sorted(ranks, key=lambda rank: _distance(network, root, rank))
    links: Links = {}
    for near, far in pairwise(order):
        links[away, near] = links[towards, far] = payload
        if network.node(near) != network.node(far):
            links[f"nic_{away}", network.node(near)] = payload
            links[f"nic_{towards}", network.node(far)] = payload
    return Time(ring.latency_s / 2, ring.moving_s), links


def _distance(network: Network, root: int, rank: int) -> tuple[bool, int, bool, int]:
    node = network.node(rank)
    return node != network.node(root), node, rank != root, rank


def _star(
    network: Network, comm: Comm, ranks: tuple[int, ...], group: Layout
) -> tuple[Time, Links]:
    """Everybody's share straight to the root, or from it."""
    share, n = float(comm.logical_bytes), len(ranks)
    root = ranks[0] if comm.peer is None else comm.peer
    here = network.node(root)
    towards, away = ("in", "out") if comm.kind == "gather" else ("out", "in")
    links: Links = {(towards, root): (n - 1) * share}
    links |= {(away, rank): share for rank in ranks if rank != root}
    far = {node: count for node, count in group.ranks_of.items() if node != here}
    crossing = sum(far.values()) * share
    if far:
        links[f"nic_{towards}", here] = crossing
        links |= {(f"nic_{away}", node): count * share for node, count in far.items()}
    across_s = crossing / network.nic_rate_bytes_per_s(1)
    moving_s = max(_inside_s(network, n, n * share), across_s)
    return Time(network.ring_time(group, 0.0).latency_s / 2, moving_s), links


def _message(network: Network, ranks: tuple[int, ...], num_bytes: float) -> Links:
    source, destination = ranks
    links: Links = {("out", source): num_bytes, ("in", destination): num_bytes}
    here, there = network.node(source), network.node(destination)
    if here != there:
        links["nic_out", here] = links["nic_in", there] = num_bytes
    return links


def _even(
    ranks: tuple[int, ...], group: Layout, port_bytes: float, nic_bytes: float
) -> Links:
    """The same at every rank's port, and at every node's NICs."""
    links: Links = {}
    for rank in ranks:
        links["out", rank] = links["in", rank] = port_bytes
    if group.num_nodes > 1:
        for node in group.ranks_of:
            links["nic_out", node] = links["nic_in", node] = nic_bytes
    return links
