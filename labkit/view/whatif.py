"""What if the machine were another? Sliders, and the timeline that follows them.

    ┌ as it is: a still picture, which stays in the saved notebook
    │
    ├ link, latency, FLOP/s, ranks a node      sliders; arrow keys move them too
    ├ 12.3 ms, 1.4 times as long as it is
    └ the timeline at these settings           `keep` leaves it as a still picture

The panel knows no machine and no engine: it is given a function from settings to a
Program with times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, log10
from typing import Any, NamedTuple

import ipywidgets
import plotly.graph_objects as go

from labkit.errors import LabkitError, UsageError
from labkit.record.program import Program
from labkit.units import digits, format_seconds
from labkit.view import interactive
from labkit.view.bundle import Still
from labkit.view.chart import WIDTH
from labkit.view.front_end import front_end
from labkit.view.latest import Latest
from labkit.view.place import Place
from labkit.view.timeline import draw, timeline

REACH = 100  # A slider goes from a hundredth of where it starts to a hundred times it.


class Settings(NamedTuple):
    """What the sliders say, in SI units."""

    link_bytes_per_s: float
    latency_s: float
    flops_per_s: float
    ranks_per_node: int


class Unit(NamedTuple):
    """How a slider shows a setting: `value / size` with `name`."""

    label: str
    name: str
    size: float


UNITS = {
    "link_bytes_per_s": Unit("link bandwidth", "GB/s", 1e9),
    "latency_s": Unit("latency", "us", 1e-6),
    "flops_per_s": Unit("computing", "TFLOP/s", 1e12),
}


@dataclass(frozen=True)
class Question:
    """What the panel asks about.

    Attributes:
        retime: From settings to a Program with times; refuses with a LabkitError.
        start: Where the sliders start: the machine as it is.
        node_sizes: Choices of ranks a node.
        title: Stands above both pictures.
        caption: What else is to be said of a Program's times.
    """

    retime: Callable[[Settings], Program]
    start: Settings
    node_sizes: Sequence[int]
    title: str = ""
    caption: Callable[[Program], str] = lambda program: ""

    def __post_init__(self) -> None:
        """Refuse a start that no slider can be at.

        Raises:
            UsageError: A number is not above 0, or there is no choice of node sizes.
        """
        for field, value in self.start._asdict().items():
            if not isfinite(value) or value <= 0:
                raise UsageError(
                    f"a slider starts at a finite number above 0; {field} is "
                    f"{value!r}. Start from a machine's own figures"
                )
        if self.start.ranks_per_node not in self.node_sizes:
            raise UsageError(
                "the ranks a node that the panel starts with must be among the "
                f"choices; {self.start.ranks_per_node} is not in "
                f"{tuple(self.node_sizes)}. Add it"
            )


class Panel:
    """Shown under the cell that made it. The picture as it is stays in any case."""

    def __init__(self, question: Question) -> None:
        """Draw the picture as it is; nothing is shown yet.

        Raises:
            LabkitError: The Program cannot be given these times.
        """
        self.question = question
        self._base = question.retime(question.start)
        self._drawn = self._base
        self._place: Place | None = None
        self._sliders = _sliders(question)
        self._said = ipywidgets.HTML(self._compared(self._base))
        self._figure: Any = go.FigureWidget(self._picture(self._base))
        self._newest = Latest(self._follow)
        self._buttons = [
            _button("as it is", "all sliders back to the start", self.reset),
            _button("keep", "leave this picture in the notebook", self.keep),
        ]
        for slider in self._sliders.values():
            slider.observe(self._turned, "value")
        self._buttons_row: Any = ipywidgets.HBox(self._buttons)
        self.box: Any = ipywidgets.VBox(
            [*self._sliders.values(), self._buttons_row, self._said,
             self._figure]
        )  # fmt: skip

    def show(self) -> None:
        """Show the still picture, and below it what moves, where a page can show it."""
        Place().show_still(self.still(self._base, "as it is"))
        if front_end().shows_widgets:
            self._place = Place()
            self._place.show(self.box._repr_mimebundle_())

    _ipython_display_ = show

    @property
    def settings(self) -> Settings:
        """What the sliders say."""
        values = {
            field: self._sliders[field].value * unit.size
            for field, unit in UNITS.items()
        }
        # What was not moved is as it is, to the last digit.
        start = self.question.start._asdict()
        for field, value in values.items():
            if abs(value / start[field] - 1) < 1e-6:
                values[field] = start[field]
        return Settings(**values, ranks_per_node=self._sliders["ranks_per_node"].value)

    @property
    def program(self) -> Program:
        """What is drawn."""
        return self._drawn

    def reset(self) -> None:
        """All sliders back to where they started."""
        for field, unit in UNITS.items():
            self._sliders[field].value = getattr(self.question.start, field) / unit.size
        self._sliders["ranks_per_node"].value = self.question.start.ranks_per_node

    def keep(self) -> None:
        """Put a still picture in the place of what moves, and close that."""
        if self._place is not None:
            self._place.show_still(self.still(self._drawn, _in_words(self.settings)))
        self.close()

    def close(self) -> None:
        """End the sliders and the moving picture, with all that belongs to them."""
        controls = [*self._sliders.values(), *self._buttons, self._said, self.box]
        for widget in (*controls, self._buttons_row):
            for part in (getattr(widget, "style", None), widget.layout, widget):
                if isinstance(part, ipywidgets.Widget):
                    part.close()
        self._figure.close()

    def still(self, program: Program, told: str) -> Still:
        """A picture that stays, and says at which settings it was drawn."""
        title = ": ".join(filter(None, [self.question.title, told]))
        return timeline(program, title=title, caption=self.question.caption(program))

    def _turned(self, change: Any) -> None:
        self._newest.give(self.settings)

    def _follow(self, settings: Settings) -> None:
        """Draw the timeline at other settings; where they are refused, say why."""
        try:
            self._drawn = self.question.retime(settings)
        except LabkitError as error:
            self._said.value = _alert(str(error))
            return
        drawn = self._picture(self._drawn)
        with self._figure.batch_update():
            self._figure.data = ()
            self._figure.add_traces(drawn.data)
            self._figure.layout = drawn.layout
        self._said.value = self._compared(self._drawn)

    def _picture(self, program: Program) -> go.Figure:
        caption = self.question.caption(program)
        figure = interactive.figure(draw(program, self.question.title, caption))
        figure.update_layout(width=WIDTH)
        return figure

    def _compared(self, program: Program) -> str:
        took_s, base_s = program.duration_s, self._base.duration_s
        told = ""
        if program is not self._base and base_s > 0:
            ratio = digits(took_s / base_s)
            times = "" if ratio == "1" else f"{ratio} times "
            told = f", {times}as long as it is"
        return f'<div role="status">{format_seconds(took_s)}{told}</div>'


def _sliders(question: Question) -> dict[str, Any]:
    """One for each setting, by its field."""
    sliders: dict[str, Any] = {}
    for field, unit in UNITS.items():
        start = getattr(question.start, field) / unit.size
        sliders[field] = ipywidgets.FloatLogSlider(
            value=start, base=10, step=0.02, readout_format=".3g",
            min=log10(start / REACH), max=log10(start * REACH),
            description=f"{unit.label} ({unit.name})", **_WIDE,
        )  # fmt: skip
    sliders["ranks_per_node"] = ipywidgets.SelectionSlider(
        options=list(question.node_sizes), value=question.start.ranks_per_node,
        description="ranks a node", **_WIDE,
    )  # fmt: skip
    return sliders


_WIDE: dict[str, Any] = {
    "style": {"description_width": "170px"},
    "layout": {"width": "520px"},
}


def _button(label: str, tooltip: str, press: Callable[[], None]) -> Any:
    button = ipywidgets.Button(description=label, tooltip=tooltip)

    def pressed(button: Any) -> None:
        press()

    button.on_click(pressed)
    return button


def _in_words(settings: Settings) -> str:
    parts = [
        f"{unit.label} {getattr(settings, field) / unit.size:.3g} {unit.name}"
        for field, unit in UNITS.items()
    ]
    return ", ".join([*parts, f"{settings.ranks_per_node} ranks a node"])


def _alert(message: str) -> str:
    return f'<div role="alert"><b>Not drawn:</b> {escape(message)}</div>'
