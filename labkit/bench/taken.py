"""What was measured of each tool, and the figures that set ours beside theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from labkit.bench.figures import Figure
from labkit.bench.tools import Tool
from labkit.units import format_bytes, format_seconds

# How long a tool may take to answer where labkit promises half a second.
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Killed:
    """A kernel killed: when nothing of it was alive, and what was left at the limit."""

    gone_s: float | None
    num_before: int
    num_left: int


@dataclass
class Taken:
    """What was measured of one tool. A list is empty where it gave no answer.

    `unnamed` counts the reports of a rank that raised without its number or line,
    `num_hung` the runs that another try on a fresh kernel had to make up for.
    """

    tool: Tool
    cold_s: list[float] = field(default_factory=list)
    memory_bytes: list[float] = field(default_factory=list)
    raised_s: list[float] = field(default_factory=list)
    unnamed: int = 0
    prompt_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    killed: Killed | None = None
    num_hung: int = 0


_Values = Callable[[Taken], list[float]]
_REPEATED: tuple[tuple[str, str, _Values], ...] = (
    ("cold start to the first all-reduce", "s", lambda taken: taken.cold_s),
    ("memory of the pool", "bytes", lambda taken: taken.memory_bytes),
    ("a rank raises, to the cell's error", "s", lambda taken: taken.raised_s),
    ("interrupt in a collective, to the prompt", "s", lambda taken: taken.prompt_s),
    ("the same, to the next run's result", "s", lambda taken: taken.again_s),
)


def compare(ours: Taken, others: Sequence[Taken]) -> list[Figure]:
    """Our figures beside each other tool's; alone where there is none."""
    found: list[Figure] = []
    for name, unit, values in _REPEATED:
        if values(ours):
            found += _each(name, unit, ours, others, values)
        if name.startswith("a rank raises"):
            found += [_unnamed(ours, other) for other in others or [None]]
    for other in others or [None]:
        found += _killed(ours, other)
    return found + [_hung(ours, other) for other in others]


def repeated(
    name: str,
    samples: Sequence[float],
    *,
    unit: str = "s",
    theirs: float | None = None,
    against: str = "",
) -> Figure:
    """A figure from a few repetitions: the median, with their number and range."""
    full_name = f"{name} ({spread(samples, unit)})"
    return Figure(full_name, unit, median(samples), theirs, against=against)


def spread(samples: Sequence[float], unit: str) -> str:
    """How often and how widely: "5 times, 81 ms to 0.1 s"."""
    if len(samples) == 1:
        return "once"
    shown = format_bytes if unit == "bytes" else format_seconds
    low, high = shown(min(samples)), shown(max(samples))
    return f"{len(samples)} times, {low} to {high}"


def _each(
    name: str, unit: str, ours: Taken, others: Sequence[Taken], values: _Values
) -> list[Figure]:
    """One figure for each other tool, with what it was seen to do."""
    if not others:
        return [repeated(name, values(ours), unit=unit)]
    return [
        repeated(
            name,
            values(ours),
            unit=unit,
            theirs=median(values(other)) if values(other) else None,
            against=f"{other.tool.name}: {_seen(values(other), unit)}",
        )
        for other in others
    ]


def _seen(samples: Sequence[float], unit: str) -> str:
    if samples:
        return spread(samples, unit)
    return "keeps none" if unit == "bytes" else f"not within {PATIENCE_S:g} s"


def _unnamed(ours: Taken, other: Taken | None) -> Figure:
    """The reports that leave the learner to look for the rank or the line."""
    answered = other is not None and bool(other.raised_s)
    return Figure(
        f"the same, reports without rank and line (of {len(ours.raised_s)})",
        "reports",
        ours.unnamed,
        other.unnamed if other is not None and answered else None,
        against=_against(other, "" if answered else "no report"),
    )


def _killed(ours: Taken, other: Taken | None) -> list[Figure]:
    """The end of a killed kernel's processes."""
    mine, its = ours.killed, None if other is None else other.killed
    assert mine is not None
    found: list[Figure] = []
    if mine.gone_s is not None:
        found.append(
            Figure(
                f"kernel killed, to the end of its {mine.num_before} processes",
                "s",
                mine.gone_s,
                None if its is None else its.gone_s,
                against=_against(other, "" if its and its.gone_s else "never"),
            )
        )
    left = Figure(
        f"kernel killed, processes left after {PATIENCE_S:g} s",
        "processes",
        mine.num_left,
        None if its is None else its.num_left,
        against=_against(other, "" if its is None else f"of {its.num_before}"),
    )
    return [*found, left]


def _hung(ours: Taken, other: Taken) -> Figure:
    return Figure(
        "runs that hung before they got going",
        "runs",
        ours.num_hung,
        other.num_hung,
        against=other.tool.name,
    )


def _against(other: Taken | None, seen: str) -> str:
    if other is None:
        return ""
    return f"{other.tool.name}: {seen}" if seen else other.tool.name
