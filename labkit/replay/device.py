"""How long an operation takes on a device: the slower of computing and moving.

A matrix product fills the device only above some size: below it the time is that of a
lower rate, above it that of the best rate and a fixed part more,

    seconds = min(flops / (floor * peak), (flops + half) / (best * peak))

so the efficiency rises as flops / (flops + half) to `best`. Memory does the same by
bytes. Only FLOPs and bytes are known of an operation: a thin matrix product looks as
good as a square one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.errors import UsageError
from labkit.record.program import Work
from labkit.replay.curve import Curve
from labkit.replay.number import check_positive


@dataclass(frozen=True)
class Efficiency:
    """The share of a peak that is reached, by size.

    Attributes:
        best: Of a very large operation.
        floor: Of a very small one.
        half: The size (FLOPs or bytes) at which half of `best` is reached.
    """

    best: float
    floor: float
    half: float

    def __post_init__(self) -> None:
        """Refuse shares that are none.

        Raises:
            UsageError: A share is not between 0 and 1, or the floor above the best.
        """
        for field in ("best", "floor", "half"):
            check_positive("an efficiency", field, getattr(self, field))
        if not self.floor < self.best <= 1:
            raise UsageError(
                "an efficiency must rise from `floor` to a `best` of at most 1; got "
                f"floor {self.floor} and best {self.best}. Give shares of the peak"
            )

    def curve(self, peak_per_s: float) -> Curve:
        """Seconds by size, at this share of a peak."""
        turn = self.half * self.floor / (self.best - self.floor)
        far = 1e3 * (turn + self.half)
        return Curve(
            (0.0, turn, far),
            (
                0.0,
                turn / (self.floor * peak_per_s),
                (far + self.half) / (self.best * peak_per_s),
            ),
        )


@dataclass(frozen=True)
class Device:
    """What a rank computes on.

    Attributes:
        computing: Time of an operation by its FLOPs, for each dtype that has a rate of
            its own; "float32" is taken for the others.
        memory: Time of an operation by the bytes that it moves.
        peak_flops_per_s: By dtype, what the maker promises, or the best measured.
    """

    computing: Mapping[str, Curve]
    memory: Curve
    peak_flops_per_s: Mapping[str, float]

    def __post_init__(self) -> None:
        """Refuse a device without a rate.

        Raises:
            UsageError: A peak is no number above 0, or float32 is missing.
        """
        for dtype, peak in self.peak_flops_per_s.items():
            check_positive("a device", f"peak_flops_per_s[{dtype!r}]", peak)
        if "float32" not in self.computing or "float32" not in self.peak_flops_per_s:
            raise UsageError(
                "a device needs a rate for float32, which stands in for every dtype "
                f"without one; got rates for {sorted(self.computing) or 'none'}. Try "
                "`labkit bench compute`"
            )

    @staticmethod
    def of(
        peak_flops_per_s: Mapping[str, float],
        bytes_per_s: float,
        computing: Efficiency,
        moving: Efficiency,
    ) -> Device:
        """A device from its datasheet and what share of that is reached.

        Raises:
            UsageError: A number is none, or not above 0.
        """
        for dtype, peak in peak_flops_per_s.items():
            check_positive("a device", f"peak_flops_per_s[{dtype!r}]", peak)
        check_positive("a device", "bytes_per_s", bytes_per_s)
        curves = {
            dtype: computing.curve(peak) for dtype, peak in peak_flops_per_s.items()
        }
        return Device(curves, moving.curve(bytes_per_s), dict(peak_flops_per_s))

    def work_s(self, work: Work) -> float:
        """Seconds of one operation, its launch not counted."""
        moving_s = self.memory.at(work.moved_bytes)
        if not work.flops:
            return moving_s
        curve = self.computing.get(work.dtype) or self.computing["float32"]
        return max(curve.at(work.flops), moving_s)

    def scaled(self, flops: float) -> Device:
        """With every FLOP rate times a factor; memory as it is."""
        return Device(
            {
                dtype: curve.scaled(rate=flops)
                for dtype, curve in self.computing.items()
            },
            self.memory,
            {dtype: peak * flops for dtype, peak in self.peak_flops_per_s.items()},
        )
