"""A curve that grows: what it keeps, what it sends, and the picture that stays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets import widget as ipywidgets

from labkit.errors import UsageError
from labkit.view import canvas, curve
from labkit.view.bundle import PLOTLY
from labkit.view.curve import MAX_POINTS, PERIOD_S, SHOW_AFTER_S, Curve, Line
from labkit.view.front_end import FrontEnd

WIDGET = "application/vnd.jupyter.widget-view+json"


class Page:
    """What would come to the page; its clock is moved by hand."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.messages: list[tuple[float, dict[str, list[tuple[float, float]]]]] = []
        self.now_s = 100.0

    def show(self, place: Any, data: dict[str, Any], metadata: Any = None) -> None:
        self.shown.append(data)

    def send(self, widget: Any, content: dict[str, Any], buffers: list[bytes]) -> None:
        assert len(buffers[0]) + len(json.dumps(content)) < 100_000
        values, lines = np.frombuffer(buffers[0]).tolist(), {}
        for line in content["lines"]:
            points, values = values[: 2 * line["points"]], values[2 * line["points"] :]
            half = line["points"]
            lines[line["name"]] = [*zip(points[:half], points[half:], strict=True)]
        assert values == []
        self.messages.append((self.now_s, lines))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page that can show widgets; fails a test that leaves one in the kernel."""
    found = Page()
    monkeypatch.setattr(curve, "front_end", lambda: FrontEnd(True))
    monkeypatch.setattr(curve.Place, "show", lambda *args: found.show(*args))
    clock = SimpleNamespace(monotonic=lambda: found.now_s)
    monkeypatch.setattr(curve, "time", clock)
    kind = canvas.widget_class("curve")
    monkeypatch.setattr(kind, "send", lambda *a, **k: found.send(*a, **k))
    before = len(ipywidgets._instances)
    yield found
    assert len(ipywidgets._instances) == before


def grow(page: Page, drawn: Curve, seconds: float, per_s: int = 100) -> None:
    """Add points to a curve, so many a second."""
    for step in range(round(seconds * per_s)):
        drawn.add("loss", step, 1 / (step + 1))
        page.now_s += 1 / per_s


def test_a_line_keeps_every_second_fourth_point_and_the_last() -> None:
    line = Line()
    for step in range(100_000):
        line.add(float(step), float(-step))
    x, y = line.drawn()
    assert MAX_POINTS / 2 < len(x) <= MAX_POINTS + 1
    assert (x[0], x[-1]) == (0.0, 99_999.0)
    assert len({b - a for a, b in pairwise(x[:-1])}) == 1
    assert y == [-each for each in x]


def test_a_curve_is_drawn_while_it_grows_and_a_picture_stays(page: Page) -> None:
    with Curve("training", "step", "loss") as drawn:
        grow(page, drawn, 3.0)
        assert WIDGET in page.shown[0]
    assert len(page.shown) == 2
    still = page.shown[1]
    assert set(still) == {PLOTLY, "image/png", "text/plain"}
    assert still["text/plain"] == (
        "training: loss by step. loss: 300 points, from 1 at 0 to 0.003333 at 299."
    )
    [trace] = still[PLOTLY]["data"]
    assert (trace["name"], trace["x"][-1]) == ("loss", 299)
    times = [at for at, _ in page.messages]
    assert times[0] >= 100.0 + SHOW_AFTER_S - 1e-9
    assert min(b - a for a, b in pairwise(times)) > PERIOD_S - 1e-9
    assert len(times) == 14
    assert page.messages[-1][1]["loss"][0] == (0.0, 1.0)


def test_two_lines_have_two_colors_and_a_legend(page: Page) -> None:
    with Curve("losses", "step", "loss") as drawn:
        for step in range(5):
            drawn.add("rank 0", step, 1.0)
            drawn.add("rank 1", step, 2.0)
            page.now_s += 0.2
    figure = page.shown[-1][PLOTLY]
    first, second = figure["data"]
    assert first["line"]["color"] != second["line"]["color"]
    assert figure["layout"]["showlegend"]
    assert set(page.messages[-1][1]) == {"rank 0", "rank 1"}


def test_a_curve_over_at_once_is_shown_once(page: Page) -> None:
    with Curve("short", "step", "loss") as drawn:
        grow(page, drawn, 0.1)
    assert [PLOTLY in shown for shown in page.shown] == [True]
    assert page.messages == []


def test_no_number_is_a_gap_and_is_told(page: Page) -> None:
    with Curve("diverges", "step", "loss") as drawn:
        for step, value in enumerate((2.0, 1.0, math.nan, math.inf)):
            drawn.add("loss", step, value)
            page.now_s += 0.3
    [trace] = page.shown[-1][PLOTLY]["data"]
    assert trace["y"] == [2.0, 1.0, None, None]
    assert page.shown[-1]["text/plain"].endswith(
        "4 points, from 2 at 0 to inf at 3, 2 of those drawn no number."
    )
    assert math.isnan(page.messages[-1][1]["loss"][-1][1])


def test_no_points_are_an_empty_picture(page: Page) -> None:
    with Curve("<b>empty</b> $x$", "step", "loss"):
        pass
    assert page.shown[-1]["text/plain"].endswith("loss by step. No points.")
    title = page.shown[-1][PLOTLY]["layout"]["title"]["text"]
    assert title == "&lt;b&gt;empty&lt;/b&gt; $x$"


def test_wi_01_without_widgets_there_is_the_picture_that_stays(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "front_end", lambda: FrontEnd(False, "a hint"))
    with Curve("training", "step", "loss") as drawn:
        grow(page, drawn, 3.0)
    assert [PLOTLY in shown for shown in page.shown] == [True]


def test_wi_07_an_error_of_the_widget_never_reaches_the_loop(
    page: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("hooks have changed")

    monkeypatch.setattr(canvas.widget_class("curve"), "send", fails)
    with Curve("training", "step", "loss") as drawn:
        grow(page, drawn, 3.0)
    assert PLOTLY in page.shown[-1]
    assert capsys.readouterr().err.count("hooks have changed") == 1


def test_an_error_of_the_loop_leaves_the_curve_so_far(page: Page) -> None:
    drawn = Curve("training", "step", "loss")

    def loop() -> None:
        with drawn:
            grow(page, drawn, 1.0)
            raise ValueError("the loop's own")

    with pytest.raises(ValueError, match="the loop's own"):
        loop()
    assert "100 points" in page.shown[-1]["text/plain"]


@pytest.mark.parametrize(
    ("name", "x", "y", "message"),
    [("third", 1, 1.0, "at most 2 lines.*second Curve"),
     ("one", 1, "1.0", r"two numbers.*y='1.0'.*loss.item\(\)"),
     ("one", math.nan, 1.0, "the first finite; got x=nan"),
     ("one", None, 1.0, "got x=None")],
)  # fmt: skip
def test_what_is_no_point_is_refused(
    page: Page, name: str, x: Any, y: Any, message: str
) -> None:
    drawn = Curve("training", "step", "loss")
    drawn.add("one", 0, 1.0)
    drawn.add("two", 0, np.float32(1.0))
    with pytest.raises(UsageError, match=message):
        drawn.add(name, x, y)


def test_a_curve_that_has_ended_takes_no_point(page: Page) -> None:
    drawn = Curve("training", "step", "loss")
    drawn.add("loss", 0, 1.0)
    assert drawn.end().text == drawn.end().text
    assert len(page.shown) == 1
    with pytest.raises(UsageError, match=r"'training' has ended\. Make another Curve"):
        drawn.add("loss", 1, 1.0)
