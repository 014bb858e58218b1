"""When a device has done its work, on the host's monotonic clock.

On a CPU a moment is a number of seconds. On a GPU it is a CUDA event: the host, which
runs ahead, leaves a stamp on a stream, and reads its time when the stream has come to
it. `of_device` gives the one or the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from labkit.record.clock import NUM_SAMPLES, Drift, Fix, Sample, fix
from labkit.record.program import Clock

# CUDA tells elapsed time as milliseconds in a float32: after 8 s it counts in 0.5 us.
MAX_ELAPSED_S = 8.0
FLOAT32_ROUNDING = 2.0**-24


class DeviceClock(Protocol):
    """Tells when work of a device is done, on the host's monotonic clock."""

    @property
    def uncertainty_s(self) -> float:
        """How sure the times are."""
        ...

    def stamp(self) -> Any:
        """A moment: when all is done that the current stream was given so far."""
        ...

    def read_s(self, stamp: Any) -> float | None:
        """When that was; None as long as it is not."""
        ...

    def finish(self) -> None:
        """Compare with the host's clock once more, so that drift is taken out."""
        ...


class HostClock:
    """A CPU's: what was given is done."""

    uncertainty_s = 0.0

    def stamp(self) -> float:
        """Now."""
        return time.monotonic()

    def read_s(self, stamp: float) -> float:
        """The same."""
        return stamp

    def finish(self) -> None:
        """It is the host's own clock."""


class DeviceEvent(Protocol):
    """What this needs of a `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None:
        """Leave it on the current stream."""
        ...

    def query(self) -> bool:
        """Whether the stream has come to it."""
        ...

    def synchronize(self) -> None:
        """Wait for that."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`."""
        ...


class Stamp(NamedTuple):
    """An event, and the base that its time is told from."""

    event: DeviceEvent
    base: int


class EventClock:
    """A GPU's: events, told from a base event whose time on the host's clock is known.

    What it reads is the device's time, set to the host's where it began. `finish`
    compares again; from then on what the device has gained meanwhile is taken out.
    """

    def __init__(
        self,
        make_event: Callable[[], DeviceEvent],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compare the clocks: the host waits for what the current stream has to do.

        Args:
            make_event: Makes an event that has not been recorded.
            now_s: The host's clock.
        """
        self._make_event = make_event
        self._now_s = now_s
        base, asked = self._quickest()
        self._bases = [base]
        self._last_base_s = asked.received_s
        self._base_times_s = [asked.sent_s + asked.round_trip_s / 2]
        self._rounding_s = 0.0
        self._start = fix([asked._replace(there_s=self._base_times_s[0])])
        self._drift: Drift | None = None

    @property
    def uncertainty_s(self) -> float:
        """How sure the times are."""
        drift = self._drift
        return drift.uncertainty_s if drift else self._start.clock.uncertainty_s

    def stamp(self) -> Stamp:
        """A moment: when all is done that the current stream was given so far."""
        if self._now_s() - self._last_base_s > MAX_ELAPSED_S:
            self._bases.append(self._recorded())
            self._last_base_s = self._now_s()
        return Stamp(self._recorded(), len(self._bases) - 1)

    def read_s(self, stamp: Stamp) -> float | None:
        """When that was; None as long as it is not."""
        base_s = self._base_s(stamp.base)
        if base_s is None or not stamp.event.query():
            return None
        at_s = base_s + _elapsed_s(self._bases[stamp.base], stamp.event)
        return at_s - self._drift.offset_s(at_s) if self._drift else at_s

    def finish(self) -> None:
        """Compare with the host's clock once more, so that drift is taken out."""
        self._bases[-1].synchronize()
        event, asked = self._quickest()
        self._bases.append(event)
        self._last_base_s = asked.received_s
        at_s = self._base_s(len(self._bases) - 1)
        assert at_s is not None, "the host has waited for it, and for those before"
        end = fix([asked._replace(there_s=at_s)])
        unsure_s = end.clock.uncertainty_s + self._rounding_s
        end = Fix(at_s, Clock(end.clock.offset_s, unsure_s))
        self._drift = Drift(self._start, end)

    def _base_s(self, number: int) -> float | None:
        """A base's time: each is told from the one before it."""
        while len(self._base_times_s) <= number:
            known = len(self._base_times_s)
            if not self._bases[known].query():
                return None
            passed_s = _elapsed_s(self._bases[known - 1], self._bases[known])
            self._base_times_s.append(self._base_times_s[-1] + passed_s)
            self._rounding_s += abs(passed_s) * FLOAT32_ROUNDING
        return self._base_times_s[number]

    def _recorded(self) -> DeviceEvent:
        event = self._make_event()
        event.record()
        return event

    def _quickest(self) -> tuple[DeviceEvent, Sample]:
        """An event, with when the host asked for it and heard of it."""
        return min(self._samples(), key=lambda sample: sample[1].round_trip_s)

    def _samples(self) -> Iterator[tuple[DeviceEvent, Sample]]:
        for _ in range(NUM_SAMPLES):
            sent_s = self._now_s()
            event = self._recorded()
            event.synchronize()
            yield event, Sample(sent_s, sent_s, self._now_s())


def _elapsed_s(start: DeviceEvent, end: DeviceEvent) -> float:
    return start.elapsed_time(end) / 1e3


def of_device(device: torch.device) -> DeviceClock:
    """The clock of a rank's device."""
    if device.type != "cuda":
        return HostClock()
    return EventClock(partial(torch.cuda.Event, enable_timing=True))
