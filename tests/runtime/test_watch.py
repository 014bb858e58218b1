"""Who has waited long, told from looks a few seconds apart."""

from __future__ import annotations

from labkit.runtime.watch import Waits


def test_one_long_wait_is_told_and_many_short_ones_are_not() -> None:
    """Once a false remark: a rank in thousands of short waits is not one that waits."""
    waits = Waits()
    for second in range(0, 30, 2):
        started = {0: 100.0, 1: 100.0 + second, 2: None}
        long = waits.longer_than(10, started, float(second))
        assert long == ([0] if second > 10 else [])


def test_a_wait_that_ended_is_forgotten() -> None:
    waits = Waits()
    waits.longer_than(10, {0: 5.0}, 0.0)
    waits.longer_than(10, {0: None}, 8.0)
    assert waits.longer_than(10, {0: 5.0}, 12.0) == []
    assert waits.longer_than(10, {0: 5.0}, 23.0) == [0]
    assert waits.longer_than(10, {}, 40.0) == []
