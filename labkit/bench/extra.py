"""What a cell costs above an empty one, for several tools in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.bench.figures import Figure, Interval
from labkit.bench.pairs import NUM_RESAMPLES
from labkit.errors import UsageError


def in_turn(
    measures: Sequence[Callable[[], float]], rounds: int
) -> list[tuple[float, ...]]:
    """Take every measure once a round; which goes first rotates."""
    taken: list[list[float]] = [[] for _ in measures]
    for number in range(rounds):
        first = number % len(measures)
        for index in (*range(first, len(measures)), *range(first)):
            taken[index].append(measures[index]())
    return [tuple(each) for each in taken]


@dataclass(frozen=True)
class Extra:
    """Times above an empty cell; entry k of each was taken in round k.

    Noise may take a single one below 0, but not the median of theirs.
    """

    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    theirs_again_s: tuple[float, ...]

    def figure(self, name: str, *, against: str) -> Figure:
        """The medians beside each other, with the interval of their ratio."""
        return Figure(
            name=f"{name} ({len(self.ours_s)} pairs)",
            unit="s",
            ours=max(0.0, float(np.median(self.ours_s))),
            theirs=max(0.0, float(np.median(self.theirs_s))),
            interval=ratio_interval(self.ours_s, self.theirs_s),
            aa_interval=ratio_interval(self.theirs_again_s, self.theirs_s),
            against=against,
        )


def ratio_interval(
    above_s: Sequence[float], below_s: Sequence[float], *, seed: int = 0
) -> Interval | None:
    """The 95 % interval of median(above) / median(below), rounds resampled together.

    None where `below` cannot be told from nothing: there is no ratio then.

    Raises:
        UsageError: They are not of the same rounds, or there is no round.
    """
    above: NDArray[np.float64] = np.asarray(above_s, dtype=np.float64)
    below: NDArray[np.float64] = np.asarray(below_s, dtype=np.float64)
    if not len(above) == len(below) > 0:
        raise UsageError(
            f"Times must come in pairs, at least one; {len(above)} and {len(below)} "
            "were given. Try measuring both in every round."
        )
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(above), size=(NUM_RESAMPLES, len(above)))
    divisors = np.median(below[picks], axis=1)
    if divisors.min() <= 0:
        return None
    low, high = np.quantile(np.median(above[picks], axis=1) / divisors, [0.025, 0.975])
    return float(low), float(high)
