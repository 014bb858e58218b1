"""The bubble: the share of a step in which ranks had nothing to compute.

Papers divide the same idle time by two different things. With p stages and m
micro-batches, GPipe and 1F1B on an ideal network have

    of the ideal time   (p-1)/m         idle / time that is computed
    of the total time   (p-1)/(m+p-1)   idle / length of the step

Paper: Narayanan et al. 2021, section 2.2.1 (of ideal); Qi et al. 2023, table 5 (of
total: the step is as long as on the rank whose step is longest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.record.measure.steps import Steps
from labkit.record.measure.times import RankTimes


class Bubble(NamedTuple):
    """Idle and computed seconds of all ranks in the measured steps."""

    idle_s: float
    ideal_s: float

    @property
    def of_ideal(self) -> float | None:
        """Idle / computed; None where nothing was computed."""
        return self.idle_s / self.ideal_s if self.ideal_s else None

    @property
    def of_total(self) -> float | None:
        """Idle / (idle + computed): never above 1."""
        total = self.idle_s + self.ideal_s
        return self.idle_s / total if total else None


def of_ranks(times: Sequence[RankTimes], steps: Steps) -> Bubble:
    """The bubble of all ranks together."""
    room = len(times) * sum(steps.lengths_s.values())
    computed = sum(rank.compute_s for rank in times)
    return Bubble(max(0.0, room - computed), computed)
