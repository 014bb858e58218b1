"""Draws a timeline as a PNG with matplotlib: no browser, no window, no global state."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from labkit.view.chart import (
    BAND,
    BAND_ROW,
    RACE,
    TEXT,
    WIDTH,
    Arrow,
    Bar,
    Chart,
    Dot,
    Look,
    folded,
)

# Pixels of the file in a CSS pixel, each way. More would be sharper, but JupyterLab's
# plotly renderer shows the file at its natural size, whatever width is asked for.
SHARPNESS = 1
_DPI = 100
_LINE, _TITLE, _LEGEND, _AXIS, _LEFT, _RIGHT = 17, 24, 34, 46, 58, 14
_MAX_ARROWHEADS = 300
_LONG_LEGEND = 6  # More entries need smaller letters.


def render(chart: Chart) -> tuple[bytes, tuple[int, int]]:
    """The chart as PNG, and the width and height at which it is to be shown."""
    lines = folded(chart.lines)
    below = _AXIS + _LINE * len(lines)
    above = _LEGEND + (_TITLE if chart.title else 0)
    data = round(chart.num_rows * chart.row_pixels)
    height = above + data + below
    figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI * SHARPNESS)
    FigureCanvasAgg(figure)
    width = WIDTH - _LEFT - _RIGHT
    axes = figure.add_axes(
        (_LEFT / WIDTH, below / height, width / WIDTH, data / height)
    )
    _draw_axes(axes, chart)
    _draw_data(axes, chart)
    _draw_texts(figure, chart.title, lines, height)
    _draw_legend(figure, chart, 1 - (_TITLE if chart.title else 0) / height)
    file = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes: no news for a learner.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="png", transparent=True)
    return file.getvalue(), (WIDTH, height)


def _draw_axes(axes: Any, chart: Chart) -> None:
    scale, unit = chart.unit
    axes.set_xlim(0, max(chart.duration, 1e-9) * scale * 1.01)
    axes.set_ylim(chart.num_rows - 0.5, -0.6)
    axes.set_yticks(chart.places, labels=chart.row_labels)
    axes.set_xlabel(f"time ({unit})", color=TEXT, fontsize=9)
    axes.tick_params(axis="both", colors=TEXT, labelsize=9)
    axes.tick_params(axis="y", length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(TEXT)
    for row in chart.places:
        low, high = row + BAND_ROW[0], row + BAND_ROW[1]
        axes.axhspan(low, high, facecolor=BAND, edgecolor="none", zorder=0)


def _draw_headings(axes: Any, chart: Chart) -> None:
    for row, text in chart.headings:
        axes.annotate(
            text, (0, chart.places[row] + BAND_ROW[0]), (0, 6), color=TEXT, fontsize=9,
            textcoords="offset points", ha="left", va="bottom", weight="bold",
            parse_math=False,
        )  # fmt: skip


def _draw_data(axes: Any, chart: Chart) -> None:
    scale, _ = chart.unit
    for at, label in chart.guides:
        axes.axvline(at * scale, color=TEXT, lw=0.7, ls=":", alpha=0.7, zorder=1)
        axes.text(
            at * scale, -0.5, f" {label}", color=TEXT, fontsize=7, parse_math=False,
            va="center", ha="left",
        )  # fmt: skip
    for look in chart.looks:
        _draw_bars(axes, [bar for bar in chart.bars if bar.look == look], look, scale)
    _draw_arrows(axes, chart.arrows, scale)
    _draw_dots(axes, chart.marks, scale)
    _draw_dots(axes, chart.calls, scale)
    _draw_headings(axes, chart)
    x, y = [dot.x * scale for dot in chart.races], [dot.y for dot in chart.races]
    axes.scatter(x, y, marker="X", s=60, color=RACE, ec="#000000", lw=0.8, zorder=6)


def _draw_bars(axes: Any, bars: Sequence[Bar], look: Look, scale: float) -> None:
    corners = [
        [(bar.start * scale, bar.top), (bar.end * scale, bar.top),
         (bar.end * scale, bar.bottom), (bar.start * scale, bar.bottom)]
        for bar in bars
    ]  # fmt: skip
    drawn = PolyCollection(corners, zorder=3, **_style(look))
    axes.add_collection(drawn, autolim=False)


def _style(look: Look) -> dict[str, Any]:
    """A bar thinner than a pixel still shows its outline."""
    if look.hatched:
        fill = (0.5, 0.5, 0.5, 0.12)
        return {"fc": fill, "ec": look.color, "hatch": "//////", "lw": 0.5}
    return {"fc": look.color, "ec": look.color, "lw": 0.5}


def _draw_arrows(axes: Any, arrows: Sequence[Arrow], scale: float) -> None:
    for arrow in arrows[:_MAX_ARROWHEADS]:
        axes.annotate(
            "", (arrow.end[0] * scale, arrow.end[1]),
            (arrow.start[0] * scale, arrow.start[1]), zorder=4,
            arrowprops={"arrowstyle": "-|>", "color": TEXT, "lw": 1.1,
                        "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11},
        )  # fmt: skip
    for arrow in arrows[_MAX_ARROWHEADS:]:
        x = [arrow.start[0] * scale, arrow.end[0] * scale]
        axes.plot(x, [arrow.start[1], arrow.end[1]], color=TEXT, lw=0.6, zorder=4)


def _draw_dots(axes: Any, dots: Sequence[Dot], scale: float) -> None:
    x = [dot.x * scale for dot in dots]
    y = [dot.y for dot in dots]
    axes.scatter(x, y, marker="v", s=22, color=TEXT, zorder=5, clip_on=False)
    for dot in dots:
        if dot.side != "none":
            shift, ha = (5, "left") if dot.side == "right" else (-5, "right")
            axes.annotate(
                dot.label, (dot.x * scale, dot.y), (shift, 0), ha=ha, va="center",
                textcoords="offset points", color=TEXT, fontsize=7, parse_math=False,
            )  # fmt: skip


def _draw_texts(figure: Any, title: str, lines: Sequence[str], height: int) -> None:
    left = 8 / WIDTH
    if title:
        figure.text(
            left, 1 - 6 / height, title, color=TEXT, fontsize=11, va="top",
            weight="bold", parse_math=False,
        )  # fmt: skip
    for number, line in enumerate(reversed(lines)):
        y = (6 + number * _LINE) / height
        figure.text(left, y, line, color=TEXT, fontsize=9, parse_math=False)


def _draw_legend(figure: Any, chart: Chart, top: float) -> None:
    handles: list[Patch | Line2D] = [
        Rectangle((0, 0), 1, 1, label=look.label, **_style(look))
        for look in chart.looks
        if not chart.is_sliver(look)
    ]
    if chart.races:
        handles.append(
            Line2D(
                [], [], ls="", marker="X", ms=8, mfc=RACE, mec="#000000", label="race"
            )
        )
    is_long = len(handles) > _LONG_LEGEND
    if handles:
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.0, top),
            ncols=len(handles), frameon=False, fontsize=7.5 if is_long else 9,
            labelcolor=TEXT, handlelength=1.3 if is_long else 1.6,
            columnspacing=0.9 if is_long else 1.4,
        )  # fmt: skip
