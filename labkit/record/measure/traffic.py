"""What each rank sent, by kind: exact, also where events were dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from labkit.record.events import Kind
from labkit.record.program import Comm, Program


class Sent(NamedTuple):
    """One rank's transfers of one kind in the whole record.

    `wire_bytes` is None where the record has no counters, only events.
    """

    rank: int
    kind: Kind
    num_calls: int
    payload_bytes: int
    wire_bytes: int | None


class Exchanged(NamedTuple):
    """The same, of one group and one peer."""

    rank: int
    kind: Kind
    group: str
    peer: int | None
    num_calls: int
    payload_bytes: int
    wire_bytes: int | None


def of_program(program: Program) -> list[Sent]:
    """Each rank's traffic, groups and peers added up, by rank and kind."""
    together: defaultdict[tuple[int, Kind], list[Exchanged]] = defaultdict(list)
    for row in by_peer(program):
        together[row.rank, row.kind].append(row)
    return [Sent(*key, *_sum(together[key])) for key in sorted(together)]


def by_peer(program: Program) -> list[Exchanged]:
    """Each rank's traffic, rank by rank, by kind, group and peer."""
    if program.traffic:
        by_rank = sorted(program.traffic, key=lambda row: row.rank)
        return [Exchanged(*row) for row in by_rank]
    # A record without counters, such as a schedule: its events tell the payload.
    together: defaultdict[tuple[int, Kind, str, int | None], list[Exchanged]] = (
        defaultdict(list)
    )
    for event in program:
        if isinstance(event, Comm):
            key = (event.rank, event.kind, event.group, event.peer)
            together[key].append(Exchanged(*key, 1, event.logical_bytes, None))
    return [Exchanged(*key, *_sum(rows)) for key, rows in together.items()]


def _sum(rows: Iterable[Exchanged]) -> tuple[int, int, int | None]:
    """Calls, payload and wire bytes of rows together."""
    calls, payloads, wires = zip(*(row[-3:] for row in rows), strict=True)
    return sum(calls), sum(payloads), None if None in wires else sum(wires)
