"""What the engine asks of a machine, and the simplest machine that answers.

The engine knows what every rank does and in which order; a machine knows how long each
thing takes. Everything between them is in `Machine`. `AlphaBeta` is the machine of the
textbooks: a message of S bytes takes alpha + S * beta, and an operation its FLOPs over
a rate. Exact closed forms hold on it, which is what it is for.

    labkit/replay/engine.py   gives a Program the times of a Machine
    labkit/replay/hardware.py real machines, from published figures and measured ones
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple, Protocol, TypeAlias

from labkit.record.program import Comm, Work
from labkit.replay.number import check_count, check_positive, check_time

# ("out", rank), ("in", rank): a rank's port. ("nic_out", node), ("nic_in", node): what
# the ranks of a node share.
Link: TypeAlias = tuple[str, int]


class Demand(NamedTuple):
    """What a transfer asks of the network.

    Attributes:
        latency_s: The fixed part, in which it uses no link.
        moving_s: How long its bytes then move while it shares no link.
        links: The bytes that it puts on each link that others may use too. While it
            moves at rate r (1 / moving_s at most), it takes r * bytes of each.
    """

    latency_s: float
    moving_s: float
    links: tuple[tuple[Link, float], ...] = ()


class Machine(Protocol):
    """Ranks, their devices and what joins them.

    All times are finite seconds from 0, all capacities finite and above 0; the engine
    refuses a machine that answers anything else. What a machine answers depends only
    on its arguments.
    """

    @property
    def name(self) -> str:
        """What a replayed Program says it has the times of."""
        ...

    @property
    def is_cpu(self) -> bool:
        """Whether the host runs Work itself; transfers run beside it either way."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What it leaves out or had to guess, in sentences: below every picture."""
        ...

    @property
    def launch_s(self) -> float:
        """Host time to launch one kernel."""
        ...

    @property
    def comm_launch_s(self) -> float:
        """Host time to issue a transfer."""
        ...

    def work_s(self, work: Work) -> float:
        """Device time of an operation, its launch not counted.

        It may depend on the operation's name, costs and dtype, on nothing else.
        """
        ...

    def demand(self, comm: Comm, ranks: tuple[int, ...]) -> Demand:
        """What a transfer asks of the network.

        Args:
            comm: The transfer, as one of its ranks issued it; of a message, the send.
            ranks: Global: the group, in group order; of a message, source and
                destination.
        """
        ...

    def capacity_bytes_per_s(self, link: Link) -> float:
        """What a link carries, at most."""
        ...


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """The machine of the closed forms: latency alpha, time beta for a byte.

    Collectives go round a ring in group order; a barrier takes ceil(log2 n) latencies.

    Attributes:
        alpha_s: Latency of one message.
        beta_s_per_byte: Time of a byte between two ranks: 1 / bandwidth.
        flops_per_s: Rate of a rank's device.
        bytes_per_s: Of its memory; None where memory is never the limit.
        launch_s: Host time to launch one kernel.
        comm_launch_s: Host time to issue a transfer.
        is_cpu: Whether the host computes.
        shares_ports: Whether the transfers of one rank share its ports, which carry
            1 / beta_s_per_byte each way.
        ranks_per_node: Ranks of a node; None where there is one node.
        nic_bytes_per_s: What a node sends, and what it receives, at most; None where
            nothing limits it.
    """

    alpha_s: float = 0.0
    beta_s_per_byte: float = 1e-9
    flops_per_s: float = 1e12
    bytes_per_s: float | None = None
    launch_s: float = 0.0
    comm_launch_s: float = 0.0
    is_cpu: bool = False
    shares_ports: bool = False
    ranks_per_node: int | None = None
    nic_bytes_per_s: float | None = None
    name: str = "alpha-beta model"
    notes: tuple[str, ...] = (
        "Rates are the same at every size, and collectives always go round a ring.",
    )

    def __post_init__(self) -> None:
        """Refuse numbers that no machine has.

        Raises:
            UsageError: One is missing, negative, infinite, no number, or a rate of 0.
        """
        for field in ("alpha_s", "launch_s", "comm_launch_s"):
            check_time(self.name, field, getattr(self, field))
        for field in ("beta_s_per_byte", "flops_per_s"):
            check_positive(self.name, field, getattr(self, field))
        for field in ("bytes_per_s", "nic_bytes_per_s"):
            if getattr(self, field) is not None:
                check_positive(self.name, field, getattr(self, field))
        if self.ranks_per_node is not None:
            check_count(self.name, "ranks_per_node", self.ranks_per_node)

    def work_s(self, work: Work) -> float:
        """The longer of computing and moving: the roofline."""
        computing = work.flops / self.flops_per_s
        return max(computing, work.moved_bytes / (self.bytes_per_s or float("inf")))

    def demand(self, comm: Comm, ranks: tuple[int, ...]) -> Demand:
        """The textbook's time of a transfer.

        A ring puts the same bytes on every edge; what a root gathers or scatters goes
        straight between it and the others.
        """
        num_steps, edge_bytes = _ring(comm, len(ranks))
        edges = [edge for edge in _edges(comm, ranks) if edge[0] != edge[1]]
        links = self._links([(*edge, edge_bytes) for edge in edges])
        moving = max(
            (num / self.capacity_bytes_per_s(link) for link, num in links.items()),
            default=0.0,
        )
        shared = tuple(
            (link, num) for link, num in links.items() if self._is_shared(link) and num
        )
        return Demand(num_steps * self.alpha_s, moving, shared)

    def capacity_bytes_per_s(self, link: Link) -> float:
        """1 / beta for a rank's port, the NIC's rate for a node's."""
        if link[0].startswith("nic") and self.nic_bytes_per_s is not None:
            return self.nic_bytes_per_s
        return 1 / self.beta_s_per_byte

    def _is_shared(self, link: Link) -> bool:
        return self.shares_ports or link[0].startswith("nic")

    def _links(self, edges: list[tuple[int, int, float]]) -> dict[Link, float]:
        """The bytes on each link, of messages (source, destination, bytes)."""
        links: dict[Link, float] = {}
        for source, destination, num_bytes in edges:
            used: list[Link] = [("out", source), ("in", destination)]
            here, there = self._node(source), self._node(destination)
            if here != there and self.nic_bytes_per_s is not None:
                used += [("nic_out", here), ("nic_in", there)]
            for link in used:
                links[link] = links.get(link, 0.0) + num_bytes
        return links

    def _node(self, rank: int) -> int:
        return rank // self.ranks_per_node if self.ranks_per_node else 0


def _ring(comm: Comm, size: int) -> tuple[float, float]:
    """Steps that follow on each other, and bytes on each edge, of a transfer."""
    payload, others = float(comm.logical_bytes), size - 1
    match comm.kind:
        case "send" | "recv":
            return 1, payload
        case "all_reduce":
            return 2 * others, 2 * others * payload / size
        case "reduce_scatter":
            return others, others * payload / size
        case "all_to_all":
            return others, _leaving(comm, size)
        case "all_gather":
            return others, others * payload
        case "barrier" | "new_group":
            return ceil(log2(size)), 0.0
        case "broadcast" | "reduce" | "gather" | "scatter":
            return others, payload


def _leaving(comm: Comm, size: int) -> float:
    """Bytes of an all_to_all that leave the rank, or reach it, whichever are more."""
    if not comm.send_splits or not sum(comm.send_splits):
        return (size - 1) * comm.logical_bytes / size
    element_bytes = comm.logical_bytes / sum(comm.send_splits)
    most = max(sum(comm.send_splits), sum(comm.recv_splits or ()))
    return element_bytes * most * (size - 1) / size


def _edges(comm: Comm, ranks: tuple[int, ...]) -> list[tuple[int, int]]:
    """Who sends to whom."""
    others = [rank for rank in ranks if rank != comm.peer]
    match comm.kind:
        case "send" | "recv":
            return [(ranks[0], ranks[1])]
        case "gather" if comm.peer is not None:
            return [(rank, comm.peer) for rank in others]
        case "scatter" if comm.peer is not None:
            return [(comm.peer, rank) for rank in others]
        case _:
            return list(zip(ranks, (*ranks[1:], *ranks[:1]), strict=True))
