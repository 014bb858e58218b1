"""Names of groups that are the same in every run: by their ranks.

torch numbers groups through the life of a process, or names them by a hash. In a record
a group is "0,1", and the second one of the same ranks "0,1#2".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def canonical(
    groups: Mapping[str, tuple[int, ...]], orders: Sequence[Sequence[str]]
) -> dict[str, str]:
    """The name of each group by its uid.

    Args:
        groups: The ranks of each uid.
        orders: For each rank of the record, in rank order, the uids in the order of
            their first use: of groups with the same ranks, the first rank's order
            decides.
    """
    names: dict[str, str] = {}
    count: Counter[tuple[int, ...]] = Counter()
    for uid in dict.fromkeys(uid for order in orders for uid in order):
        ranks = groups[uid]
        count[ranks] += 1
        number = f"#{count[ranks]}" if count[ranks] > 1 else ""
        names[uid] = _spelled(ranks) + number
    return names


def _spelled(ranks: Sequence[int]) -> str:
    """`0-7` for eight in a row, else `0,2,4`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
