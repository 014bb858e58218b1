"""How sure it is that of two ranks' moments one came first."""

from __future__ import annotations

from labkit.record.program import Header


class Clocks:
    """The uncertainty between the clocks of any two ranks."""

    def __init__(self, header: Header) -> None:
        known = zip(header.ranks, header.clocks, strict=False)
        self._uncertain_s = {rank: clock.uncertainty_s for rank, clock in known}
        self._hosts = dict(zip(header.ranks, header.hosts, strict=False))

    @property
    def worst_s(self) -> float:
        """The most by which any two clocks may differ, in seconds."""
        ranks = list(self._uncertain_s)
        if not self._hosts:
            largest = sorted(self._uncertain_s.values())[-2:]
            return sum(largest) if len(largest) == 2 else 0.0
        # The worst of each machine: ranks of one machine read one clock.
        worst: dict[str, float] = {}
        for rank in ranks:
            host = self._hosts[rank]
            worst[host] = max(worst.get(host, 0.0), self._uncertain_s[rank])
        return sum(sorted(worst.values())[-2:]) if len(worst) > 1 else 0.0

    def apart_s(self, rank: int, other: int) -> float:
        """By how much the clocks of two ranks may differ, in seconds."""
        host = self._hosts.get(rank)
        if rank == other or (host is not None and host == self._hosts.get(other)):
            return 0.0
        return self._uncertain_s.get(rank, 0.0) + self._uncertain_s.get(other, 0.0)
