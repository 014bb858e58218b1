"""Follows telemetry while it grows: what a live timeline draws, as rows of numbers.

Before: batches of events, a rank at a time, some milliseconds apart. After: records
that are final, and a few that are still open and drawn anew with each picture.

    final    compute | waiting | transfer |
    open                                  | compute ------> now

A transfer's beginning is known only when all its ranks have been heard. Until then it
is open, so that no final record has to be taken back. Pure: no clock, no torch; times
are those of the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.record import events as told
from labkit.record.follower import Follower
from labkit.record.scene import KIND, MAX_CALLS, Scene
from labkit.record.slots import Floats, Slots

# A record is its slot (-1: none, it is open), then the numbers of a Line.
WIDTH = 8
CAPACITY = 60_000
# How long a finished transfer stays open for ranks that have not been heard since.
PATIENCE_S = 0.5
# Of many records the longest are kept; a moment has no length, and counts as this long.
_LENGTH_S = {KIND["race"]: 1e9, KIND["mark"]: 1.0, KIND["step"]: 0.1}


class LiveReader:
    """Turns the telemetry of some ranks into what their live timeline draws."""

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        groups: Mapping[str, tuple[int, ...]] | None = None,
        offsets_s: Mapping[int, float] | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        """Begin with nothing.

        Args:
            ranks: Whose events will come, in the order of the picture.
            groups: Groups made before, whose making will not be told again.
            offsets_s: What to subtract from a rank's clock; 0 where not given.
            capacity: How many final records are kept.
        """
        self._scene = Scene(ranks, groups or {})
        self._offsets_s = dict(offsets_s or {})
        self._slots = Slots(capacity, WIDTH)
        self._followers = {rank: Follower(self._scene, rank) for rank in ranks}
        self._zero_s: float | None = None

    @property
    def zero_s(self) -> float | None:
        """The time of the first event, at which the picture begins; None before."""
        return self._zero_s

    @property
    def names(self) -> Sequence[tuple[str, str]]:
        """What records are called, and where they happened; a record has the place."""
        return self._scene.names

    @property
    def num_steps(self) -> int:
        """Steps that have begun on some rank."""
        return self._scene.num_steps

    @property
    def total(self) -> int:
        """Final records so far."""
        return self._slots.total

    @property
    def count(self) -> int:
        """Final records that are kept: beyond the capacity, not the shortest."""
        return self._slots.count

    def feed(self, rank: int, events: Sequence[told.Event]) -> None:
        """Take what a rank told, in its order."""
        if self._zero_s is None:
            self._begin(rank, events)
        self._followers[rank].follow(events)

    def _begin(self, rank: int, events: Sequence[told.Event]) -> None:
        times = [at for at in map(_time_of, events) if at is not None]
        if times:
            self._zero_s = times[0] - self._offsets_s.get(rank, 0.0)
            for each, follower in self._followers.items():
                follower.zero_s = self._zero_s + self._offsets_s.get(each, 0.0)

    def finish(self, rank: int) -> None:
        """The rank's function has returned, or raised: it computes no longer."""
        self._followers[rank].finish()

    def take(self, now_s: float, limit: int) -> Floats:
        """The final records that were not taken before. Shape (at most limit, WIDTH).

        Of too many, the longest; the others come with the next calls.

        Args:
            now_s: Seconds since `zero_s`.
            limit: How many at most.
        """
        self._settle(now_s)
        if self._scene.final:
            lines, self._scene.final = np.array(self._scene.final), []
            lengths = lines[:, 3].copy()
            for kind, length in _LENGTH_S.items():
                lengths[lines[:, 1] == kind] = length
            self._slots.put(lines, lengths)
        return self._slots.take(limit)

    def _settle(self, now_s: float) -> None:
        """Make final what all its ranks have been heard for, or too long not."""
        ending, self._scene.ending = self._scene.ending, []
        too_many = len(ending) - MAX_CALLS
        for number, call in enumerate(ending):
            assert call.end is not None
            is_late = number < too_many or now_s - call.end > PATIENCE_S
            if is_late or call.is_heard():
                self._followers[call.rank].settle(call)
            else:
                self._scene.ending.append(call)

    def resend(self) -> None:
        """Take everything for new: whoever draws has lost records."""
        self._slots.resend()

    def open(self) -> Floats:
        """What is not final, by what is known now. Shape (n, WIDTH), slots -1."""
        lines = [line for call in self._scene.ending for line in call.lines()]
        for follower in self._followers.values():
            lines += follower.open_lines()
        found = np.full((len(lines), WIDTH), -1.0)
        if lines:
            found[:, 1:] = lines
        return found


def _time_of(event: Any) -> float | None:
    return getattr(event, "at_s", getattr(event, "issued_s", None))
