"""A curve that grows while something runs, such as the loss by step.

    with Curve("training", "step", "loss") as curve:
        for step in range(1000):
            curve.add("rank 0", step, train_step())

At most two lines, of 240 points each: of a longer one every second, fourth, ... point
is kept, and the last. It is drawn five times a second; at its end a picture that stays
takes its place. Where widgets do not show there is only that picture.
"""

from __future__ import annotations

import io
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.view import canvas
from labkit.view.bundle import Still
from labkit.view.chart import BACKWARD, FORWARD, TEXT
from labkit.view.front_end import front_end
from labkit.view.place import Place

MAX_LINES = 2
MAX_POINTS = 240  # Of a line.
PERIOD_S = 0.2
SHOW_AFTER_S = 0.3
WIDTH, HEIGHT = 720, 320
COLORS = (FORWARD.color, BACKWARD.color)
_DPI = 100


@dataclass
class Line:
    """One line's points, thinned; `last` is the newest, kept or not."""

    points: list[tuple[float, float]] = field(default_factory=list)
    last: tuple[float, float] | None = None
    num_added: int = 0
    stride: int = 1

    def add(self, x: float, y: float) -> None:
        """Add a point; of too many, every second one is dropped."""
        self.last = (x, y)
        if self.num_added % self.stride == 0:
            self.points.append(self.last)
        self.num_added += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.stride *= 2

    def drawn(self) -> tuple[list[float], list[float | None]]:
        """What is drawn, with a gap where a value is no number."""
        points = list(self.points)
        if self.last is not None and points[-1] != self.last:
            points.append(self.last)
        return (
            [x for x, _ in points],
            [y if math.isfinite(y) else None for _, y in points],
        )


class Curve:
    """A picture with one or two lines, under the cell that makes it."""

    def __init__(self, title: str, x: str, y: str) -> None:
        """Show nothing yet.

        Args:
            title: Stands above the picture.
            x: What is to the right, with its unit.
            y: What is upwards, with its unit.
        """
        self.title = title
        self.x = x
        self.y = y
        self._place = Place()
        self._lines: dict[str, Line] = {}
        self._began_s: float | None = None
        self._drawn_s = 0.0
        self._widget: Any = None
        self._is_still = False
        self._has_ended = False

    def add(self, name: str, x: float, y: float) -> None:
        """Add a point to a line, which begins with its first point.

        Raises:
            UsageError: It is not a point, the third line, or the curve has ended.
        """
        self._check(name, x, y)
        self._lines.setdefault(name, Line()).add(float(x), float(y))
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        is_due = now_s - max(self._drawn_s, self._began_s + SHOW_AFTER_S) >= 0
        if is_due and now_s - self._drawn_s >= PERIOD_S and not self._is_still:
            self._draw()
            self._drawn_s = now_s

    def _check(self, name: str, x: float, y: float) -> None:
        if self._has_ended:
            raise UsageError(
                f"a curve takes points until its end; {self.title!r} has ended. Make "
                "another Curve"
            )
        if name not in self._lines and len(self._lines) >= MAX_LINES:
            raise UsageError(
                f"a curve has at most {MAX_LINES} lines; {name!r} would be one more "
                f"than {', '.join(map(repr, self._lines))}. Make a second Curve for it"
            )
        if not _is_number(x) or not _is_number(y) or not math.isfinite(x):
            raise UsageError(
                "a point of a curve is two numbers, the first finite; got "
                f"x={x!r}, y={y!r} for {name!r}. Use step, loss.item()"
            )

    def _draw(self) -> None:
        """Draw on the page; what cannot be drawn there is drawn at the end."""
        try:
            if self._widget is None:
                self._show()
            if self._widget is not None:
                self._send()
        except Exception as error:
            self._is_still = True
            sys.stderr.write(
                f"[labkit] the live curve was given up ({type(error).__name__}: "
                f"{error}); it is drawn at the end\n"
            )

    def _show(self) -> None:
        if not front_end().shows_widgets:
            self._is_still = True
            return
        look = {"title": self.title, "x": self.x, "y": self.y}
        self._widget = canvas.show("curve", look, self._place, self.title)

    def _send(self) -> None:
        """Send all of it in one message: it is small, and none depends on another."""
        values: list[float] = []
        lines: list[dict[str, Any]] = []
        for color, (name, line) in zip(COLORS, self._lines.items(), strict=False):
            x, y = line.drawn()
            values += [*x, *(math.nan if value is None else value for value in y)]
            lines.append({"name": name, "color": color, "points": len(x)})
        self._widget.send({"lines": lines}, buffers=[np.array(values).tobytes()])

    def _figure(self) -> Any:
        import plotly.graph_objects as go

        from labkit.view.interactive import plain

        figure = go.Figure(
            [
                go.Scatter(**self._trace(number, plain(name), line))
                for number, (name, line) in enumerate(self._lines.items())
            ]
        )
        figure.update_layout(
            title={"text": plain(self.title), "font": {"size": 15}},
            width=WIDTH, height=HEIGHT, margin={"l": 64, "r": 16, "t": 40, "b": 48},
            font={"color": TEXT, "size": 12}, paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)", showlegend=len(self._lines) > 1,
            xaxis={"title": plain(self.x), **_AXIS},
            yaxis={"title": plain(self.y), **_AXIS},
        )  # fmt: skip
        return figure

    def _trace(self, number: int, name: str, line: Line) -> dict[str, Any]:
        x, y = line.drawn()
        color = {"color": COLORS[number], "width": 2}
        return {"x": x, "y": y, "name": name, "mode": "lines", "line": color}

    def end(self) -> Still:
        """Put the picture that stays in its place, and return it."""
        still = Still(self._figure(), self._png(), WIDTH, HEIGHT, self._text())
        if not self._has_ended:
            self._has_ended = True
            self._place.show_still(still)
            if self._widget is not None:
                canvas.close(self._widget)
                self._widget = None
        return still

    def _text(self) -> str:
        parts = [f"{self.title}: {self.y} by {self.x}."]
        parts += [_told(name, line) for name, line in self._lines.items()]
        return " ".join(parts) if self._lines else f"{parts[0]} No points."

    def _png(self) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI)
        FigureCanvasAgg(figure)
        axes: Any = figure.add_axes((0.1, 0.17, 0.87, 0.7))
        for color, (name, line) in zip(COLORS, self._lines.items(), strict=False):
            x, y = line.drawn()
            values = [math.nan if value is None else value for value in y]
            axes.plot(x, values, color=color, lw=2, label=name)
        axes.set_title(
            self.title, color=TEXT, fontsize=11, loc="left", parse_math=False
        )
        axes.set_xlabel(self.x, color=TEXT, fontsize=9, parse_math=False)
        axes.set_ylabel(self.y, color=TEXT, fontsize=9, parse_math=False)
        axes.tick_params(colors=TEXT, labelsize=9)
        axes.set_facecolor("none")
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(TEXT)
        if len(self._lines) > 1:
            legend = axes.legend(frameon=False, fontsize=9, labelcolor=TEXT)
            for text in legend.get_texts():
                text.set_parse_math(False)
        file = io.BytesIO()
        figure.savefig(file, format="png", transparent=True)
        return file.getvalue()

    def __enter__(self) -> Curve:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()


_AXIS: dict[str, Any] = {
    "showgrid": True, "gridcolor": "rgba(128,128,128,0.2)", "zeroline": False,
}  # fmt: skip


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str | bool)


def _told(name: str, line: Line) -> str:
    """A line in words."""
    assert line.last is not None
    (first_x, first_y), (last_x, last_y) = line.points[0], line.last
    strange = sum(not math.isfinite(y) for _, y in line.points)
    more = f", {strange} of those drawn no number" if strange else ""
    return (
        f"{name}: {line.num_added} points, from {first_y:.4g} at {first_x:g} to "
        f"{last_y:.4g} at {last_x:g}{more}."
    )
