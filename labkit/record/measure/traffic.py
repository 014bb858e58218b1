"""What each rank sent, by kind: exact, also where events were dropped."""

from __future__ import annotations

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


def of_program(program: Program) -> list[Sent]:
    """Each rank's traffic, groups and peers added up, by rank and kind."""
    found: dict[tuple[int, Kind], Sent] = {}
    counted = [
        Sent(t.rank, t.kind, t.num_calls, t.payload_bytes, t.wire_bytes)
        for t in program.traffic
    ]
    seen = (
        Sent(event.rank, event.kind, 1, event.logical_bytes, None)
        for event in program
        if isinstance(event, Comm)
    )
    for row in counted or seen:
        before = found.get((row.rank, row.kind))
        found[row.rank, row.kind] = row if before is None else _sum(before, row)
    return [found[key] for key in sorted(found)]


def _sum(one: Sent, other: Sent) -> Sent:
    wire = None
    if one.wire_bytes is not None and other.wire_bytes is not None:
        wire = one.wire_bytes + other.wire_bytes
    return one._replace(
        num_calls=one.num_calls + other.num_calls,
        payload_bytes=one.payload_bytes + other.payload_bytes,
        wire_bytes=wire,
    )
