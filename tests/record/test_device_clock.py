"""Device clocks: on made-up devices with their own rate, and on a real GPU."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch

from labkit.record import device_clock
from labkit.record.device_clock import MAX_ELAPSED_S, EventClock, HostClock


class Device:
    """A GPU and a host: time passes when the host asks, works or waits.

    The device's stream is busy until `busy_until_s`; its timer runs at its own rate and
    is told in milliseconds of float32, as CUDA's is.
    """

    def __init__(self, rate: float = 0.0, seed: int = 0) -> None:
        self.rate = rate
        self.random = random.Random(seed)
        self.true_s = 1000.0
        self.busy_until_s = 0.0

    def now_s(self) -> float:
        self.true_s += self.random.uniform(1e-7, 2e-6)
        return self.true_s

    def work(self, seconds: float) -> float:
        """Give the stream work; returns when it will be done."""
        self.busy_until_s = max(self.busy_until_s, self.true_s) + seconds
        return self.busy_until_s

    def event(self) -> FakeEvent:
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_s = 0.0

    def record(self) -> None:
        self.device.true_s += self.device.random.expovariate(2e5)
        self.at_s = max(self.device.true_s, self.device.busy_until_s)

    def query(self) -> bool:
        return self.device.true_s >= self.at_s

    def synchronize(self) -> None:
        late_s = self.device.random.expovariate(2e5)
        self.device.true_s = max(self.device.true_s, self.at_s) + late_s

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query(), "CUDA has no time of an event that has not come"
        assert end_event.query()
        passed_s = (end_event.at_s - self.at_s) * (1 + self.device.rate)
        return float(np.float32(passed_s * 1e3))


def clock_of(device: Device) -> EventClock:
    return EventClock(device.event, device.now_s)


def test_a_stamp_is_read_when_the_stream_has_come_to_it() -> None:
    device = Device()
    clock = clock_of(device)
    done_s = device.work(0.5)
    stamp = clock.stamp()
    assert clock.read_s(stamp) is None
    device.true_s = done_s + 0.1
    found_s = clock.read_s(stamp)
    assert found_s is not None
    assert abs(found_s - done_s) <= clock.uncertainty_s + 1e-6


def test_work_before_the_first_look_does_not_make_the_clock_unsure() -> None:
    device = Device()
    device.work(2.0)
    assert clock_of(device).uncertainty_s < 1e-4


def stamps_of_an_hour(device: Device, clock: EventClock, pause_s: float) -> list[Any]:
    """A stamp behind a piece of work every now and then: (when done, stamp)."""
    found: list[Any] = []
    end_s = device.true_s + 3600.0
    while device.true_s < end_s:
        found.append((device.work(0.01), clock.stamp()))
        device.true_s += pause_s
    return found


@pytest.mark.parametrize("rate", [0.0, 3e-5, -2e-5])
@pytest.mark.parametrize("pause_s", [1.0, 60.0])
def test_an_hour_of_stamps_lies_within_the_uncertainty(
    rate: float, pause_s: float
) -> None:
    for seed in range(3):
        device = Device(rate, seed)
        clock = clock_of(device)
        stamps = stamps_of_an_hour(device, clock, pause_s)
        clock.finish()
        assert clock.uncertainty_s < 1e-3
        for done_s, stamp in stamps:
            found_s = clock.read_s(stamp)
            assert found_s is not None
            assert abs(found_s - done_s) <= clock.uncertainty_s + 2e-6


def test_drift_is_there_before_finish_and_gone_after() -> None:
    device = Device(rate=1e-4)
    clock = clock_of(device)
    *_, (done_s, stamp) = stamps_of_an_hour(device, clock, 1.0)
    early_s = clock.read_s(stamp)
    clock.finish()
    late_s = clock.read_s(stamp)
    assert early_s is not None
    assert late_s is not None
    assert early_s - done_s == pytest.approx(0.36, rel=0.01)
    assert abs(late_s - done_s) < 1e-3


def test_a_clock_may_be_finished_again_and_stamped_in_between() -> None:
    device = Device(rate=1e-4)
    clock = clock_of(device)
    for _ in range(3):
        stamps = stamps_of_an_hour(device, clock, 100.0)
        clock.finish()
    for done_s, stamp in stamps:
        found_s = clock.read_s(stamp)
        assert found_s is not None
        assert abs(found_s - done_s) <= clock.uncertainty_s + 2e-6


def test_far_from_its_base_a_stamp_has_a_base_of_its_own() -> None:
    """A millisecond float32 an hour long counts in quarters of a millisecond."""
    device = Device()
    clock = clock_of(device)
    first = clock.stamp()
    device.true_s += MAX_ELAPSED_S / 2
    near = clock.stamp()
    device.true_s += MAX_ELAPSED_S
    far = clock.stamp()
    assert [first.base, near.base, far.base] == [0, 0, 1]


def test_a_base_behind_work_is_not_asked_before_it_is_done() -> None:
    device = Device()
    clock = clock_of(device)
    device.true_s += 2 * MAX_ELAPSED_S
    done_s = device.work(5.0)
    stamp = clock.stamp()
    assert clock.read_s(stamp) is None
    device.true_s = done_s + 1
    assert clock.read_s(stamp) == pytest.approx(done_s, abs=1e-4)


def test_a_cpus_moments_are_seconds() -> None:
    clock = device_clock.of_device(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    before_s = time.monotonic()
    at_s = clock.read_s(clock.stamp())
    assert at_s is not None
    clock.finish()
    assert before_s <= at_s <= time.monotonic()
    assert clock.uncertainty_s == 0.0


@pytest.mark.gpu
def test_a_gpus_stamps_lie_between_looks_at_the_hosts_clock() -> None:
    clock = device_clock.of_device(torch.device("cuda"))
    assert clock.uncertainty_s < 1e-3
    looks: list[tuple[float, Any, float]] = []
    for _ in range(20):
        torch.cuda.synchronize()
        before_s = time.monotonic()
        torch.cuda._sleep(1_000_000)
        stamp = clock.stamp()
        torch.cuda.synchronize()
        looks.append((before_s, stamp, time.monotonic()))
    clock.finish()
    for before_s, stamp, after_s in looks:
        at_s = clock.read_s(stamp)
        assert at_s is not None
        unsure_s = clock.uncertainty_s + 1e-6
        assert before_s - unsure_s <= at_s <= after_s + unsure_s
