"""A machine with a source for every number: devices, and the network that joins them.

`hardware("2x dgx-h100 infiniband")` finds one by its name (`labkit.replay.catalog`).
`with_` turns its knobs: what if the link were half as fast?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.errors import UsageError
from labkit.record.program import Comm, Work
from labkit.replay import collectives
from labkit.replay.device import Device
from labkit.replay.machine import Demand, Link
from labkit.replay.network import Network
from labkit.replay.number import check_count, check_positive, check_time


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A `labkit.replay.machine.Machine`; a rank's node is rank // ranks a node.

    Attributes:
        name: What it is found by, and what a replayed Program says.
        device: What a rank computes on.
        network: What joins the ranks.
        launch_s: Host time to launch one kernel.
        comm_launch_s: Host time to issue a transfer.
        is_cpu: Whether the host computes.
        sources: Where each number is from, by its field.
        notes: What the model leaves out or had to guess.
        changed: The knobs that were turned, in words.
    """

    name: str
    device: Device
    network: Network
    launch_s: float
    comm_launch_s: float
    is_cpu: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    _asked: dict[Any, Demand] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse times that no machine has.

        Raises:
            UsageError: One is missing, negative, infinite or no number.
        """
        check_time(self.name, "launch_s", self.launch_s)
        check_time(self.name, "comm_launch_s", self.comm_launch_s)

    @property
    def latency_s(self) -> float:
        """What the smallest message takes: across nodes where there are several."""
        across_s = self.network.hop_s if self.network.num_nodes != 1 else 0.0
        return self.network.message.latency_s + across_s

    @property
    def link_bytes_per_s(self) -> float:
        """The link that decides: a node's NICs where there are nodes, else a port."""
        network = self.network
        if network.num_nodes == 1:
            return network.port_bytes_per_s
        return network.nic_bytes_per_s * network.num_nics

    @property
    def flops_per_s(self) -> float:
        """The peak of bfloat16, what training computes in, where it has a rate."""
        peaks = self.device.peak_flops_per_s
        return peaks.get("bfloat16", peaks.get("float16", peaks["float32"]))

    @property
    def ranks_per_node(self) -> int:
        """How many ranks a node has."""
        return self.network.ranks_per_node

    def work_s(self, work: Work) -> float:
        """Device time of an operation, its launch not counted."""
        return self.device.work_s(work)

    def demand(self, comm: Comm, ranks: tuple[int, ...]) -> Demand:
        """What a transfer asks of the network.

        Raises:
            UsageError: A rank is on a node that this machine does not have.
        """
        key = (
            comm.kind, comm.logical_bytes, comm.peer, comm.send_splits,
            comm.recv_splits, comm.rank if comm.send_splits else None, ranks,
        )  # fmt: skip
        found = self._asked.get(key)
        if found is None:
            self._check_ranks(ranks)
            found = collectives.demand(self.network, comm, ranks)
            self._asked[key] = found
        return found

    def capacity_bytes_per_s(self, link: Link) -> float:
        """What a rank's port or a node's NICs carry, at most."""
        return collectives.capacity_bytes_per_s(self.network, link)

    def with_(
        self,
        *,
        link_bytes_per_s: float | None = None,
        latency_s: float | None = None,
        flops_per_s: float | None = None,
        ranks_per_node: int | None = None,
    ) -> Hardware:
        """The same machine with knobs turned.

        Args:
            link_bytes_per_s: What the deciding link carries; all links change alike.
            latency_s: What the smallest message takes; all latencies change alike.
            flops_per_s: The peak; all dtypes change alike.
            ranks_per_node: Ranks a node; there are then as many nodes as needed.

        Raises:
            UsageError: A number is negative, 0, infinite or none.
        """
        network, device = self.network, self.device
        changed = list(self.changed)
        if link_bytes_per_s is not None:
            check_positive(self.name, "link_bytes_per_s", link_bytes_per_s)
            rate = link_bytes_per_s / self.link_bytes_per_s
            network = network.scaled(rate=rate)
            changed += _turned("links", rate)
        if latency_s is not None:
            check_positive(self.name, "latency_s", latency_s)
            if not self.latency_s:
                raise UsageError(
                    f"to turn its latencies, a machine must have one; {self.name!r} "
                    f"has 0 s, and {latency_s:g} s was asked for. Give its network's "
                    "`message` a latency"
                )
            longer = latency_s / self.latency_s
            network = network.scaled(latency=longer)
            changed += _turned("latencies", longer)
        if flops_per_s is not None:
            check_positive(self.name, "flops_per_s", flops_per_s)
            faster = flops_per_s / self.flops_per_s
            device = device.scaled(faster)
            changed += _turned("FLOP/s", faster)
        if ranks_per_node is not None and ranks_per_node != self.ranks_per_node:
            check_count(self.name, "ranks_per_node", ranks_per_node)
            network = replace(network, ranks_per_node=ranks_per_node, num_nodes=None)
            changed.append(f"{ranks_per_node} ranks a node")
        name = self.name.partition(" with ")[0]
        if changed:
            name = f"{name} with {', '.join(changed)}"
        return replace(
            self, name=name, network=network, device=device, changed=tuple(changed)
        )

    def _check_ranks(self, ranks: tuple[int, ...]) -> None:
        nodes = self.network.num_nodes
        needed = max(ranks) // self.ranks_per_node + 1
        if nodes is not None and needed > nodes:
            raise UsageError(
                f"a rank must be on one of the machine's nodes: {self.name!r} has "
                f"{nodes} x {self.ranks_per_node} ranks; rank {max(ranks)} takes part "
                f"in a transfer. Take at least {needed} nodes, as "
                f'"{needed}x dgx-h100 infiniband" has, or fewer ranks'
            )


def _turned(what: str, factor: float) -> list[str]:
    return [] if abs(factor - 1) < 1e-9 else [f"{what} x{factor:.3g}"]
