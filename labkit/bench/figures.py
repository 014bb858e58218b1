"""One measured comparison: ours beside theirs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import TypeAlias

from labkit.errors import UsageError

Interval: TypeAlias = tuple[float, float]


@cache
def this_machine() -> str:
    """The machine and the versions a figure was measured with, in one line."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, "
        f"torch {version('torch')}"
    )


@dataclass(frozen=True)
class Figure:
    """A time, a size or a count of ours beside theirs; lower is better.

    Attributes:
        name: What was measured: "warm run, 4 ranks".
        unit: The unit of `ours` and `theirs`: "s", "bytes", "processes".
        ours: labkit's value.
        theirs: The other tool's value; None where no other tool does this.
        ratio: `ours / theirs`; None where there is no other, or theirs is 0.
        interval: The ratio's 95 % interval; None where it was not timed in pairs.
        aa_interval: The same for theirs against itself in the same run.
        against: The other tool and its version.
        machine: What it was measured on.
    """

    name: str
    unit: str
    ours: float
    theirs: float | None = None
    interval: Interval | None = None
    aa_interval: Interval | None = None
    against: str = ""
    machine: str = field(default_factory=this_machine)
    ratio: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Compute the ratio, so that no figure can disagree with itself.

        Raises:
            UsageError: A value is negative, infinite or no number.
        """
        for value in (self.ours, self.theirs):
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(
                    f"A figure's values must be finite and at least 0; {self.name!r} "
                    f"has ours = {self.ours}, theirs = {self.theirs}. Try leaving a "
                    "value out that could not be measured."
                )
        ratio = self.ours / self.theirs if self.theirs else None
        object.__setattr__(self, "ratio", ratio)


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
