"""Clocks that are skewed, drift and answer late, and what is known of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from labkit.errors import UsageError
from labkit.record.clock import Drift, Fix, Sample, align, fix, measured
from labkit.record.events import CommEnd, NewGroup, Operation, SpanStart
from labkit.record.program import Clock


class Other:
    """Another node's clock: ahead, at its own rate; its answers take their time."""

    def __init__(
        self, ahead_s: float, rate: float = 0.0, *, back_s: float = 1e-4, seed: int = 0
    ) -> None:
        self.ahead_s = ahead_s
        self.rate = rate
        self.back_s = back_s
        self.random = random.Random(seed)

    def shows_s(self, true_s: float) -> float:
        return true_s * (1 + self.rate) + self.ahead_s

    def asked(self, true_s: float, times: int = 8) -> list[Sample]:
        """Samples by a clock that shows the true time."""
        samples: list[Sample] = []
        for _ in range(times):
            there_s = true_s + 1e-4 + self.random.expovariate(1e3)
            back_s = there_s + self.back_s + self.random.expovariate(1e3)
            samples.append(Sample(true_s, self.shows_s(there_s), back_s))
            true_s = back_s
        return samples


@pytest.mark.parametrize("ahead_s", [0.0, 12.5, -3e5])
@pytest.mark.parametrize("back_s", [1e-4, 5e-3])
def test_the_true_offset_lies_within_the_uncertainty(
    ahead_s: float, back_s: float
) -> None:
    """However late and unequal the answers are."""
    for seed in range(200):
        clock = align(Other(ahead_s, back_s=back_s, seed=seed).asked(100.0))
        assert abs(clock.offset_s - ahead_s) <= clock.uncertainty_s + 1e-9


def test_the_quickest_sample_is_believed() -> None:
    samples = [(0.0, 107.0, 10.0), (10.0, 110.4, 11.0), (11.0, 120.0, 30.0)]
    clock = align(samples)
    assert clock.offset_s == pytest.approx(99.9)
    assert clock.uncertainty_s == 0.5
    assert fix(samples).at_s == 110.4


def test_more_samples_are_never_less_sure() -> None:
    samples = Other(5.0).asked(0.0, times=50)
    unsure = [align(samples[:count]).uncertainty_s for count in range(1, 51)]
    assert unsure == sorted(unsure, reverse=True)
    assert unsure[-1] < unsure[0]


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "got 0"),
        ([(1.0, 5.0, 0.5)], "not before the first"),
        ([(0.0, math.nan, 1.0)], "nan"),
        ([(0.0, 1.0, math.inf)], "inf"),
    ],
)
def test_impossible_samples_are_refused(
    samples: Sequence[tuple[float, float, float]], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        align(samples)


def drift_of(other: Other, seconds: float) -> Drift:
    return Drift(fix(other.asked(0.0)), fix(other.asked(seconds)))


@pytest.mark.parametrize("rate", [0.0, 2e-5, -5e-5])
def test_a_straight_line_takes_drift_out(rate: float) -> None:
    for seed in range(50):
        other = Other(40.0, rate, seed=seed)
        drift = drift_of(other, 3600.0)
        for true_s in (0.0, 900.0, 1800.0, 3600.0):
            there_s = other.shows_s(true_s)
            found_s = there_s - drift.offset_s(there_s)
            assert abs(found_s - true_s) <= drift.uncertainty_s + 1e-7


def test_one_offset_for_all_is_as_unsure_as_the_clocks_run_apart() -> None:
    for seed in range(50):
        other = Other(-7.0, 5e-5, seed=seed)
        drift = drift_of(other, 1000.0)
        clock = drift.clock()
        assert clock.uncertainty_s >= 0.025
        for true_s in (0.0, 500.0, 1000.0):
            found_s = other.shows_s(true_s) - clock.offset_s
            assert abs(found_s - true_s) <= clock.uncertainty_s + 1e-7


def test_clocks_that_run_apart_are_told_from_those_that_do_not() -> None:
    for seed in range(50):
        assert not drift_of(Other(3.0, seed=seed), 1000.0).runs_apart
        assert drift_of(Other(3.0, 5e-5, seed=seed), 1000.0).runs_apart
    assert drift_of(Other(3.0, 5e-5), 1000.0).rate == pytest.approx(5e-5, rel=0.1)


def test_telemetry_is_straightened() -> None:
    """This clock gains a second in ten, and is 100 s ahead at the beginning."""
    drift = Drift(Fix(100.0, Clock(100.0, 0.0)), Fix(111.0, Clock(101.0, 0.0)))
    made = NewGroup("world", (0, 1))
    work = Operation("add", 0, 0, 1.0, 2.0, 1, "", 0.25, 100.0, 111.0)
    told = [made, CommEnd(3, 105.5), SpanStart("step", 0, 111.0, 2), work]
    same, end, span, operation = drift.straighten(told)
    assert same == made
    assert end == CommEnd(3, pytest.approx(5.0))  # type: ignore[arg-type]
    assert span == SpanStart("step", 0, pytest.approx(10.0), 2)  # type: ignore[arg-type]
    assert isinstance(operation, Operation)
    times = (operation.start_s, operation.end_s, operation.fixed_s)
    assert times == pytest.approx((0.0, 10.0, 0.25))


def test_a_clock_that_goes_backwards_is_refused() -> None:
    steady, back = Fix(10.0, Clock()), Fix(9.0, Clock())
    (drift,) = measured([steady], [steady])
    assert drift.rate == 0.0
    assert drift.offset_s(50.0) == 0.0
    with pytest.raises(UsageError, match=r"place 1 showed 10 s .* and 9 s"):
        measured([steady, steady], [steady, back])
