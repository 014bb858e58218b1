"""What a live timeline shows, in numbers, and what its ranks must know of each other.

A line is one stretch or one moment of one rank; times are seconds since the picture
began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from labkit.record.events import P2P, CommStart, Site

LiveKind: TypeAlias = Literal[
    "compute", "forward", "backward", "optimizer", "collective", "p2p", "waiting",
    "issued", "mark", "race", "step",
]  # fmt: skip
KINDS: tuple[LiveKind, ...] = get_args(LiveKind)
KIND = {kind: float(number) for number, kind in enumerate(KINDS)}
MAX_CALLS = 1024
MAX_NAMES = 256
OTHER = ("other", "")

# Place of the rank, kind, start_s, duration_s (NaN: it still grows), payload bytes,
# name, number: with the name of "all_reduce", 3 is the rank's third.
Line: TypeAlias = tuple[float, float, float, float, float, float, float]
Key: TypeAlias = tuple[Any, ...]


class Scene:
    """What all ranks of a picture share.

    Attributes:
        ranks: In the order of the picture.
        groups: The ranks of each group that is known.
        heard: Until when each rank has told all.
        issued: When each rank came to a transfer.
        names: What lines are called: name and where; a line gives the place.
        final: Lines that will not change and have not been fetched.
        ending: Calls whose end is known, though perhaps not yet their beginning.
        num_steps: Steps that have begun.
    """

    def __init__(
        self, ranks: Sequence[int], groups: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.ranks = tuple(ranks)
        self.groups = dict(groups)
        self.heard = dict.fromkeys(ranks, 0.0)
        self.issued: dict[Key, dict[int, float]] = {}
        self.names: list[tuple[str, str]] = [OTHER]
        self.final: list[Line] = []
        self.ending: list[Call] = []
        self.num_steps = 0
        self._ids: dict[tuple[str, str], float] = {OTHER: 0.0}

    def name(self, name: str, where: str = "") -> float:
        """The number of a name; of too many, that of "other"."""
        key = (name, where)
        number = self._ids.get(key)
        if number is None:
            if len(self.names) >= MAX_NAMES:
                return 0.0
            number = self._ids[key] = float(len(self.names))
            self.names.append(key)
        return number

    def issue(self, call: Call) -> None:
        """Note when a rank came to a transfer."""
        self.issued.setdefault(call.key, {})[call.rank] = call.issued
        if len(self.issued) > MAX_CALLS * len(self.ranks):
            del self.issued[next(iter(self.issued))]


def where(site: Site | None) -> str:
    """The line of a call, in words."""
    return f"line {site.line} of {site.function}" if site is not None else ""


class Call:
    """One transfer as one rank sees it.

    Attributes:
        end: When it had ended, by all that is known.
        waits: Those that are over, with their ends.
        open_waits: When those that are not over began.
        is_ending: Whether it is among the scene's `ending`.
    """

    def __init__(
        self, scene: Scene, rank: int, comm: CommStart, issued: float, number: int
    ) -> None:
        self.scene = scene
        self.rank = rank
        self.id = comm.id
        self.issued = issued
        self.end: float | None = None
        self.waits: list[tuple[float, float]] = []
        self.open_waits: list[float] = []
        self.is_ending = False
        self.key: Key = (comm.group, comm.kind, comm.group_seq)
        self._kind = KIND["collective"]
        self._end_is_of_wait = False
        self._is_wild = comm.kind == "recv" and comm.peer is None
        self._partners = scene.groups.get(comm.group, scene.ranks)
        if comm.kind in P2P:
            ends = (rank, comm.peer)
            ends = ends if comm.kind == "send" else ends[::-1]
            self.key = (comm.group, *ends, comm.tag, comm.pair_seq)
            self._kind = KIND["p2p"]
            self._partners = () if comm.peer is None else (comm.peer,)
        name = scene.name(comm.kind, where(comm.site))
        self._what = float(comm.payload_bytes), name, float(number)
        self._place = float(scene.ranks.index(rank))

    def line(self, kind: float, start: float, duration: float) -> Line:
        """A line of this call."""
        return self._place, kind, start, duration, *self._what

    def learn_end(self, at: float, *, of_wait: bool) -> None:
        """Of two that tell of an end, the earlier one knows better."""
        if self.end is None or at < self.end:
            self.end, self._end_is_of_wait = at, of_wait

    def is_heard(self) -> bool:
        """Whether no rank can still tell what changes when the transfer began."""
        issued, heard = self.scene.issued.get(self.key, {}), self.scene.heard
        end = self.end or 0.0
        return all(
            rank == self.rank or rank in issued or heard.get(rank, end) >= end
            for rank in self._partners
        )

    def lines(self) -> Iterator[Line]:
        """The call's waiting and its transfer, once its end is known."""
        assert self.end is not None
        for start, end in self.waits:
            came = self._came(end)
            if came > start:
                yield self.line(KIND["waiting"], start, min(came, end) - start)
        start = self._came(self.end)
        if self._end_is_of_wait and self.waits:
            # Only a late wait told of the end: the transfer may have ended long before.
            start = max(start, self.waits[0][0])
        start = min(start, self.end)
        yield self.line(self._kind, start, self.end - start)

    def _came(self, end: float) -> float:
        """When the last rank came without which the call could not end at `end`."""
        if self._is_wild:
            return end
        issued = self.scene.issued.get(self.key, {}).values()
        return max([self.issued, *(at for at in issued if at <= end)])

    def open_lines(self) -> Iterator[Line]:
        """What is known of a call that has not ended."""
        if not self.open_waits:
            yield self.line(KIND["issued"], self.issued, math.nan)
            return
        start, issued = self.open_waits[0], self.scene.issued.get(self.key, {})
        known = self.scene.heard
        if self._is_wild or any(r in known and r not in issued for r in self._partners):
            yield self.line(KIND["waiting"], start, math.nan)
            return
        came = max([start, *issued.values()])
        if came > start:
            yield self.line(KIND["waiting"], start, came - start)
        yield self.line(self._kind, came, math.nan)
