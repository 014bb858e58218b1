"""Seconds by size."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.replay.curve import Curve

CURVE = Curve((0.0, 100.0, 300.0), (1.0, 2.0, 6.0))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 1.0), (50, 1.5), (100, 2.0), (200, 4.0), (300, 6.0), (800, 16.0)],
    ids=["latency", "first", "knot", "second", "last", "beyond"],
)
def test_straight_between_the_knots_and_on_beyond_the_last(
    size: float, expected: float
) -> None:
    assert CURVE.at(size) == pytest.approx(expected)


def test_scaling_leaves_each_part_its_own_factor() -> None:
    scaled = CURVE.scaled(latency=3.0, rate=2.0)
    assert scaled.latency_s == 3.0
    assert scaled.at(300) - scaled.latency_s == pytest.approx((6.0 - 1.0) / 2)


def test_a_line_is_alpha_and_beta() -> None:
    line = Curve.line(0.5, rate_per_s=10.0)
    assert [line.at(size) for size in (0, 20, 1e12)] == pytest.approx([0.5, 2.5, 1e11])
    assert line.peak_rate_per_s == pytest.approx(10.0)


def test_noise_never_makes_more_bytes_faster() -> None:
    noisy = Curve.through(1.0, [(30, 5.0), (10, 4.0), (20, 3.0)])
    assert noisy.sizes == (0.0, 10.0, 20.0, 30.0)
    assert noisy.times_s == (1.0, 4.0, 4.0, 5.0)


@pytest.mark.parametrize(
    ("sizes", "times_s"),
    [
        ((0.0,), (1.0,)),
        ((1.0, 2.0), (1.0, 2.0)),
        ((0.0, 2.0, 2.0), (1.0, 2.0, 3.0)),
        ((0.0, 2.0), (2.0, 1.0)),
        ((0.0, 2.0), (0.0, nan)),
        ((0.0, inf), (0.0, 1.0)),
        ((0.0, 2.0), (-1.0, 1.0)),
        ((0.0, 2.0), (0.0, None)),
        ((0.0, 2.0), (1.0,)),
    ],
    ids=[
        "one",
        "no zero",
        "twice",
        "falls",
        "nan",
        "inf",
        "negative",
        "missing",
        "short",
    ],
)
def test_what_no_time_can_follow_is_refused(sizes: Any, times_s: Any) -> None:
    with pytest.raises(UsageError, match="a curve"):
        Curve(sizes, times_s)


@pytest.mark.parametrize("rate", [0, -1.0, nan])
def test_a_line_has_a_rate(rate: float) -> None:
    with pytest.raises(UsageError, match="rate_per_s of 'a curve' must be"):
        Curve.line(1e-6, rate)
