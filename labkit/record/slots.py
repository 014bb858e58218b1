"""A bounded set of numbered records: what a live picture shows, and what is new in it.

A record keeps its slot's number, so whoever draws may be sent it twice and drop one.
When all slots are taken, the lightest half are given up, and new records go there: a
run of any length costs the same memory, and what was seen best stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Slots:
    """At most `capacity` records of `width` numbers, the first its slot's number.

    Attributes:
        total: Records that were ever put.
        count: Records that are kept.
    """

    def __init__(self, capacity: int, width: int) -> None:
        self.total = 0
        self._capacity = capacity
        self._kept = np.zeros((capacity, width))
        self._kept[:, 0] = np.arange(capacity)
        self._weight = np.zeros(capacity)
        self._is_new = np.zeros(capacity, dtype=bool)
        self._used = 0
        self._free = np.arange(0)

    @property
    def count(self) -> int:
        """Records that are kept."""
        return self._used - len(self._free)

    def put(self, records: Floats, weights: Floats) -> None:
        """Keep records, each without its slot; of too many at once the heaviest."""
        self.total += len(records)
        if len(records) > self._capacity // 2:
            heaviest = _heaviest(weights, self._capacity // 2)
            records, weights = records[heaviest], weights[heaviest]
        slots = self._allot(len(records))
        self._kept[slots, 1:] = records
        self._weight[slots] = weights
        self._is_new[slots] = True

    def _allot(self, number: int) -> NDArray[np.intp]:
        """Slots that are free, made free where there are too few."""
        if len(self._free) + self._capacity - self._used < number:
            fresh = np.arange(self._used, self._capacity)
            self._weight[fresh] = self._weight[self._free] = -1.0
            light = np.argpartition(self._weight, self._capacity // 2)
            self._free = np.sort(light[: self._capacity // 2])
            self._used = self._capacity
        taken, self._free = self._free[:number], self._free[number:]
        missing = number - len(taken)
        self._used += missing
        more = np.arange(self._used - missing, self._used)
        return np.concatenate([taken, more])

    def take(self, limit: int) -> Floats:
        """What is new; of more than `limit` records the heaviest. Shape (n, width)."""
        fresh = np.flatnonzero(self._is_new)
        if len(fresh) > limit:
            fresh = fresh[_heaviest(self._weight[fresh], limit)]
        self._is_new[fresh] = False
        return self._kept[fresh]

    def resend(self) -> None:
        """Take everything that is kept for new."""
        self._is_new[: self._used] = True
        self._is_new[self._free] = False


def _heaviest(weights: Floats, number: int) -> NDArray[np.intp]:
    """Where the `number` greatest weights lie, in their order."""
    if not number:
        return np.arange(0)
    return np.sort(np.argpartition(weights, -number)[-number:])
