"""Who has what: a table of what each rank holds in memory, by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labkit.record.events import MemoryKind
from labkit.record.holdings import KINDS, Held, held
from labkit.record.program import Program
from labkit.units import format_bytes
from labkit.view.ranks import spelled
from labkit.view.table import Table, table

MAX_ROWS = 8


def holdings(
    program: Program, *, after: str | None = None, step: int | None = None
) -> Table:
    """What each rank holds after a span, or at the end of the record.

    Of more than MAX_ROWS ranks, those that hold the same share a row. A dash stands
    for a kind of which a rank holds nothing, and for a rank without such a span.

    Args:
        program: A record of level "work", or a dry run's.
        after: The span's name; a rank's last one of that name counts. None: the end.
        step: Counts only spans in this step.

    Raises:
        UsageError: The record does not tell of memory, or no rank has such a span.
    """
    found = dict(
        zip(program.header.ranks, held(program, after=after, step=step), strict=True)
    )
    kinds: list[MemoryKind] = [
        kind
        for kind in KINDS
        if any(one is not None and one.bytes_by_kind[kind] for one in found.values())
    ]
    rows = [(name, *_cells(one, kinds)) for name, one in _rows(found)]
    return table(["holder", *kinds, "total"], rows, _caption(program, after, step))


def _cells(one: Held | None, kinds: Sequence[MemoryKind]) -> Iterator[str | None]:
    for kind in kinds:
        size = 0 if one is None else one.bytes_by_kind[kind]
        yield format_bytes(size) if size else None
    yield None if one is None else format_bytes(one.total_bytes)


def _rows(found: dict[int, Held | None]) -> list[tuple[str, Held | None]]:
    """A row for each rank; of many, one for all that hold the same."""
    if len(found) <= MAX_ROWS:
        return [(f"rank {rank}", one) for rank, one in found.items()]
    alike: defaultdict[tuple[int, ...] | None, list[int]] = defaultdict(list)
    for rank, one in found.items():
        alike[one and tuple(one.bytes_by_kind.values())].append(rank)
    return [(spelled(ranks), found[ranks[0]]) for ranks in alike.values()]


def _caption(program: Program, after: str | None, step: int | None) -> str:
    if after is None and step is None:
        when = "at the end of the record"
    else:
        span = "span" if after is None else f'"{after}"'
        within = "" if step is None else f" in step {step}"
        when = f"after each rank's last {span}{within}"
    dry = " of a dry run" if program.header.source == "dry" else ""
    return f"Bytes of the tensors' storages{dry}, {when}."
