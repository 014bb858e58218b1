"""Draws memory as a PNG with matplotlib: bars above, one rank's curve below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.view.chart import TEXT, WIDTH, folded
from labkit.view.memory_look import (
    AXIS_PIXELS,
    CURVE_PIXELS,
    LINE_PIXELS,
    LOOKS,
    bar_pixels,
)

if TYPE_CHECKING:
    from labkit.view.memory import MemoryChart

_DPI = 100
_TITLE, _LEGEND, _LEFT, _RIGHT = 24, 34, 64, 14


def render(chart: MemoryChart) -> tuple[bytes, tuple[int, int]]:
    """The chart as PNG, and the width and height at which it is to be shown."""
    lines = folded(chart.lines)
    bars = max(1, len(chart.bar_labels)) * bar_pixels(len(chart.bar_labels))
    below = AXIS_PIXELS + LINE_PIXELS * len(lines)
    above = _LEGEND + (_TITLE if chart.title else 0)
    height = above + bars + AXIS_PIXELS + CURVE_PIXELS + below
    figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI)
    FigureCanvasAgg(figure)
    span = (_LEFT / WIDTH, (WIDTH - _LEFT - _RIGHT) / WIDTH)
    top = figure.add_axes(
        (span[0], (height - above - bars) / height, span[1], bars / height)
    )
    bottom = figure.add_axes((span[0], below / height, span[1], CURVE_PIXELS / height))
    _draw_bars(top, chart)
    _draw_curve(bottom, chart)
    _draw_texts(figure, chart, lines, height)
    file = io.BytesIO()
    figure.savefig(file, format="png", transparent=True)
    return file.getvalue(), (WIDTH, height)


def _style(axes: Any, x_label: str, y_label: str = "") -> None:
    axes.set_xlabel(x_label, color=TEXT, fontsize=9)
    axes.set_ylabel(y_label, color=TEXT, fontsize=9)
    axes.tick_params(axis="both", colors=TEXT, labelsize=9)
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("bottom", "left"))
        spine.set_color(TEXT)


def _draw_bars(axes: Any, chart: MemoryChart) -> None:
    places = range(len(chart.bar_labels))
    reached = [0.0] * len(chart.bar_labels)
    for area in chart.areas:
        look = LOOKS[area.kind]
        axes.barh(
            places, area.bars, 0.75, left=reached, color=look.color,
            hatch=look.hatch, edgecolor="white", lw=0, label=area.kind,
        )  # fmt: skip
        reached = [a + b for a, b in zip(reached, area.bars, strict=True)]
    # Room at the right for what stands at the end of a bar.
    axes.set_xlim(0, 1.35 * max(reached, default=0.0) or 1.0)
    axes.set_ylim(len(chart.bar_labels) - 0.5, -0.5)
    axes.set_yticks(places, labels=chart.bar_labels)
    _style(axes, f"at its peak ({chart.unit})")
    if bar_pixels(len(chart.bar_labels)) < LINE_PIXELS - 4:
        axes.set_yticks(places[:: -(-len(places) // 16)])
        return
    for place, (end, note) in enumerate(zip(reached, chart.bar_notes, strict=True)):
        axes.text(
            end, place, f" {note}", color=TEXT, fontsize=8, va="center",
            parse_math=False,
        )  # fmt: skip


def _draw_curve(axes: Any, chart: MemoryChart) -> None:
    _style(axes, chart.curve_axis, f"{chart.curve_label} ({chart.unit})")
    if not chart.curve_at:
        return
    low = [0.0] * len(chart.curve_at)
    for area in chart.areas:
        look = LOOKS[area.kind]
        values = [*area.curve, area.curve[-1]]
        high = [a + b for a, b in zip(low, values, strict=True)]
        axes.fill_between(
            chart.curve_at, low, high, step="post", facecolor=look.color,
            hatch=look.hatch, edgecolor="white", lw=0,
        )  # fmt: skip
        low = high
    if chart.peak_at is not None:
        axes.axvline(chart.peak_at, color=TEXT, ls=":", lw=1.2)
    for at, label in chart.guides:
        axes.axvline(at, color=TEXT, lw=0.6, ls="-", alpha=0.5, zorder=0)
        axes.text(
            at, 0.99, f" {label}", color=TEXT, fontsize=7, va="top", ha="left",
            transform=axes.get_xaxis_transform(), parse_math=False,
        )  # fmt: skip
    axes.set_xlim(0, 1.01 * chart.curve_at[-1] or 1.0)
    axes.set_ylim(0, 1.15 * max(low) or 1.0)


def _draw_texts(
    figure: Any, chart: MemoryChart, lines: Sequence[str], height: int
) -> None:
    left, top = 8 / WIDTH, 1.0
    if chart.title:
        figure.text(
            left, 1 - 6 / height, chart.title, color=TEXT, fontsize=11, va="top",
            weight="bold", parse_math=False,
        )  # fmt: skip
        top -= _TITLE / height
    for number, line in enumerate(reversed(lines)):
        y = (6 + number * LINE_PIXELS) / height
        figure.text(left, y, line, color=TEXT, fontsize=9, parse_math=False)
    if chart.areas:
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="upper left",
            bbox_to_anchor=(0.0, top), ncols=len(chart.areas), frameon=False,
            fontsize=9, labelcolor=TEXT, handlelength=2.2, columnspacing=1.4,
        )  # fmt: skip
