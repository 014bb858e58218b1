"""Draws one record over another on the same axis: what was measured, and predicted.

measured    rank 0  ████████░░██
            rank 1  ████████████
predicted   rank 0  ███████░█
            rank 1  ████████ █
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from labkit.errors import UsageError
from labkit.record.measure import measure
from labkit.record.program import Comm, Header, Program
from labkit.units import digits, format_seconds
from labkit.view import timeline
from labkit.view.bundle import Still
from labkit.view.chart import MARK_AT, Chart, Dot


def compare(measured: Program, predicted: Program, *, title: str = "") -> Still:
    """Draw two records of the same ranks, the second under the first.

    Args:
        measured: A record with times.
        predicted: Another, such as what replay made of the first, or of a plan.
        title: Stands above the picture.

    Raises:
        UsageError: A record has no times, or they are of other ranks.
    """
    return timeline.still(draw(measured, predicted, title))


def draw(measured: Program, predicted: Program, title: str = "") -> Chart:
    """The picture in plain numbers."""
    ranks, others = measured.header.ranks, predicted.header.ranks
    if ranks != others or not ranks:
        raise UsageError(
            f"two records are compared rank by rank; the first is of ranks {ranks}, "
            f"the second of {others}. Compare records of the same ranks"
        )
    first, second = timeline.draw(measured), timeline.draw(predicted)
    rows = len(ranks)
    both = Chart(
        title=title,
        lines=(*_differences(measured, predicted), *_words(first, second)),
        row_labels=first.row_labels + second.row_labels,
        duration=max(first.duration, second.duration),
        bars=(), arrows=(), marks=(), calls=(), guides=(),
        headings=((0, heading(measured.header)), (rows, heading(predicted.header))),
    )  # fmt: skip
    parts = (
        _lowered(first, both.places[0]),
        _lowered(second, both.places[rows]),
    )
    joined = {
        name: tuple(piece for part in parts for piece in getattr(part, name))
        for name in ("bars", "arrows", "marks", "calls", "races")
    }
    return replace(both, **joined)


def heading(header: Header) -> str:
    """Whose times they are, in few words."""
    if header.source == "replayed":
        return f"predicted: {header.hardware}"
    slower = ", every operation recorded" if header.level == "work" else ""
    return f"measured: {header.hardware}{slower}"


def _lowered(chart: Chart, by: float) -> Chart:
    """The chart, so many rows lower; its steps begin at marks on the first row."""
    steps = [
        Dot(at, MARK_AT, label, f"{label} begins", "right")
        for at, label in chart.guides
    ]
    return replace(
        chart,
        bars=tuple(
            b._replace(top=b.top + by, bottom=b.bottom + by) for b in chart.bars
        ),
        arrows=tuple(
            a._replace(
                start=(a.start[0], a.start[1] + by), end=(a.end[0], a.end[1] + by)
            )
            for a in chart.arrows
        ),
        marks=tuple(dot._replace(y=dot.y + by) for dot in (*steps, *chart.marks)),
        calls=tuple(dot._replace(y=dot.y + by) for dot in chart.calls),
        races=tuple(dot._replace(y=dot.y + by) for dot in chart.races),
    )


def _differences(measured: Program, predicted: Program) -> Iterator[str]:
    """What is not the same, in one line: the step, and what it is made of."""
    one, other = measure(measured), measure(predicted)
    sources = (measured.header.source, predicted.header.source)
    is_usual = sources == ("measured", "replayed")
    whose = "Measured and predicted" if is_usual else "Above and below"
    name = "step time" if one.steps.by_span and other.steps.by_span else "time"
    yield (
        f"{whose}: {name} {_pair(one.step_s, other.step_s)}; of it, mean of the ranks, "
        f"exposed transfers {_pair(one.exposed_s, other.exposed_s)}, "
        f"waiting for late ranks {_pair(one.late_s, other.late_s)}."
    )
    yield from _shape(measured, predicted)


def _pair(one_s: float, other_s: float) -> str:
    shown = f"{format_seconds(one_s)} and {format_seconds(other_s)}"
    return f"{shown} (x {digits(one_s / other_s)})" if one_s and other_s else shown


def _shape(measured: Program, predicted: Program) -> Iterator[str]:
    """What makes two records hard to compare."""
    counts = [
        (measured.num_steps, predicted.num_steps, "steps"),
        (_num_transfers(measured), _num_transfers(predicted), "transfers"),
    ]
    differ = [f"{a} and {b} {noun}" for a, b, noun in counts if a != b]
    if differ:
        yield f"Not the same work: {', '.join(differ)}."


def _num_transfers(program: Program) -> int:
    return sum(isinstance(event, Comm) for event in program)


def _words(first: Chart, second: Chart) -> Iterator[str]:
    yield f"Above: {first.lines[0]}"
    yield f"Below: {second.lines[0]}"
