"""A table of what each rank sent: counted, not timed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.record.events import Kind
from labkit.record.program import Comm, Program
from labkit.units import format_bytes
from labkit.view.ranks import spelled
from labkit.view.table import Table, table

MAX_RANKS = 8
COLUMNS = ("rank", "kind", "group", "peer", "calls", "payload", "wire")


class _Sent(NamedTuple):
    """Transfers of one kind; `wire_bytes` is None where only events are known."""

    kind: Kind
    group: str
    peer: int | None
    num_calls: int
    payload_bytes: int
    wire_bytes: int | None


def traffic(program: Program) -> Table:
    """What each rank sent in the whole record, by kind, group and peer.

    Of more than MAX_RANKS ranks, those that sent the same share a row.
    """
    sent = list(_counted(program) if program.traffic else _seen(program))
    rows: list[tuple[str, _Sent]] = [(f"rank {rank}", row) for rank, row in sent]
    if len(program.header.ranks) > MAX_RANKS:
        rows = [(spelled(ranks), row) for row, ranks in _alike(sent)]
    caption = (
        "Counted exactly, also where events were dropped: payload was handed over, "
        "wire left the rank (for a backend's own collective derived from its "
        "algorithm)."
        if program.traffic
        else "Payload of the record's events; it has no counters of what left a rank."
    )
    return table(COLUMNS, [(name, *_cells(row)) for name, row in rows], caption)


def _counted(program: Program) -> Iterator[tuple[int, _Sent]]:
    for row in sorted(program.traffic, key=lambda row: row.rank):
        yield (
            row.rank,
            _Sent(
                row.kind, row.group, row.peer, row.num_calls, row.payload_bytes,
                row.wire_bytes,
            ),
        )  # fmt: skip


def _seen(program: Program) -> Iterator[tuple[int, _Sent]]:
    """The same of a record without counters, such as a schedule: from its events."""
    calls: Counter[tuple[int, Kind, str, int | None]] = Counter()
    payload: Counter[tuple[int, Kind, str, int | None]] = Counter()
    for event in program:
        if isinstance(event, Comm):
            key = (event.rank, event.kind, event.group, event.peer)
            calls[key] += 1
            payload[key] += event.logical_bytes
    for key, count in calls.items():
        rank, kind, group, peer = key
        yield rank, _Sent(kind, group, peer, count, payload[key], None)


def _alike(sent: Sequence[tuple[int, _Sent]]) -> Iterator[tuple[_Sent, list[int]]]:
    """Each kind of row, and the ranks that have it."""
    ranks: defaultdict[_Sent, list[int]] = defaultdict(list)
    for rank, row in sent:
        ranks[row].append(rank)
    yield from ranks.items()


def _cells(row: _Sent) -> tuple[str | int | None, ...]:
    wire = None if row.wire_bytes is None else _exact(row.wire_bytes)
    return (
        row.kind, row.group, row.peer, row.num_calls, _exact(row.payload_bytes), wire,
    )  # fmt: skip


def _exact(num_bytes: int) -> str:
    shown = format_bytes(num_bytes)
    return f"{shown} ({num_bytes:,})" if num_bytes >= 1024 else shown
