"""A table of what each rank sent: counted, not timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labkit.record.measure.traffic import Exchanged, by_peer
from labkit.record.program import Program
from labkit.units import format_bytes
from labkit.view.ranks import spelled
from labkit.view.table import Table, table

MAX_RANKS = 8
COLUMNS = ("rank", "kind", "group", "peer", "calls", "payload", "wire")


def traffic(program: Program) -> Table:
    """What each rank sent in the whole record, by kind, group and peer.

    Of more than MAX_RANKS ranks, those that sent the same share a row.
    """
    sent = by_peer(program)
    rows = [(f"rank {row.rank}", row) for row in sent]
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


def _alike(sent: Sequence[Exchanged]) -> Iterator[tuple[Exchanged, list[int]]]:
    """Each kind of row, and the ranks that have it."""
    ranks: defaultdict[Exchanged, list[int]] = defaultdict(list)
    for row in sent:
        ranks[row._replace(rank=0)].append(row.rank)
    yield from ranks.items()


def _cells(row: Exchanged) -> tuple[str | int | None, ...]:
    wire = None if row.wire_bytes is None else _exact(row.wire_bytes)
    return (
        row.kind, row.group, row.peer, row.num_calls, _exact(row.payload_bytes), wire,
    )  # fmt: skip


def _exact(num_bytes: int) -> str:
    shown = format_bytes(num_bytes)
    return f"{shown} ({num_bytes:,})" if num_bytes >= 1024 else shown
