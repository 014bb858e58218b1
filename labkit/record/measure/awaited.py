"""Whom a transfer waited for: the rank that came last, as far as clocks can tell."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.record.measure import transfers
from labkit.record.measure.clocks import Clocks
from labkit.record.measure.transfers import Part, Transfer
from labkit.record.program import Comm, Program
from labkit.record.soundness import SAME_S


class Awaited:
    """Looks up the rank that a transfer waited for."""

    def __init__(
        self,
        program: Program,
        matched: Mapping[tuple[int, int], Transfer] | None = None,
    ) -> None:
        """`matched` are the record's transfers, where they are known already."""
        self._transfers = transfers.match(program) if matched is None else matched
        self._clocks = Clocks(program.header)

    def last_two(self, comm: Comm) -> tuple[Part, Part] | None:
        """The parts that came last and before; None where fewer than two are known."""
        if comm.arrived_s is None:
            return None
        return self._transfers[comm.rank, comm.id].last_two(comm.arrived_s)

    def call(self, comm: Comm) -> Comm | None:
        """The other rank's call that let this rank's part begin.

        None where this rank came last, or as late as the last, and where ranks' clocks
        cannot tell.
        """
        two = self.last_two(comm)
        if two is None:
            return None
        last, before = two
        own = self._transfers[comm.rank, comm.id].part_of(comm.rank)
        if own is None or last.ready_s <= own.ready_s + SAME_S:
            return None
        apart_s = self._clocks.apart_s(last.comm.rank, before.comm.rank)
        is_told = not apart_s or last.ready_s - before.ready_s > apart_s
        return last.comm if is_told else None

    def rank(self, comm: Comm) -> int | None:
        """The rank of that call: whom this rank waited for."""
        call = self.call(comm)
        return None if call is None else call.rank
