"""Timings in pairs, with a clock that the test winds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from labkit.bench.pairs import MIN_PAIRS, alternate, bootstrap
from labkit.errors import UsageError


class Workshop:
    """A clock and calls that take as long as they are told, with some noise."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.now_s = 100.0
        self.calls: list[str] = []
        self._noise = noise
        self._random = random.Random(seed)

    def clock(self) -> float:
        return self.now_s

    def call(self, name: str, takes_s: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now_s += takes_s * self._random.lognormvariate(0, self._noise)

        return run


def test_every_timing_is_the_clocks() -> None:
    shop = Workshop()
    ours, theirs = shop.call("ours", 2.0), shop.call("theirs", 4.0)
    pairs = alternate(ours, theirs, clock=shop.clock)
    assert pairs.ours_s == pytest.approx([2.0] * MIN_PAIRS)
    assert pairs.theirs_s == pairs.theirs_again_s == pytest.approx([4.0] * MIN_PAIRS)
    assert pairs.ratio == pytest.approx(0.5)
    assert pairs.interval == pytest.approx((0.5, 0.5))
    assert pairs.aa_interval == pytest.approx((1.0, 1.0))


def test_calls_alternate_and_each_comes_first_in_turn() -> None:
    shop = Workshop()
    alternate(
        shop.call("o", 1.0), shop.call("t", 1.0), warm_up=2, clock=shop.clock, pairs=60
    )
    called = "".join(shop.calls)
    assert called[:4] == "otot"
    assert called[4:] == "ottttotot" * 20


def test_warm_up_is_not_timed() -> None:
    shop = Workshop()
    slow_start = iter([50.0, 50.0, 50.0])

    def ours() -> None:
        shop.now_s += next(slow_start, 1.0)

    pairs = alternate(ours, shop.call("theirs", 1.0), warm_up=3, clock=shop.clock)
    assert max(pairs.ours_s) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_intervals_tell_a_difference_from_noise(seed: int) -> None:
    shop = Workshop(noise=0.1, seed=seed)
    slower = alternate(shop.call("o", 1.3), shop.call("t", 1.0), clock=shop.clock)
    low, high = slower.interval
    assert 1.0 < low < slower.ratio < high < 1.6
    for low, high in (slower.aa_interval, bootstrap([1, 2, 3], [1, 2, 3], seed=0)):
        assert low <= 1.0 <= high


def test_intervals_are_repeatable() -> None:
    rng = random.Random(0)
    above, below = ([1 + rng.random() for _ in range(60)] for _ in range(2))
    assert bootstrap(above, below, seed=1) == bootstrap(above, below, seed=1)
    assert bootstrap(above, below, seed=1) != bootstrap(above, below, seed=2)


def test_one_slow_round_hardly_moves_the_ratio() -> None:
    shop = Workshop()
    stalls = iter([0.0] * 10 + [1000.0])

    def ours() -> None:
        shop.now_s += 1.0 + next(stalls, 0.0)

    pairs = alternate(ours, shop.call("t", 1.0), warm_up=0, clock=shop.clock)
    assert pairs.ratio == pytest.approx(1.0)
    assert pairs.interval == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("pairs", [0, 1, 59, -60])
def test_too_few_pairs_are_refused(pairs: int) -> None:
    with pytest.raises(UsageError, match=rf"at least 60 pairs; {pairs} were"):
        alternate(lambda: None, lambda: None, pairs=pairs)


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="above 0"):
        alternate(lambda: None, lambda: None, clock=lambda: 1.0)
    with pytest.raises(UsageError, match="3 and 2 were"):
        bootstrap([1.0] * 3, [1.0] * 2, seed=0)


def test_a_figure_carries_both_intervals() -> None:
    shop = Workshop(noise=0.1)
    pairs = alternate(shop.call("o", 1.0), shop.call("t", 2.0), clock=shop.clock)
    figure = pairs.figure("warm run", against="another tool 1.0")
    assert (figure.unit, figure.against) == ("s", "another tool 1.0")
    assert figure.ratio == pairs.ratio
    assert (figure.interval, figure.aa_interval) == (pairs.interval, pairs.aa_interval)
