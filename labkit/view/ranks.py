"""Ranks in few letters."""

from __future__ import annotations

from collections.abc import Sequence


def spelled(ranks: Sequence[int]) -> str:
    """Ranks in ascending order as `rank 3`, or `ranks 0-2, 5`."""
    rows: list[list[int]] = []
    for rank in ranks:
        if rows and rows[-1][-1] == rank - 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    parts = (f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in rows)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}"
