"""How long a group's collectives take, in a node and across nodes.

    ring        every rank sends to the next, each node passes on to the next node:
                the slower of a node's own ring and its NICs decides
    tree        two nodes whose switches add up: the tensor crosses between the nodes
                once each way; what of the shorter part is not hidden is calibrated

Of a group of which a node holds g ranks, g share the NICs next to them: one rank alone
sends through one NIC, however many the node has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import NamedTuple

from labkit.errors import UsageError
from labkit.replay.curve import Curve
from labkit.replay.number import check_count, check_positive, check_time


class Time(NamedTuple):
    """The fixed part of a transfer, and how long its bytes then move."""

    latency_s: float
    moving_s: float

    def halved(self) -> Time:
        """One of the two halves of an all-reduce."""
        return Time(self.latency_s / 2, self.moving_s / 2)


class Layout(NamedTuple):
    """Where a group's ranks are: `ranks_of` counts those of each node, in order."""

    num_ranks: int
    ranks_of: dict[int, int]

    @property
    def num_nodes(self) -> int:
        """Nodes with a rank of the group."""
        return len(self.ranks_of)

    @property
    def most(self) -> int:
        """Ranks of the node that has most of them."""
        return max(self.ranks_of.values())


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins ranks. `all_reduce` and `ring` are by the number of ranks in a node.

    Attributes:
        all_reduce: Time of an all-reduce by the bytes of the tensor.
        ring: The same, done by a ring: what the other collectives are made of. Where
            no switch adds up it is `all_reduce`.
        message: Time of a message by its bytes, inside a node.
        port_bytes_per_s: What a rank sends, and what it receives, at most.
        ranks_per_node: How many ranks a node has.
        num_nodes: How many nodes there are; None for as many as the ranks need.
        num_nics: NICs of a node.
        nic_bytes_per_s: What one NIC sends, and what it receives.
        hop_s: Latency of a message between nodes.
        adds_in_switch: Whether switches add up.
        exposed: Share of the shorter part of a tree that adds to the longer one.
    """

    all_reduce: Mapping[int, Curve]
    ring: Mapping[int, Curve]
    message: Curve
    port_bytes_per_s: float
    ranks_per_node: int
    num_nodes: int | None
    num_nics: int
    nic_bytes_per_s: float
    hop_s: float
    adds_in_switch: bool = False
    exposed: float = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers that no network has.

        Raises:
            UsageError: One is missing, negative, 0 where it cannot be, or no number.
        """
        for field in ("port_bytes_per_s", "nic_bytes_per_s"):
            check_positive("a network", field, getattr(self, field))
        for field in ("hop_s", "exposed"):
            check_time("a network", field, getattr(self, field))
        for field in ("ranks_per_node", "num_nics"):
            check_count("a network", field, getattr(self, field))
        if self.num_nodes is not None:
            check_count("a network", "num_nodes", self.num_nodes)
        for field in ("all_reduce", "ring"):
            known = sorted(getattr(self, field))
            if not known or known[0] < 2:
                raise UsageError(
                    "a network needs the times of an all-reduce and of a ring, for "
                    f"one number of ranks at least, none below 2; {field} has them for "
                    f"{known or 'none'}. Measure them: `labkit bench comm`"
                )

    def node(self, rank: int) -> int:
        """The node that a rank is on."""
        return rank // self.ranks_per_node

    def layout(self, ranks: tuple[int, ...]) -> Layout:
        """Which nodes the ranks are on: `ranks_per_node` of them on each, in order."""
        counted = Counter(map(self.node, ranks))
        return Layout(len(ranks), dict(sorted(counted.items())))

    def nic_rate_bytes_per_s(self, num_ranks: int) -> float:
        """What that many ranks of one node send to other nodes, all together."""
        share = self.num_nics * num_ranks / self.ranks_per_node
        return self.nic_bytes_per_s * min(self.num_nics, max(1.0, share))

    def all_reduce_time(self, group: Layout, num_bytes: float) -> Time:
        """Of a tensor of so many bytes, by the faster of ring and tree."""
        if group.num_nodes == 1:
            return _time(_of(self.all_reduce, group.num_ranks), num_bytes)
        ring = self.ring_time(group, num_bytes)
        return min(ring, self.tree_time(group, num_bytes), key=sum)

    def uses_tree(self, group: Layout, num_bytes: float) -> bool:
        """Whether an all-reduce goes by the tree, not by the ring."""
        if group.num_nodes == 1:
            return False
        ring = self.ring_time(group, num_bytes)
        return sum(self.tree_time(group, num_bytes)) < sum(ring)

    def ring_time(self, group: Layout, num_bytes: float) -> Time:
        """Of an all-reduce by a ring."""
        if group.num_nodes == 1:
            return _time(_of(self.ring, group.num_ranks), num_bytes)
        edge_bytes = ring_edge_bytes(group.num_ranks, num_bytes)
        across_s = edge_bytes / self.nic_rate_bytes_per_s(group.most)
        inside_s = 0.0
        if group.most > 1:
            # The node's own ring with as many bytes on each edge.
            same_bytes = edge_bytes * group.most / (2 * (group.most - 1))
            inside_s = _time(_of(self.ring, group.most), same_bytes).moving_s
        return Time(self._latency_s(group), max(inside_s, across_s))

    def tree_time(self, group: Layout, num_bytes: float) -> Time:
        """Of an all-reduce by a tree over two nodes whose switches add up."""
        if not self.adds_in_switch or group.num_nodes != 2:
            return Time(float("inf"), float("inf"))
        across_s = num_bytes / self.nic_rate_bytes_per_s(group.most)
        inside_s = 0.0
        if group.most > 1:
            inside_s = _time(_of(self.all_reduce, group.most), num_bytes).moving_s
        shorter_s, longer_s = sorted((inside_s, across_s))
        return Time(self._latency_s(group), longer_s + self.exposed * shorter_s)

    def message_time(self, between: Layout, num_bytes: float) -> Time:
        """Of a message from one rank to another."""
        inside = _time(self.message, num_bytes)
        if between.num_nodes == 1:
            return inside
        across_s = num_bytes / self.nic_rate_bytes_per_s(1)
        return Time(inside.latency_s + self.hop_s, max(inside.moving_s, across_s))

    def scaled(self, *, latency: float = 1.0, rate: float = 1.0) -> Network:
        """With every latency times one factor, and every rate times another."""

        def each(curves: Mapping[int, Curve]) -> dict[int, Curve]:
            return {
                num_ranks: curve.scaled(latency=latency, rate=rate)
                for num_ranks, curve in curves.items()
            }

        return replace(
            self,
            all_reduce=each(self.all_reduce),
            ring=each(self.ring),
            message=self.message.scaled(latency=latency, rate=rate),
            port_bytes_per_s=self.port_bytes_per_s * rate,
            nic_bytes_per_s=self.nic_bytes_per_s * rate,
            hop_s=self.hop_s * latency,
        )

    def _latency_s(self, group: Layout) -> float:
        """Of the smallest all-reduce across nodes: in the nodes, and between them."""
        inside_s = _of(self.ring, max(2, group.most)).latency_s
        return inside_s + 2 * ceil(log2(group.num_nodes)) * self.hop_s


def ring_edge_bytes(num_ranks: int, num_bytes: float) -> float:
    """Bytes that each rank sends in a ring all-reduce: 2 (n - 1) / n of the tensor."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def _time(curve: Curve, num_bytes: float) -> Time:
    return Time(curve.latency_s, curve.at(num_bytes) - curve.latency_s)


def _of(curves: Mapping[int, Curve], num_ranks: int) -> Curve:
    """The curve of so many ranks; the nearest one's, by a ring's steps and bytes."""
    if num_ranks in curves:
        return curves[num_ranks]
    known = min(curves, key=lambda each: (abs(each - num_ranks), each))
    num_steps = (num_ranks - 1) / (known - 1)
    more_bytes = ring_edge_bytes(num_ranks, 1) / ring_edge_bytes(known, 1)
    return curves[known].scaled(latency=num_steps, rate=1 / more_bytes)
