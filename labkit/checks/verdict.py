"""What a check found: faults by property, and the points that are left.

An exercise is worth a fixed number of points for each property that it is judged on.
A property earns its points when no case showed a fault in it. Wrong values earn nothing
anywhere, since fast and frugal garbage is worth nothing; every message is shown all the
same, so that one look tells all there is to mend. Values that are wrong only in cases
beside the main ones keep some of their points, and then the rest earns its own.
"""

from __future__ import annotations

import enum
import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class Property(enum.Enum):
    """What an answer is judged on."""

    VALUES = "values"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    SCHEDULE = "schedule"
    OVERLAP = "overlap"


@dataclass(frozen=True)
class Fault:
    """A property that did not hold in one case; `kept` points remain."""

    judged: Property
    case: str
    message: str
    kept: int = 0


@dataclass(frozen=True)
class Line:
    """One property's line of a verdict."""

    judged: Property
    points: int
    out_of: int
    message: str

    @property
    def passed(self) -> bool:
        """Whether the property held in every case."""
        return self.points == self.out_of and not self.message


@dataclass(frozen=True)
class Verdict:
    """What `check` returns: a line for each property, and which cases were played.

    `printed` is what the answer printed meanwhile, or the beginning of it.
    """

    exercise: str
    title: str
    lines: tuple[Line, ...]
    played: str
    printed: str = ""

    @property
    def points(self) -> int:
        """Points earned."""
        return sum(line.points for line in self.lines)

    @property
    def out_of(self) -> int:
        """Points to be had."""
        return sum(line.out_of for line in self.lines)

    @property
    def passed(self) -> bool:
        """Whether every property held in every case."""
        return all(line.passed for line in self.lines)

    def __str__(self) -> str:
        """A small table for a terminal."""
        head = f"{self.exercise} {self.title}: {self.points} of {self.out_of} points"
        rows = [_text_row(line) for line in self.lines]
        return "\n".join([head, *rows, self.played, *self._told_printed()])

    def _ipython_display_(self) -> None:
        """Show nothing: `check` has shown it when it returns it to a cell's end."""

    def to_html(self) -> str:
        """A small table for a notebook."""
        rows = "".join(_html_row(line) for line in self.lines)
        title = html.escape(f"{self.exercise} {self.title}")
        return (
            f'<table style="{_TABLE}"><caption style="{_CAPTION}"><b>{title}</b>: '
            f"{self.points} of {self.out_of} points</caption>{rows}</table>"
            f'<div style="{_SMALL}">{html.escape(self.played)}</div>'
            + "".join(
                f"<pre>{html.escape(text)}</pre>" for text in self._told_printed()
            )
        )

    def complaint(self) -> str:
        """What does not hold, a paragraph for each property."""
        head = f"{self.exercise} {self.title}: {self.points} of {self.out_of} points"
        failed = (
            f"{line.judged.value}: {line.message}"
            for line in self.lines
            if not line.passed
        )
        return "\n".join([head, *failed, *self._told_printed()])

    def _told_printed(self) -> list[str]:
        text = self.printed.rstrip()
        return [f"Your function printed:\n{text}"] if text else []


def judge(
    exercise: str,
    title: str,
    out_of: Mapping[Property, int],
    faults: Iterable[Fault],
    played: str,
) -> Verdict:
    """Turn the faults of all cases into points and one message a property."""
    found = list(faults)
    gated = any(f.judged is Property.VALUES and not f.kept for f in found)
    lines = tuple(
        _line(name, points, [f for f in found if f.judged is name], gated=gated)
        for name, points in out_of.items()
    )
    return Verdict(exercise, title, lines, played)


def _line(name: Property, out_of: int, faults: list[Fault], *, gated: bool) -> Line:
    if faults:
        points = 0 if gated else min(fault.kept for fault in faults)
        return Line(name, min(points, out_of), out_of, _message(faults))
    if gated:
        text = "no fault seen, but wrong values earn nothing here"
        return Line(name, 0, out_of, text)
    return Line(name, out_of, out_of, "")


def _message(faults: list[Fault]) -> str:
    """The gravest fault's message, where it was seen, and in how many more cases."""
    shown = min(faults, key=lambda fault: fault.kept)
    others = len({fault.case for fault in faults}) - 1
    plural = "s" if others > 1 else ""
    more = f"; and in {others} more case{plural}" if others else ""
    return f"{shown.message} ({shown.case}{more})"


def _text_row(line: Line) -> str:
    sign = "ok" if line.passed else "NO"
    points = f"{line.points}/{line.out_of}"
    first = f"  {sign}  {line.judged.value:9}{points:>6}"
    indented = line.message.replace("\n", "\n" + " " * len(first) + "  ")
    return f"{first}  {indented}".rstrip()


_TABLE = "border-collapse:collapse;text-align:left"
_CAPTION = (
    "text-align:left;padding:2px 0;white-space:nowrap;"
    "color:var(--jp-ui-font-color1,inherit)"
)
_SMALL = "font-size:85%;color:var(--jp-ui-font-color2,#777)"
_CELL = (
    "padding:2px 12px 2px 4px;text-align:left;vertical-align:top;"
    "border-top:1px solid var(--jp-border-color2,#ccc)"
)


def _html_row(line: Line) -> str:
    # A sign beside the colour: a reader who cannot tell the colours apart needs it.
    colour, sign = ("#009E73", "✓") if line.passed else ("#D55E00", "✗")
    message = html.escape(line.message or "holds in every case")
    cells = [
        f'<b style="color:{colour}">{sign}</b> {line.judged.value}',
        f"{line.points} of {line.out_of}",
        f'<span style="white-space:pre-wrap">{message}</span>',
    ]
    return "<tr>" + "".join(f'<td style="{_CELL}">{c}</td>' for c in cells) + "</tr>"
