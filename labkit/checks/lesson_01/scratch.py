"""How much memory a function needed beside what it was given: counted, not timed."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.checks.lesson_01.case import CALLED, RETURNED
from labkit.record.events import Event, Moment, StorageGone, StorageMade


def peak_bytes(events: Sequence[Event]) -> int:
    """The most that was there at once of what was made between the two marks."""
    held = peak = 0
    inside = False
    for event in events:
        if isinstance(event, Moment):
            inside = (inside or event.name == CALLED) and event.name != RETURNED
        elif inside and isinstance(event, StorageMade):
            held += event.num_bytes
            peak = max(peak, held)
        elif inside and isinstance(event, StorageGone):
            held -= event.num_bytes
    return peak
