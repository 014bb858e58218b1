"""Clocks: what a time of another clock is on this one, and how sure that is.

Ranks of one machine share a monotonic clock. Other nodes' clocks and a GPU's are
compared with it: ask there, between two looks at the own clock.

    own     sent ─────────────┬─────────────── received
                              │ middle
    other              there ─┘  offset = there - middle, +- half the round trip

However unequal the two ways are, the other clock was read between the two looks, so
half the round trip bounds the error. Of several samples the quickest knows best. Two
clocks run apart, by some millionths; so a long run compares at its beginning and its
end, and a straight line lies between. Pure: no torch, no clock of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from labkit.errors import UsageError
from labkit.record.events import TIMES, Event
from labkit.record.program import Clock

NUM_SAMPLES = 8


class Sample(NamedTuple):
    """The other clock was read at `there_s`, between two looks at the own one."""

    sent_s: float
    there_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        """How long it took on the own clock."""
        return self.received_s - self.sent_s


class Fix(NamedTuple):
    """How far the other clock was ahead when it showed `at_s`."""

    at_s: float
    clock: Clock


def align(samples: Iterable[Sample | tuple[float, float, float]]) -> Clock:
    """How far another clock is ahead: offset and uncertainty, from the quickest sample.

    Args:
        samples: (sent_s, there_s, received_s) each, the middle one of the other clock.

    Raises:
        UsageError: There is no sample, one is not finite, or one came back before it
            was sent.
    """
    return fix(samples).clock


def fix(samples: Iterable[Sample | tuple[float, float, float]]) -> Fix:
    """The same as `align`, with the time of the other clock. Raises likewise."""
    checked = [_checked(Sample(*sample)) for sample in samples]
    if not checked:
        raise UsageError(
            "to compare two clocks takes at least 1 sample; got 0. Ask the other side "
            f"for its time, best {NUM_SAMPLES} times"
        )
    best = min(checked, key=lambda sample: sample.round_trip_s)
    half_s = best.round_trip_s / 2
    return Fix(best.there_s, Clock(best.there_s - best.sent_s - half_s, half_s))


def _checked(sample: Sample) -> Sample:
    if not all(map(math.isfinite, sample)) or sample.round_trip_s < 0:
        raise UsageError(
            "a clock is read between two looks at the own one, the second not before "
            f"the first; got {sample}. Take all times from monotonic clocks"
        )
    return sample


class Drift(NamedTuple):
    """Two clocks compared at the beginning and at the end of a run."""

    start: Fix
    end: Fix

    @property
    def change_s(self) -> float:
        """By how much the other clock has gained."""
        return self.end.clock.offset_s - self.start.clock.offset_s

    @property
    def rate(self) -> float:
        """Seconds gained a second of the other clock; 0 where none has passed."""
        passed_s = self.end.at_s - self.start.at_s
        return self.change_s / passed_s if passed_s > 0 else 0.0

    @property
    def runs_apart(self) -> bool:
        """Whether the change is more than the comparisons' own uncertainty."""
        unsure_s = self.start.clock.uncertainty_s + self.end.clock.uncertainty_s
        return abs(self.change_s) > unsure_s

    def offset_s(self, at_s: float) -> float:
        """How far the other clock was ahead when it showed `at_s`."""
        return self.start.clock.offset_s + self.rate * (at_s - self.start.at_s)

    def clock(self) -> Clock:
        """One offset for the whole run; half the change adds to its uncertainty."""
        middle_s = self.start.clock.offset_s + self.change_s / 2
        return Clock(middle_s, self.uncertainty_s + abs(self.change_s) / 2)

    @property
    def uncertainty_s(self) -> float:
        """How sure times are that `offset_s` has set back."""
        return max(self.start.clock.uncertainty_s, self.end.clock.uncertainty_s)

    def straighten(self, events: Sequence[Event]) -> list[Event]:
        """Telemetry with its times on the own clock."""
        return [self._straight(event) for event in events]

    def _straight(self, event: Any) -> Any:
        times = {name: getattr(event, name, None) for name in TIMES}
        return event._replace(
            **{n: at - self.offset_s(at) for n, at in times.items() if at is not None}
        )


def measured(starts: Sequence[Fix], ends: Sequence[Fix]) -> tuple[Drift, ...]:
    """Each rank's drift, from comparisons at a run's beginning and end.

    Raises:
        UsageError: A clock went backwards meanwhile.
    """
    drifts = tuple(Drift(*pair) for pair in zip(starts, ends, strict=True))
    for number, drift in enumerate(drifts):
        if drift.end.at_s < drift.start.at_s:
            raise UsageError(
                "a rank's clock must not go backwards during a run; the one of place "
                f"{number} showed {drift.start.at_s:g} s at its beginning and "
                f"{drift.end.at_s:g} s at its end. Take times from time.monotonic()"
            )
    return drifts
