"""Seconds by bytes, both on scales of powers: dots were measured, lines are a model.

s |              o/
  |            /o
  | o__o__o__o'        alpha rules on the left, beta on the right
  +------------------ bytes
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.units import format_bytes, format_seconds
from labkit.view.bundle import Still
from labkit.view.chart import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    OPTIMIZER,
    TEXT,
    WIDTH,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = tuple(
    look.color for look in (FORWARD, BACKWARD, COLLECTIVE, OPTIMIZER, COMPUTE)
)
PANEL_PIXELS, MAX_COLUMNS = 290, 3
_LEGEND_PIXELS, _MARGIN, _DPI = 40, 60, 100
_GRID = "rgba(128,128,128,0.2)"


@dataclass(frozen=True)
class Series:
    """One way, at several sizes.

    Attributes:
        name: In the legend; the same name has the same colour in every panel.
        sizes: Bytes, above 0.
        measured_s: What each size took.
        model_s: What a model says that it takes.
    """

    name: str
    sizes: Sequence[float]
    measured_s: Sequence[float]
    model_s: Sequence[float]

    def __post_init__(self) -> None:
        """Refuse what cannot stand on a scale of powers.

        Raises:
            UsageError: The numbers are none or not as many, or one is not above 0.
        """
        if not 0 < len(self.sizes) == len(self.measured_s) == len(self.model_s):
            raise UsageError(
                "a series has at least one size, and for each a measured and a model "
                f"time; {self.name!r} has {len(self.sizes)} sizes, "
                f"{len(self.measured_s)} measured and {len(self.model_s)} model times"
            )
        for value in (*self.sizes, *self.measured_s, *self.model_s):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(
                    "sizes and times on a scale of powers must be finite and above 0; "
                    f"{self.name!r} has {value}. Leave that size out"
                )


def by_size(panels: Mapping[str, Sequence[Series]], *, title: str = "") -> Still:
    """Draw each series' dots and its model's line, a panel for each group of them.

    Args:
        panels: From a panel's heading to its series.
        title: Stands above the picture.

    Raises:
        UsageError: There is no series, or there are more names than colours.
    """
    names = list(
        dict.fromkeys(each.name for group in panels.values() for each in group)
    )
    if not 0 < len(names) <= len(COLORS):
        raise UsageError(
            f"a picture by size has 1 to {len(COLORS)} names of series; got {names}. "
            "Draw several pictures"
        )
    colors = dict(zip(names, COLORS, strict=False))
    height = _grid(panels)[0] * PANEL_PIXELS + _LEGEND_PIXELS
    return Still(
        _figure(panels, colors, title, height),
        _png(panels, colors, title, height),
        WIDTH,
        height,
        " ".join([f"{title}.", *_words(panels)]),
    )


def _grid(panels: Mapping[str, Sequence[Series]]) -> tuple[int, int]:
    """Rows and columns of panels."""
    columns = min(MAX_COLUMNS, len(panels))
    return -(-len(panels) // columns), columns


def _words(panels: Mapping[str, Sequence[Series]]) -> Iterator[str]:
    for heading, group in panels.items():
        for each in group:
            last = each.sizes[-1]
            name = f"{heading}, {each.name}" if heading else each.name
            yield (
                f"{name}: {format_bytes(each.sizes[0])} took "
                f"{format_seconds(each.measured_s[0])} (model "
                f"{format_seconds(each.model_s[0])}), {format_bytes(last)} "
                f"{format_seconds(each.measured_s[-1])} (model "
                f"{format_seconds(each.model_s[-1])})."
            )


def _figure(
    panels: Mapping[str, Sequence[Series]],
    colors: Mapping[str, str],
    title: str,
    height: int,
) -> go.Figure:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from labkit.view.interactive import plain

    num_rows, columns = _grid(panels)
    figure: Any = make_subplots(
        rows=num_rows, cols=columns,
        subplot_titles=[plain(heading) for heading in panels],
        horizontal_spacing=0.05, vertical_spacing=0.32 / num_rows,
        shared_yaxes=True,
    )  # fmt: skip
    told: set[str] = set()
    for place, group in enumerate(panels.values()):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        for each in group:
            look = {"legendgroup": each.name, "name": plain(each.name)}
            color = colors[each.name]
            figure.add_trace(go.Scatter(
                x=list(each.sizes), y=list(each.measured_s), mode="markers", **look,
                marker={"color": color, "size": 8}, showlegend=each.name not in told,
                customdata=[
                    [format_bytes(size), format_seconds(took), format_seconds(model)]
                    for size, took, model in zip(
                        each.sizes, each.measured_s, each.model_s, strict=True
                    )
                ],
                hovertemplate="%{customdata[0]}: measured %{customdata[1]}, "
                              "model %{customdata[2]}",
            ), **at)  # fmt: skip
            figure.add_trace(go.Scatter(
                x=list(each.sizes), y=list(each.model_s), mode="lines", **look,
                line={"color": color, "width": 2}, showlegend=False, hoverinfo="skip",
            ), **at)  # fmt: skip
            told.add(each.name)
    axis = {"type": "log", "gridcolor": _GRID, "zeroline": False, "dtick": 1,
            "tickfont": {"size": 11}}  # fmt: skip
    figure.update_xaxes(**axis, exponentformat="power", title={
        "text": "bytes", "standoff": 2, "font": {"size": 11}
    })  # fmt: skip
    figure.update_yaxes(**axis, exponentformat="power", matches="y")
    figure.update_yaxes(title={"text": "seconds", "font": {"size": 11}}, col=1)
    figure.update_annotations(font={"size": 12})
    figure.update_layout(
        title={"text": plain(title), "font": {"size": 15}}, width=WIDTH,
        height=height + 40, margin={"l": _MARGIN, "r": 12, "t": 64, "b": 84},
        font={"color": TEXT, "size": 11}, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", showlegend=True,
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0.01,
                "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def _png(
    panels: Mapping[str, Sequence[Series]],
    colors: Mapping[str, str],
    title: str,
    height: int,
) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    num_rows, columns = _grid(panels)
    figure: Any = Figure(
        figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    shown = zip(grid.flat, panels.items(), strict=False)
    for place, (axes, (heading, group)) in enumerate(shown):
        for each in group:
            color = colors[each.name]
            axes.loglog(each.sizes, each.measured_s, "o", color=color, ms=5)
            axes.loglog(each.sizes, each.model_s, color=color, lw=1.5)
        axes.set_title(heading, color=TEXT, fontsize=9, parse_math=False)
        axes.set_xlabel("bytes", color=TEXT, fontsize=8)
        if place % columns == 0:
            axes.set_ylabel("seconds", color=TEXT, fontsize=8)
        axes.tick_params(colors=TEXT, labelsize=8, which="both")
        axes.set_facecolor("none")
        axes.grid(color=TEXT, alpha=0.2)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(TEXT)
    figure.suptitle(title, color=TEXT, fontsize=11, x=0.01, ha="left", parse_math=False)
    entries = [
        Line2D([], [], color=color, marker="o", ms=5, lw=1.5, label=name)
        for name, color in colors.items()
    ]
    legend = figure.legend(
        handles=entries, loc="outside lower left", ncols=len(entries), frameon=False,
        fontsize=8, labelcolor=TEXT,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", transparent=True)
    return file.getvalue()
