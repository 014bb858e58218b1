"""Draws memory with plotly: bars above, one rank's curve below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from labkit.view.chart import TEXT, folded
from labkit.view.interactive import plain
from labkit.view.memory_look import (
    AXIS_PIXELS,
    CURVE_PIXELS,
    LINE_PIXELS,
    LOOKS,
    TOP_PIXELS,
    bar_pixels,
)

if TYPE_CHECKING:
    from labkit.view.memory import Area, MemoryChart

_GRID: dict[str, Any] = {
    "gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "rangemode": "tozero",
}  # fmt: skip


def figure(chart: MemoryChart) -> go.Figure:
    """The chart as a figure that fills the width of its cell."""
    bars = max(1, len(chart.bar_labels)) * bar_pixels(len(chart.bar_labels))
    below = AXIS_PIXELS + LINE_PIXELS * len(folded(chart.lines)) + 10
    data = bars + AXIS_PIXELS + CURVE_PIXELS
    traces = [_bar(chart, area) for area in chart.areas]
    traces += [_curve(chart, area) for area in chart.areas if chart.curve_at]
    drawn = go.Figure(traces)
    lines, names = _guides(chart)
    drawn.update_layout(
        title={
            "text": plain(chart.title), "font": {"size": 15},
            "x": 0, "xref": "paper", "xanchor": "left",
            "y": 1, "yanchor": "top", "pad": {"t": 6},
        },
        height=TOP_PIXELS + data + below,
        margin={"l": 64, "r": 16, "t": TOP_PIXELS, "b": below},
        font={"color": TEXT, "size": 12},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        barmode="stack", bargap=0.25, hovermode="closest",
        legend={
            "orientation": "h", "x": 0, "y": 1, "yanchor": "bottom",
            "traceorder": "normal",
        },
        annotations=[*names, *_texts(chart)],
        shapes=lines,
    )  # fmt: skip
    _set_axes(drawn, chart, CURVE_PIXELS / data, 1 - bars / data)
    return drawn


def _set_axes(
    drawn: go.Figure, chart: MemoryChart, curve_top: float, bars_bottom: float
) -> None:
    totals = [
        sum(values) for values in zip(*(a.bars for a in chart.areas), strict=True)
    ]
    room = 1.35 * max(totals, default=0.0) or 1.0
    drawn.update_layout(
        xaxis={**_GRID, "anchor": "y", "range": [0, room],
               "title": {"text": f"at its peak ({chart.unit})", "standoff": 4}},
        yaxis={"domain": [bars_bottom, 1], "anchor": "x", "autorange": "reversed",
               "fixedrange": True},
        xaxis2={**_GRID, "anchor": "y2",
                "title": {"text": chart.curve_axis, "standoff": 4}},
        yaxis2={**_GRID, "domain": [0, curve_top], "anchor": "x2",
                "title": {"text": f"{chart.curve_label} ({chart.unit})"}},
    )  # fmt: skip
    if chart.peak_at is not None:
        drawn.add_shape(
            type="line", xref="x2", yref="y2 domain", x0=chart.peak_at,
            x1=chart.peak_at, y0=0, y1=1, line={"color": TEXT, "dash": "dot"},
        )  # fmt: skip


def _guides(chart: MemoryChart) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line where each step begins, and its name above the curve."""
    where = {"xref": "x2", "yref": "y2 domain"}
    lines = [
        {"type": "line", **where, "x0": at, "x1": at, "y0": 0, "y1": 1,
         "layer": "below", "opacity": 0.5, "line": {"color": TEXT, "width": 1}}
        for at, _ in chart.guides
    ]  # fmt: skip
    names = [
        {"x": at, "y": 1, **where, "text": label, "showarrow": False,
         "xanchor": "left", "yanchor": "bottom", "font": {"size": 10, "color": TEXT}}
        for at, label in chart.guides
        if label
    ]  # fmt: skip
    return lines, names


def _bar(chart: MemoryChart, area: Area) -> go.Bar:
    look = LOOKS[area.kind]
    return go.Bar(
        name=area.kind, legendgroup=area.kind, orientation="h",
        x=list(area.bars), y=list(chart.bar_labels),
        marker={
            "color": look.color,
            "pattern": {"shape": look.pattern, "size": 6, "solidity": 0.25,
                        "fgcolor": "#ffffff"},
        },
        hovertemplate=f"{area.kind}: %{{x:.3g}} {chart.unit}, %{{y}}<extra></extra>",
    )  # fmt: skip


def _curve(chart: MemoryChart, area: Area) -> go.Scatter:
    look = LOOKS[area.kind]
    return go.Scatter(
        name=area.kind, legendgroup=area.kind, showlegend=False,
        x=list(chart.curve_at), y=[*area.curve, area.curve[-1]],
        xaxis="x2", yaxis="y2", stackgroup="held", mode="lines",
        line={"shape": "hv", "width": 0.5, "color": look.color},
        fillcolor=look.color,
        fillpattern={"shape": look.pattern, "size": 6, "solidity": 0.25,
                     "fgcolor": "#ffffff", "bgcolor": look.color},
        hovertemplate=f"{area.kind}: %{{y:.3g}} {chart.unit}<extra></extra>",
    )  # fmt: skip


def _texts(chart: MemoryChart) -> list[dict[str, Any]]:
    """What stands at the end of each bar, and under the picture."""
    notes = [
        {
            "x": sum(area.bars[place] for area in chart.areas), "y": label,
            "text": f" {plain(note)}", "showarrow": False, "xanchor": "left",
            "font": {"size": 11, "color": TEXT},
        }
        for place, (label, note) in enumerate(
            zip(chart.bar_labels, chart.bar_notes, strict=True)
        )
        if bar_pixels(len(chart.bar_labels)) >= LINE_PIXELS - 4
    ]  # fmt: skip
    lines = [
        {
            "xref": "paper", "yref": "paper", "x": 0, "y": 0, "text": plain(line),
            "showarrow": False, "xanchor": "left", "yanchor": "top", "align": "left",
            "yshift": -AXIS_PIXELS - number * LINE_PIXELS,
        }
        for number, line in enumerate(folded(chart.lines))
    ]  # fmt: skip
    return notes + lines
