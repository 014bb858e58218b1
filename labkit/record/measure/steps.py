"""Which time counts: each rank's spans named "step", or else the whole record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from labkit.errors import UsageError
from labkit.record.measure.cover import Cover
from labkit.record.program import Program, Span
from labkit.record.track import STEP


class Window(NamedTuple):
    """One rank's stretch of one step."""

    step: int
    start: float
    end: float


@dataclass(frozen=True)
class Steps:
    """The steps that are measured, and when each rank was in them.

    Attributes:
        numbers: The steps, in order; (0,) where the whole record is one.
        windows: For each rank, its stretch of each of `numbers`.
        by_span: Whether there are spans named "step".
        left_out: Steps that are not measured, and why.
    """

    numbers: tuple[int, ...]
    windows: dict[int, tuple[Window, ...]]
    by_span: bool
    left_out: tuple[str, ...]

    @property
    def lengths_s(self) -> dict[int, float]:
        """How long each step took: as long as on the rank where it took longest."""
        longest = dict.fromkeys(self.numbers, 0.0)
        for windows in self.windows.values():
            for step, start, end in windows:
                longest[step] = max(longest[step], end - start)
        return longest

    @property
    def mean_s(self) -> float:
        """Mean of these lengths: the step time."""
        return sum(self.lengths_s.values()) / len(self.numbers)

    @cached_property
    def covers(self) -> dict[int, Cover]:
        """Each rank's time in steps."""
        return {
            rank: Cover((start, end) for _, start, end in windows)
            for rank, windows in self.windows.items()
        }


def find(program: Program, skip: int = 0) -> Steps:
    """The steps of a record, without the first `skip` of them.

    Raises:
        UsageError: No step was closed on every rank, or all of them are skipped;
            `skip` is below 0.
    """
    if skip < 0:
        raise UsageError(
            f"of a record's first steps 0 or more are skipped; got {skip}. Say how "
            "many are the warm-up: skip_steps=2"
        )
    spans = [s for s in program.spans.values() if s.name == STEP and s.lane == 0]
    if not spans:
        return _whole(program, skip)
    began = sorted({span.step for span in spans})
    closed, left_out = _closed(spans, began)
    kept = [step for step in closed if step >= began[0] + skip]
    if not kept:
        raise UsageError(
            f'a step time needs a span named "step" that every rank closed; of '
            f"{len(began)} steps {len(closed)} were closed, and {skip} are skipped. "
            + " ".join(left_out)
            + " Let the run come to its end, or skip fewer"
        )
    hull = {
        step: (min(s.start for s in closed[step].values()),
               max(s.end for s in closed[step].values()))
        for step in kept
    }  # fmt: skip
    windows = {
        rank: tuple(
            closed[step].get(rank) or Window(step, *hull[step]) for step in kept
        )
        for rank in program.header.ranks
    }
    return Steps(tuple(kept), windows, True, tuple(left_out))


def _whole(program: Program, skip: int) -> Steps:
    if skip:
        raise UsageError(
            f'steps are spans named "step"; this record has none, so '
            f"skip_steps={skip} cannot leave any out. Write "
            '`with span("step"):` around each, or skip none'
        )
    window = (Window(0, 0.0, program.duration_s),)
    return Steps((0,), dict.fromkeys(program.header.ranks, window), False, ())


def _closed(
    spans: list[Span], began: list[int]
) -> tuple[dict[int, dict[int, Window]], list[str]]:
    """The steps that each rank with steps has closed, and words on the others."""
    found: defaultdict[int, dict[int, Window]] = defaultdict(dict)
    for span in spans:
        if span.start_s is not None and span.end_s is not None:
            window = Window(span.step, span.start_s, span.end_s)
            found[span.step][span.rank] = window
    ranks = {span.rank for span in spans}
    closed = {step: found[step] for step in began if found[step].keys() == ranks}
    left_out = [
        f"Step {step} is left out: rank {rank} never closed it."
        for step in began
        if step not in closed
        for rank in sorted(ranks - found[step].keys())[:1]
    ]
    return closed, left_out
