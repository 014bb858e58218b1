"""Asks a machine what things cost, once each, and holds it to its contract."""

from __future__ import annotations

from typing import TypeAlias

from labkit.errors import UsageError
from labkit.record.program import Comm, Event, Work
from labkit.replay.links import Loads, keep_contended
from labkit.replay.machine import Link, Machine
from labkit.replay.number import is_amount
from labkit.replay.transfers import Transfer, describe

# Host time, then the device's; None where the host alone is busy.
Cost: TypeAlias = tuple[float, float | None]
NO_COST: Cost = (0.0, None)
# Where a Work has what its cost depends on: name, flops, moved_bytes, kernels, dtype,
# fixed_s.
PRICED = slice(4, 10)


class Prices:
    """The costs of a machine, each asked for once."""

    def __init__(self, machine: Machine, *, as_measured: bool) -> None:
        self._machine = machine
        self._as_measured = as_measured
        self._works: dict[tuple[object, ...], Cost] = {}
        self._capacities: dict[Link, float] = {}
        self._demands: dict[tuple[object, ...], tuple[float, float, Loads]] = {}
        self.is_cpu = machine.is_cpu
        self.launch_s = self._checked(machine.launch_s, "launch_s")
        self.comm_launch_s = self._checked(machine.comm_launch_s, "comm_launch_s")

    def _checked(self, value: float, what: str, least: float = 0.0) -> float:
        """Refuse what no machine can answer."""
        if is_amount(value) and value >= least:
            return float(value)
        bound = "at least 0" if least == 0 else "above 0"
        raise UsageError(
            f"what a machine answers must be finite and {bound}; "
            f"{self._machine.name!r} says {value!r} for {what}. Mend its numbers, or "
            "take another machine"
        )

    def works(self, events: tuple[Event, ...]) -> list[Cost]:
        """The cost of each event that is Work, NO_COST for every other."""
        known = self._works
        costs: list[Cost] = []
        for event in events:
            if type(event) is not Work:
                costs.append(NO_COST)
                continue
            if self._as_measured and is_stretch(event):
                costs.append(self._length(event))
                continue
            cost = known.get(event[PRICED])
            costs.append(self._price(event) if cost is None else cost)
        return costs

    def _length(self, work: Work) -> Cost:
        """What a stretch of compute took."""
        length_s = (work.end_s or 0.0) - (work.start_s or 0.0)
        if is_amount(length_s):
            return length_s, None
        raise UsageError(
            f"work must begin before it ends; rank {work.rank} has {work.name!r} "
            f"(event {work.seq}) from {work.start_s!r} to {work.end_s!r} s. Record "
            "again"
        )

    def _price(self, work: Work) -> Cost:
        for field in ("flops", "moved_bytes", "kernels", "fixed_s"):
            value = getattr(work, field)
            is_fixed = field == "fixed_s" and value is None
            if not (is_fixed or is_amount(value)):
                raise UsageError(
                    f"the costs of an operation must be finite and at least 0; rank "
                    f"{work.rank} has {field} = {value!r} for {work.name!r} (event "
                    f"{work.seq}). Record again, or mend the plan"
                )
        if work.fixed_s is not None:
            cost: Cost = float(work.fixed_s), None
        else:
            device_s = self._checked(self._machine.work_s(work), f"work {work.name!r}")
            cost = work.kernels * self.launch_s, device_s
        self._works[work[PRICED]] = cost
        return cost

    def price(self, transfers: list[Transfer]) -> dict[int, float]:
        """Set what each transfer takes; the capacities of links that may be shared."""
        loads: list[tuple[Transfer, Loads]] = []
        for transfer in transfers:
            latency_s, moving_s, links = self._demand(transfer)
            transfer.latency_s, transfer.moving_s = latency_s, moving_s
            loads.append((transfer, links))
        return keep_contended(loads, self._capacity)

    def _demand(self, transfer: Transfer) -> tuple[float, float, Loads]:
        """What the most loaded rank asks: parts of one collective may differ."""
        parts = transfer.parts[:1] if transfer.parts[0].is_p2p else transfer.parts
        asked = dict.fromkeys(_asked(part, transfer.ranks) for part in parts)
        known = [self._demands.get(key) for key in asked]
        if None in known:
            known = [self._ask(part, transfer.ranks) for part in parts]
        found = [demand for demand in known if demand is not None]
        if len(found) == 1:
            return found[0]
        links: dict[Link, float] = {}
        for _, _, loads in found:
            for link, num_bytes in loads:
                links[link] = max(links.get(link, 0.0), num_bytes)
        latency_s, moving_s = max(d[0] for d in found), max(d[1] for d in found)
        return latency_s, moving_s, tuple(sorted(links.items()))

    def _ask(self, comm: Comm, ranks: tuple[int, ...]) -> tuple[float, float, Loads]:
        key = _asked(comm, ranks)
        if key in self._demands:
            return self._demands[key]
        if not is_amount(comm.logical_bytes):
            raise UsageError(
                f"a transfer's bytes must be finite and at least 0; rank {comm.rank} "
                f"has {comm.logical_bytes!r} for {describe(comm)}. Record again, or "
                "mend the plan"
            )
        asked, what = self._machine.demand(comm, ranks), describe(comm)
        latency_s = self._checked(asked.latency_s, f"the latency of {what}")
        moving_s = self._checked(asked.moving_s, f"the bytes of {what}")
        links = tuple(
            (link, self._checked(num_bytes, f"the bytes of {what} on {link}"))
            for link, num_bytes in sorted(asked.links)
            if num_bytes != 0
        )
        # No transfer is faster alone than its links can carry it.
        alone_s = max((n / self._capacity(link) for link, n in links), default=0.0)
        found = latency_s, max(moving_s, alone_s), links
        self._demands[key] = found
        return found

    def _capacity(self, link: Link) -> float:
        if link not in self._capacities:
            value = self._machine.capacity_bytes_per_s(link)
            self._capacities[link] = self._checked(value, f"{link}", least=5e-324)
        return self._capacities[link]


def _asked(comm: Comm, ranks: tuple[int, ...]) -> tuple[object, ...]:
    """All that a machine's answer may depend on."""
    if comm.is_p2p:
        return "send", ranks, comm.logical_bytes, comm.dtype
    return (
        comm.kind, ranks, comm.peer, comm.logical_bytes, comm.dtype, comm.op,
        comm.send_splits, comm.recv_splits,
    )  # fmt: skip


def is_stretch(work: Work) -> bool:
    """Whether only the work's measured length is known, not what it would cost."""
    has_costs = work.flops or work.moved_bytes or work.kernels
    return not has_costs and work.fixed_s is None and work.end_s != work.start_s
