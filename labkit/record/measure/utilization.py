"""MFU: which share of the peak the model's own arithmetic makes up.

    MFU = model FLOPs of a step / (step time x sum of the ranks' peak FLOP/s)

Model FLOPs are what one step of the model needs, forward and backward, over all ranks:
not what is computed again for activation checkpointing. With FLOPs counted from a
record, recomputation counts as well: papers call that HFU. The two are the same where
nothing is recomputed; never compare one with the other.
Paper: Chowdhery et al. 2022 (PaLM), appendix B; Korthikanti et al. 2022, table 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from labkit.errors import UsageError
from labkit.record.measure.steps import Steps
from labkit.record.program import Program, Work


@dataclass(frozen=True)
class Utilization:
    """FLOPs of a step and what the ranks could have done in its time.

    Attributes:
        flops: Of one step, over all ranks.
        source: Who says so: the caller, or the operations in the record.
        peak_flops_per_s: Of all ranks together; None where the caller gave none.
        step_s: The step time.
    """

    flops: float
    source: Literal["given", "counted"]
    peak_flops_per_s: float | None
    step_s: float

    @property
    def flops_per_s(self) -> float:
        """What was achieved, over all ranks."""
        return self.flops / self.step_s

    @property
    def share(self) -> float | None:
        """MFU (HFU where counted), 1 for all of the peak; None without a peak."""
        if self.peak_flops_per_s is None:
            return None
        return self.flops_per_s / self.peak_flops_per_s


def of_program(
    program: Program,
    steps: Steps,
    model_flops: float | None,
    peak_flops_per_s: float | None,
) -> Utilization | None:
    """MFU of a record; None where nobody knows the FLOPs and no peak is asked of.

    Args:
        program: Any record; FLOPs are in it at level "work", and in dry runs.
        steps: The steps that are measured.
        model_flops: Of one step, over all ranks; None counts those of the record.
        peak_flops_per_s: Of one rank.

    Raises:
        UsageError: A number that is not above 0, or a peak and no FLOPs.
    """
    given = {"model_flops": model_flops, "peak_flops_per_s": peak_flops_per_s}
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(
                f"{name} is a finite number above 0; got {value}. Give FLOPs of one "
                "step over all ranks, and the peak of one rank in FLOP/s"
            )
    flops = _counted(program, steps) if model_flops is None else model_flops
    if not steps.mean_s:
        return None
    if not flops:
        if peak_flops_per_s is None:
            return None
        raise UsageError(
            "MFU needs the FLOPs of a step; none are given, and the record, at level "
            f'"{program.header.level}", counts 0. Give model_flops=, or record with '
            'record="work"'
        )
    peak = peak_flops_per_s and peak_flops_per_s * len(program.header.ranks)
    source = "counted" if model_flops is None else "given"
    return Utilization(flops, source, peak, steps.mean_s)


def _counted(program: Program, steps: Steps) -> float:
    """FLOPs of the operations in the measured steps, for one step, over all ranks."""
    total = sum(
        work.flops
        for work in program
        if isinstance(work, Work)
        and work.start_s is not None
        and steps.covers[work.rank].holds(work.start_s)
    )
    return total / len(steps.numbers)
