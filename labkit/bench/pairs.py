"""Times two things in turn, so that what disturbs the machine disturbs both alike.

A ratio of two medians means nothing by itself: the same training step against itself
gave 0.92 to 1.12 over 15 pairs and 0.95 to 1.06 over 60. So at least 60 pairs are
timed, the ratio comes with its interval, and beside it stands the interval of theirs
against itself in the same run (A/A): a difference inside that is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.bench.figures import Figure, Interval
from labkit.errors import UsageError

MIN_PAIRS = 60
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Pairs:
    """Timings of the same length; entry k of each was taken in round k."""

    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    theirs_again_s: tuple[float, ...]
    interval: Interval
    aa_interval: Interval

    @property
    def ratio(self) -> float:
        """Our median over theirs: below 1, ours is faster."""
        return float(np.median(self.ours_s) / np.median(self.theirs_s))

    def figure(self, name: str, *, against: str = "") -> Figure:
        """The comparison as a figure, in seconds."""
        return Figure(
            name=name,
            unit="s",
            ours=float(np.median(self.ours_s)),
            theirs=float(np.median(self.theirs_s)),
            interval=self.interval,
            aa_interval=self.aa_interval,
            against=against,
        )


def alternate(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    pairs: int = MIN_PAIRS,
    warm_up: int = 3,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Pairs:
    """Time `ours` and `theirs` in turn.

    Each round times ours once and theirs twice; which goes first rotates.

    Args:
        ours: What is measured.
        theirs: What it is compared with.
        pairs: Number of rounds.
        warm_up: Calls of each beforehand that are not timed.
        seed: Seeds the resampling behind the intervals.
        clock: Returns seconds.

    Raises:
        UsageError: Fewer pairs than an interval needs.
    """
    if pairs < MIN_PAIRS:
        raise UsageError(
            f"A ratio of times needs at least {MIN_PAIRS} pairs; {pairs} were asked "
            "for. Try a smaller thing to time."
        )
    for _ in range(warm_up):
        ours()
        theirs()
    turns: list[tuple[list[float], Callable[[], object]]]
    turns = [([], ours), ([], theirs), ([], theirs)]
    for number in range(pairs):
        first = number % len(turns)
        for timings, call in (*turns[first:], *turns[:first]):
            start_s = clock()
            call()
            timings.append(clock() - start_s)
    (ours_s, _), (theirs_s, _), (again_s, _) = turns
    return Pairs(
        tuple(ours_s),
        tuple(theirs_s),
        tuple(again_s),
        interval=bootstrap(ours_s, theirs_s, seed=seed),
        aa_interval=bootstrap(again_s, theirs_s, seed=seed),
    )


def bootstrap(
    above_s: Sequence[float], below_s: Sequence[float], *, seed: int
) -> Interval:
    """The 95 % interval of median(above) / median(below), rounds resampled together.

    Raises:
        UsageError: A time is not above 0, or there is no time at all.
    """
    above: NDArray[np.float64] = np.asarray(above_s, dtype=np.float64)
    below: NDArray[np.float64] = np.asarray(below_s, dtype=np.float64)
    if not len(above) == len(below) > 0 or min(above.min(), below.min()) <= 0:
        raise UsageError(
            f"Times must be above 0 and come in pairs; {len(above)} and {len(below)} "
            "were given. Try timing several calls as one."
        )
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(above), size=(NUM_RESAMPLES, len(above)))
    ratios = np.median(above[picks], axis=1) / np.median(below[picks], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
