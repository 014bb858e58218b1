"""How long something takes by its size: straight between the sizes that were measured.

Between two knots the time is latency + size / rate, with a latency and a rate of that
stretch: an alpha-beta model by size. A library of collectives changes its algorithm by
size, a matrix product fills the device only above some size, and no single alpha and
beta says either.

    seconds            ,-'      beyond the last knot: on with the last stretch's rate
            |       ,-'
            |   _,-o
            |o-'                from 0 bytes: the latency
            +--------------- size
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from labkit.errors import UsageError
from labkit.replay.number import check_positive, check_time


@dataclass(frozen=True)
class Curve:
    """Seconds by size (bytes, or FLOPs), from size 0 on.

    Attributes:
        sizes: Where the time is known; the first is 0, each above the one before.
        times_s: The time there, none below the one before.
    """

    sizes: tuple[float, ...]
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse knots that no time can follow.

        Raises:
            UsageError: They are too few, out of order, or no numbers.
        """
        for size, time_s in zip(self.sizes, self.times_s, strict=False):
            check_time("a curve", "a size", size)
            check_time("a curve", f"the time at size {size:g}", time_s)
        rising = all(low < high for low, high in pairwise(self.sizes))
        falling = any(high < low for low, high in pairwise(self.times_s))
        is_paired = len(self.sizes) == len(self.times_s) >= 2
        if not is_paired or self.sizes[0] != 0 or not rising or falling:
            raise UsageError(
                "a curve needs two knots or more, from size 0 on, with sizes that grow "
                f"and times that do not fall; got sizes {self.sizes} and times "
                f"{self.times_s}. Sort the measurements, and start with the latency"
            )

    @staticmethod
    def line(latency_s: float, rate_per_s: float, size: float = 1e9) -> Curve:
        """The same latency and rate at every size.

        Raises:
            UsageError: A number is none, or the rate not above 0.
        """
        check_positive("a curve", "rate_per_s", rate_per_s)
        return Curve((0.0, size), (latency_s, latency_s + size / rate_per_s))

    @staticmethod
    def through(latency_s: float, points: Iterable[tuple[float, float]]) -> Curve:
        """From the latency through (size, seconds), where the times rise with noise.

        A time below one of a smaller size is taken to be that one.
        """
        sizes, times_s = [0.0], [latency_s]
        for size, time_s in sorted(points):
            sizes.append(float(size))
            times_s.append(max(times_s[-1], float(time_s)))
        return Curve(tuple(sizes), tuple(times_s))

    @property
    def latency_s(self) -> float:
        """What nothing takes."""
        return self.times_s[0]

    @property
    def peak_rate_per_s(self) -> float:
        """The highest rate at any knot, latency not counted; the last stretch's too."""
        ends = zip(self.sizes[1:], self.times_s[1:], strict=True)
        rates = [_rate(size, time_s - self.latency_s) for size, time_s in ends]
        last = _rate(
            self.sizes[-1] - self.sizes[-2], self.times_s[-1] - self.times_s[-2]
        )
        return max(*rates, last)

    def at(self, size: float) -> float:
        """Seconds that a size takes."""
        sizes, times_s = self.sizes, self.times_s
        index = min(bisect_right(sizes, size), len(sizes) - 1)
        low, high = sizes[index - 1], sizes[index]
        share = (size - low) / (high - low)
        return times_s[index - 1] + share * (times_s[index] - times_s[index - 1])

    def scaled(self, *, latency: float = 1.0, rate: float = 1.0) -> Curve:
        """With the latency times one factor and every rate times another."""
        base_s = self.latency_s
        return Curve(
            self.sizes,
            tuple(base_s * latency + (each - base_s) / rate for each in self.times_s),
        )


def _rate(size: float, seconds: float) -> float:
    return size / seconds if seconds > 0 else float("inf")
