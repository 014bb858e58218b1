"""Operations: the slower of computing and moving, at an efficiency by size."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.replay.catalog import hardware
from labkit.replay.curve import Curve
from labkit.replay.device import Device, Efficiency
from tests.replay.issued import work

HALF = Efficiency(best=0.8, floor=0.1, half=1e9)
DEVICE = Device.of({"float32": 1e12, "bfloat16": 8e12}, 1e11, HALF, HALF)


@pytest.mark.parametrize("flops", [1e6, 1e8, 1e9, 1e11, 1e15])
def test_the_share_of_the_peak_rises_with_size(flops: float) -> None:
    expected = max(0.1, 0.8 * flops / (flops + 1e9))
    assert DEVICE.work_s(work(flops)) == pytest.approx(flops / (expected * 1e12))


def test_the_slower_of_computing_and_moving_counts() -> None:
    computing, moving = DEVICE.work_s(work(1e12)), DEVICE.work_s(work(0, 1e12))
    assert DEVICE.work_s(work(1e12, 1e12)) == max(computing, moving)
    assert DEVICE.work_s(work(1e12, 1.0)) == computing
    assert DEVICE.work_s(work(1.0, 1e12)) == moving
    assert DEVICE.work_s(work()) == 0.0


def test_a_dtype_without_a_rate_computes_as_float32() -> None:
    assert DEVICE.work_s(work(1e12, dtype="complex64")) == DEVICE.work_s(work(1e12))
    faster = DEVICE.work_s(work(1e15, dtype="bfloat16"))
    assert DEVICE.work_s(work(1e15)) == pytest.approx(8 * faster)


def test_scaling_leaves_memory() -> None:
    fast = DEVICE.scaled(2.0)
    assert fast.work_s(work(1e12)) == pytest.approx(DEVICE.work_s(work(1e12)) / 2)
    assert fast.work_s(work(0, 1e12)) == DEVICE.work_s(work(0, 1e12))
    assert fast.peak_flops_per_s == {"float32": 2e12, "bfloat16": 16e12}


@pytest.mark.parametrize(
    ("gflops", "least", "most"),
    [(4, 0.55, 0.65), (45, 0.85, 0.93), (1000, 0.93, 0.951), (0.01, 0.099, 0.101)],
)
def test_the_a100_is_as_efficient_as_its_source_says(
    gflops: float, least: float, most: float
) -> None:
    """In the middle of each step of Calculon's table of efficiencies."""
    seconds = hardware("dgx-a100").work_s(work(gflops * 1e9, dtype="bfloat16"))
    assert least <= gflops * 1e9 / seconds / 312e12 <= most


@pytest.mark.parametrize("value", [None, 0, -1.0, nan, inf, "many"])
def test_rates_that_no_device_has_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"peak_flops_per_s\['float32'\]"):
        Device.of({"float32": value}, 1e11, HALF, HALF)
    with pytest.raises(UsageError, match="bytes_per_s of 'a device'"):
        Device.of({"float32": 1e12}, value, HALF, HALF)


@pytest.mark.parametrize(
    ("best", "floor", "half"),
    [(1.1, 0.1, 1), (0.1, 0.2, 1), (0.5, 0, 1), (0.5, 0.1, nan), (None, 0.1, 1)],
)
def test_efficiencies_that_are_none_are_refused(
    best: Any, floor: Any, half: Any
) -> None:
    with pytest.raises(UsageError, match="efficiency"):
        Efficiency(best, floor, half)


def test_a_device_needs_float32() -> None:
    line = Curve.line(0.0, 1e12)
    with pytest.raises(UsageError, match="float32, which stands in"):
        Device({"bfloat16": line}, line, {"bfloat16": 1e12})
