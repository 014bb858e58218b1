"""The ranks' parts of one transfer, together: who came last, how long it took.

Collectives match by group, kind and number; a message by its ends, tag and number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from labkit.record.ahead import runs_ahead
from labkit.record.program import Comm, Program, Wait, Work
from labkit.record.soundness import SAME_S

SURE_SHARE = 0.1

Key: TypeAlias = tuple[object, ...]


class Part(NamedTuple):
    """One rank's part: `ready_s` is when the rank had come to it.

    On a GPU that is when the work before it on its stream was done, not when the host
    issued it. `watched_s` is when a wait for it began, None if nobody waited.
    """

    comm: Comm
    ready_s: float
    watched_s: float | None

    @property
    def end_is_known(self) -> bool:
        """Whether the end is when it ended, and not when somebody came to see."""
        comm = self.comm
        if comm.ended_s is None or comm.arrived_s is None:
            return False
        if comm.end_source == "look":
            return comm.end_unsure_s <= SURE_SHARE * (comm.ended_s - comm.arrived_s)
        if comm.end_source != "wait" or not comm.is_async:
            return True
        return self.watched_s is not None and self.watched_s <= comm.arrived_s + SAME_S


@dataclass(frozen=True)
class Transfer:
    """A collective or a message: the parts that are in the record, by rank."""

    parts: tuple[Part, ...]
    ranks: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every rank that takes part is in the record."""
        return len(self.parts) == len(self.ranks)

    def part_of(self, rank: int) -> Part | None:
        """A rank's part, the first where it has two."""
        return next((part for part in self.parts if part.comm.rank == rank), None)

    def last_two(self, arrived_s: float) -> tuple[Part, Part] | None:
        """The rank that came last and the one before, of those that were needed.

        None where fewer than two came by `arrived_s`, when the transfer began.
        """
        came = [part for part in self.parts if part.ready_s <= arrived_s + SAME_S]
        if len(came) < 2:
            return None
        *_, before, last = sorted(came, key=lambda p: (p.ready_s, -p.comm.rank))
        return last, before


def match(program: Program) -> dict[tuple[int, int], Transfer]:
    """Each transfer, by every rank and id that takes part in it."""
    parts: defaultdict[Key, list[Part]] = defaultdict(list)
    on_streams = runs_ahead(program)
    # What a CPU's record calls the host's wait is on a GPU the stream's.
    of_host = program.header.device == "cpu"
    for events in program.events:
        for part in _parts(events, on_streams=on_streams, of_host=of_host):
            parts[_key(part.comm)].append(part)
    found: dict[tuple[int, int], Transfer] = {}
    for together in parts.values():
        comm = together[0].comm
        ends = (comm.rank, comm.rank if comm.peer is None else comm.peer)
        ranks = (
            tuple(dict.fromkeys(ends)) if comm.is_p2p else program.groups[comm.group]
        )
        transfer = Transfer(tuple(together), ranks)
        for part in together:
            found[part.comm.rank, part.comm.id] = transfer
    return found


def _key(comm: Comm) -> Key:
    if not comm.is_p2p:
        return comm.group, comm.kind, comm.group_seq
    return (comm.group, *comm.ends, comm.tag, comm.pair_seq)


def _parts(
    events: tuple[object, ...], *, on_streams: bool, of_host: bool
) -> list[Part]:
    """A rank's parts: see [Note: streams] in `labkit.record.program`."""
    busy_until: defaultdict[int, float] = defaultdict(float)
    watched: dict[int, float] = {}
    comms: list[tuple[Comm, float]] = []
    for event in events:
        match event:
            case Work() if on_streams and event.end_s is not None:
                busy = max(busy_until[event.stream], event.end_s)
                busy_until[event.stream] = busy
            case Wait():
                waits = on_streams and (of_host or event.who == "stream")
                if waits and event.end_s is not None:
                    busy = max(busy_until[event.stream], event.end_s)
                    busy_until[event.stream] = busy
                if event.cause != "event" and event.start_s is not None:
                    watched.setdefault(event.target, event.start_s)
            case Comm():
                issued_s = event.issued_s or 0.0
                comms.append((event, max(issued_s, busy_until[event.stream])))
            case _:
                pass
    return [Part(comm, ready_s, watched.get(comm.id)) for comm, ready_s in comms]
