"""What a timeline draws, in plain numbers: the same for plotly and for the image.

Each rank has a band: its compute above, a thin row of communication below. Rank `i` of
the picture lies at height `i`, downwards; x is in seconds.

    i - 0.42   marks
    i - 0.34   compute row      one bar for each stretch of compute
    i + 0.14
    i + 0.18   communication    hatched: waiting; solid: transfer
    i + 0.36
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from labkit.units import time_unit

TEXT = "#808080"  # Read well on white and on JupyterLab's dark grey alike.
BAND = (0.5, 0.5, 0.5, 0.10)
COMPUTE_ROW = (-0.34, 0.14)
COMM_ROW = (0.18, 0.36)
BAND_ROW = (-0.38, 0.40)
MARK_AT = -0.42
# Of a picture on the page, in CSS pixels: it fits a cell on a screen of 1280.
WIDTH = 820
LINE_LETTERS = 112  # As many as fit below such a picture.
HEADING_PIXELS = 22
ROW_PIXELS, MIN_ROW_PIXELS, MAX_PIXELS = 62, 14, 1000


def folded(lines: Iterable[str]) -> list[str]:
    """The lines below a picture, each as many as it needs."""
    return [part for line in lines for part in textwrap.wrap(line, LINE_LETTERS)]


def spaced(
    steps: Sequence[tuple[float, str]], whole: float, most: int
) -> Iterator[tuple[float, str]]:
    """At most so many of the steps, unnamed where the last name leaves no room."""
    free_from = 0.0
    for at, name in steps[:: -(-len(steps) // most) or 1]:
        has_room = at >= free_from
        free_from = at + whole / most if has_room else free_from
        yield at, name if has_room else ""


class Look(NamedTuple):
    """One entry of the legend. Colours are Okabe and Ito's, told apart by all eyes."""

    label: str
    color: str
    hatched: bool = False


FORWARD = Look("forward", "#0072B2")
BACKWARD = Look("backward", "#E69F00")
OPTIMIZER = Look("optimizer", "#CC79A7")
COMPUTE = Look("compute", "#56B4E9")
COLLECTIVE = Look("collective: transfer", "#009E73")
P2P = Look("send, recv: transfer", "#D55E00")
WAITING = Look("waiting for another rank", "#808080", hatched=True)
RACE = "#F0E442"
LOOKS = (COMPUTE, FORWARD, BACKWARD, OPTIMIZER, COLLECTIVE, P2P, WAITING)


class Bar(NamedTuple):
    """A stretch of time on one row; `top` and `bottom` are heights of the picture."""

    look: Look
    top: float
    bottom: float
    start: float
    end: float
    hover: str


class Arrow(NamedTuple):
    """A message on its way, from (x, y) to (x, y)."""

    start: tuple[float, float]
    end: tuple[float, float]
    hover: str


class Dot(NamedTuple):
    """Something at one moment; `side` is where there is room for its label."""

    x: float
    y: float
    label: str
    hover: str
    side: Literal["right", "left", "none"] = "none"


@dataclass(frozen=True)
class Chart:
    """A whole timeline.

    `lines` stand under it, `guides` are where the steps begin. `races` are touches of
    a buffer that a transfer still used. Above the rows that `headings` name there is
    room for a line of text: see `places`.
    """

    title: str
    lines: tuple[str, ...]
    row_labels: tuple[str, ...]
    duration: float
    bars: tuple[Bar, ...]
    arrows: tuple[Arrow, ...]
    marks: tuple[Dot, ...]
    calls: tuple[Dot, ...]
    guides: tuple[tuple[float, str], ...]
    races: tuple[Dot, ...] = ()
    headings: tuple[tuple[int, str], ...] = ()

    @property
    def looks(self) -> tuple[Look, ...]:
        """The legend: what occurs, in a fixed order."""
        present = {bar.look for bar in self.bars}
        return tuple(look for look in LOOKS if look in present)

    @property
    def unit(self) -> tuple[float, str]:
        """Units of the time axis in a second, and their name."""
        return time_unit(self.duration)

    @property
    def places(self) -> tuple[float, ...]:
        """The height at which each row lies: its number, and the headings above it."""
        return tuple(
            row + self.heading_rows * sum(at <= row for at, _ in self.headings)
            for row in range(len(self.row_labels))
        )

    @property
    def num_rows(self) -> float:
        """The height of the picture, in rows."""
        headings = self.heading_rows * len(self.headings)
        return max(1, len(self.row_labels)) + headings

    @property
    def heading_rows(self) -> float:
        """The height of a heading, in rows."""
        return HEADING_PIXELS / self.row_pixels

    @property
    def row_pixels(self) -> int:
        """The height of a rank's band: less where there are many ranks."""
        rows = max(1, len(self.row_labels))
        return max(MIN_ROW_PIXELS, min(ROW_PIXELS, MAX_PIXELS // rows))

    def is_sliver(self, look: Look) -> bool:
        """Whether a look is only the odd gap between spans: no entry in the legend."""
        lengths = [bar.end - bar.start for bar in self.bars if bar.look == look]
        room = self.duration * len(self.row_labels)
        return look == COMPUTE and sum(lengths) < 0.005 * room
