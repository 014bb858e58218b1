"""Draws a timeline with plotly: zoom, hover, no server and no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.view.chart import (
    BAND,
    BAND_ROW,
    RACE,
    TEXT,
    Arrow,
    Bar,
    Chart,
    Dot,
    Look,
    folded,
)

LINE_PIXELS = 18
_TITLE_PIXELS, _LEGEND_PIXELS = 42, 22
_IN_A_LINE = 4  # Entries of the legend beside one another, in a narrow cell.
_AXIS_PIXELS = 46
_POSITION = {"left": "middle left", "right": "middle right", "none": "middle right"}


def figure(chart: Chart) -> go.Figure:
    """The chart as a figure that fills the width of its cell."""
    scale, unit = chart.unit
    traces: list[Any] = [_bars(chart, look, scale) for look in chart.looks]
    if chart.arrows:
        traces.append(_arrows(chart.arrows, scale))
    if chart.marks:
        traces.append(_dots(chart.marks, scale, "mark"))
    if chart.calls:
        traces.append(_dots(chart.calls, scale, "call, end not recorded"))
    if chart.races:
        traces.append(_races(chart.races, scale))
    drawn = go.Figure(traces)
    drawn.update_layout(**_layout(chart))
    drawn.update_xaxes(
        title={"text": f"time ({unit})", "font": {"size": 12}, "standoff": 4},
        range=[0, max(chart.duration, 1e-9) * scale * 1.01],
        showgrid=False, zeroline=False, ticks="outside", tickcolor=TEXT,
    )  # fmt: skip
    drawn.update_yaxes(
        tickvals=list(chart.places), ticktext=list(chart.row_labels),
        range=[chart.num_rows - 0.5, -0.55], showgrid=False, zeroline=False,
        fixedrange=True,
    )  # fmt: skip
    return drawn


def _layout(chart: Chart) -> dict[str, Any]:
    below = _AXIS_PIXELS + LINE_PIXELS * len(folded(chart.lines)) + 10
    above = _TITLE_PIXELS + _LEGEND_PIXELS * -(-_num_entries(chart) // _IN_A_LINE)
    return {
        "title": {
            "text": plain(chart.title), "font": {"size": 15},
            "x": 0, "xref": "paper", "xanchor": "left",
            "y": 1, "yanchor": "top", "pad": {"t": 6},
        },
        "height": round(above + chart.num_rows * chart.row_pixels + below),
        "margin": {"l": 60, "r": 16, "t": above, "b": below},
        "font": {"color": TEXT, "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "shapes": [*_bands(chart), *_guides(chart)],
        "annotations": [*_guide_labels(chart), *_headings(chart), *_texts(chart)],
    }  # fmt: skip


def _num_entries(chart: Chart) -> int:
    """How many entries the legend has, at least 1."""
    looks = sum(not chart.is_sliver(look) for look in chart.looks)
    others = (chart.arrows, chart.marks, chart.calls, chart.races)
    return max(1, looks + sum(map(bool, others)))


def plain(text: str) -> str:
    """Text that plotly shows as it is, tags and all."""
    return html.escape(text, quote=False)


def _bands(chart: Chart) -> list[dict[str, Any]]:
    """The idle band behind each rank: where nothing lies on it, nothing was done."""
    red, green, blue, alpha = BAND
    fill = f"rgba({red * 255:.0f},{green * 255:.0f},{blue * 255:.0f},{alpha})"
    return [
        {
            "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below",
            "y0": row + BAND_ROW[0], "y1": row + BAND_ROW[1],
            "fillcolor": fill, "line": {"width": 0},
        }
        for row in chart.places
    ]  # fmt: skip


def _guides(chart: Chart) -> list[dict[str, Any]]:
    scale, _ = chart.unit
    return [
        {
            "type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
            "x0": at * scale, "x1": at * scale,
            "line": {"color": TEXT, "width": 1, "dash": "dot"}, "opacity": 0.6,
        }
        for at, _ in chart.guides
    ]  # fmt: skip


def _guide_labels(chart: Chart) -> list[dict[str, Any]]:
    scale, _ = chart.unit
    return [
        {
            "x": at * scale, "y": -0.55, "text": label, "showarrow": False,
            "xanchor": "left", "yanchor": "top", "font": {"size": 10, "color": TEXT},
        }
        for at, label in chart.guides
        if label
    ]  # fmt: skip


def _headings(chart: Chart) -> list[dict[str, Any]]:
    return [
        {
            "xref": "paper", "x": 0, "y": chart.places[row] + BAND_ROW[0],
            "text": f"<b>{plain(text)}</b>", "showarrow": False, "xanchor": "left",
            "yanchor": "bottom", "yshift": 6, "font": {"size": 12, "color": TEXT},
        }
        for row, text in chart.headings
    ]  # fmt: skip


def _texts(chart: Chart) -> list[dict[str, Any]]:
    return [
        {
            "xref": "paper", "yref": "paper", "x": 0, "y": 0, "text": plain(line),
            "showarrow": False, "xanchor": "left", "yanchor": "top", "align": "left",
            "yshift": -_AXIS_PIXELS - number * LINE_PIXELS,
        }
        for number, line in enumerate(folded(chart.lines))
    ]  # fmt: skip


def _bars(chart: Chart, look: Look, scale: float) -> go.Bar:
    bars: Sequence[Bar] = [bar for bar in chart.bars if bar.look == look]
    pattern = {"shape": "/", "size": 5, "solidity": 0.25, "fgcolor": look.color}
    fill = "rgba(128,128,128,0.12)" if look.hatched else look.color
    return go.Bar(
        name=look.label,
        showlegend=not chart.is_sliver(look),
        orientation="h",
        base=[bar.start * scale for bar in bars],
        x=[(bar.end - bar.start) * scale for bar in bars],
        y=[(bar.top + bar.bottom) / 2 for bar in bars],
        width=[bar.bottom - bar.top for bar in bars],
        marker={
            "color": fill,
            # A bar thinner than a pixel still shows its outline.
            "line": {"color": look.color, "width": 0.8},
            "pattern": pattern if look.hatched else None,
        },
        hovertext=[bar.hover for bar in bars],
        hoverinfo="text",
    )


def _arrows(arrows: Sequence[Arrow], scale: float) -> go.Scatter:
    x: list[float | None] = []
    y: list[float | None] = []
    for arrow in arrows:
        x += [arrow.start[0] * scale, arrow.end[0] * scale, None]
        y += [arrow.start[1], arrow.end[1], None]
    return go.Scatter(
        name="message", x=x, y=y, mode="lines+markers",
        line={"color": TEXT, "width": 1.2},
        marker={
            "symbol": ["circle", "arrow", "circle"] * len(arrows),
            "size": [4, 9, 0] * len(arrows), "angleref": "previous", "color": TEXT,
        },
        hovertext=[text for arrow in arrows for text in (arrow.hover, arrow.hover, "")],
        hoverinfo="text",
    )  # fmt: skip


def _dots(dots: Sequence[Dot], scale: float, name: str) -> go.Scatter:
    return go.Scatter(
        name=name, x=[dot.x * scale for dot in dots], y=[dot.y for dot in dots],
        mode="markers+text", cliponaxis=False,
        text=[plain(dot.label) if dot.side != "none" else "" for dot in dots],
        textposition=[_POSITION[dot.side] for dot in dots],
        textfont={"size": 10, "color": TEXT},
        marker={"symbol": "triangle-down", "size": 9, "color": TEXT},
        hovertext=[dot.hover for dot in dots], hoverinfo="text",
    )  # fmt: skip


def _races(dots: Sequence[Dot], scale: float) -> go.Scatter:
    return go.Scatter(
        name="race", x=[dot.x * scale for dot in dots], y=[dot.y for dot in dots],
        mode="markers", cliponaxis=False,
        marker={"symbol": "x", "size": 11, "color": RACE,
                "line": {"color": "#000000", "width": 1}},
        hovertext=[dot.hover for dot in dots], hoverinfo="text",
    )  # fmt: skip
