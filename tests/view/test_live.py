"""The kernel's end of a live timeline: when it shows, what it sends, how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets import widget as ipywidgets

from labkit.record.events import Event, SpanEnd, SpanStart
from labkit.record.live import WIDTH
from labkit.record.reduce import of_events
from labkit.view import canvas, live
from labkit.view.bundle import PLOTLY
from labkit.view.front_end import FrontEnd
from labkit.view.live import SHOW_AFTER_S, LiveView
from labkit.view.timeline import timeline
from tests.record.telemetry import batches, spans, training

WIDGET = "application/vnd.jupyter.widget-view+json"


class Page:
    """What would come to the page."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.messages: list[tuple[float, dict[str, Any], np.ndarray, np.ndarray]] = []
        self.now_s = 0.0

    def show(self, place: Any, data: dict[str, Any], metadata: Any = None) -> None:
        self.shown.append(data)

    def send(self, widget: Any, content: dict[str, Any], buffers: list[bytes]) -> None:
        records, opened = (np.frombuffer(b).reshape(-1, WIDTH) for b in buffers)
        self.messages.append((self.now_s, content, records, opened))
        size = sum(map(len, buffers)) + len(json.dumps(content))
        assert size < 100_000

    def play(self, view: LiveView, told: list[tuple[float, list[list[Event]]]]) -> None:
        for now_s, heard in told:
            self.now_s = now_s
            for rank, events in enumerate(heard):
                view.feed(rank, events)
            view.tick(now_s)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page that can show widgets; fails a test that leaves one in the kernel."""
    found = Page()
    monkeypatch.setattr(live, "front_end", lambda: FrontEnd(True))
    monkeypatch.setattr(live.Place, "show", lambda *args: found.show(*args))
    monkeypatch.setattr(
        canvas.widget_class("live"), "send", lambda *a, **k: found.send(*a, **k)
    )
    live._tell_once.cache_clear()
    before = len(ipywidgets._instances)
    yield found
    assert len(ipywidgets._instances) == before


def test_it_shows_the_run_and_then_the_picture_that_stays(page: Page) -> None:
    every = training(2, 20)
    view = LiveView(range(2), title="ring")
    page.play(view, batches(every, 0.02))
    assert view.is_shown
    view.flush(page.now_s)
    still = timeline(of_events(every))
    view.end(lambda: still)
    first, last = page.shown
    assert WIDGET in first
    assert first["text/plain"] == "Live timeline of 2 ranks"
    assert set(last) == {PLOTLY, "image/png", "text/plain"}
    assert last["text/plain"] == still.text
    assert not view.is_shown
    contents = [content for _, content, _, _ in page.messages]
    assert [content["seq"] for content in contents] == list(range(len(contents)))
    assert [content["ended"] for content in contents[-2:]] == [False, True]
    assert contents[-1]["steps"] == 20
    names = [name for content in contents for name, _ in content.get("names", ())]
    assert {"forward", "backward", "all_reduce", "send", "recv"} <= set(names)
    assert len(names) == len({(n, w) for c in contents for n, w in c.get("names", ())})


@pytest.mark.parametrize("seconds", [0.0, 0.01, SHOW_AFTER_S - 0.01])
def test_a_short_run_shows_nothing_and_makes_nothing(
    page: Page, seconds: float
) -> None:
    view = LiveView([0])
    for now_s in (5.0, 5.0 + seconds):
        view.feed(0, [SpanStart("forward", 0, 5.0)])
        view.tick(now_s)
    view.finish(0)
    assert view._reader is None
    view.end(
        lambda: timeline(of_events([[SpanStart("forward", 0, 5.0), SpanEnd(0, 6.0)]]))
    )
    assert (page.shown, page.messages) == ([], [])


def test_ranks_that_are_only_starting_are_not_shown(page: Page) -> None:
    view = LiveView([0])
    for now_s in (5.0, 6.0, 7.0):
        view.tick(now_s)
    view.feed(0, [SpanStart("forward", 0, 7.0)])
    view.tick(7.01)
    assert not view.is_shown
    view.tick(7.02 + SHOW_AFTER_S)
    assert view.is_shown
    view.end()


def test_a_picture_that_cannot_be_drawn_is_no_error_of_the_run(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Any:
        raise ValueError("no such font")

    view = LiveView(range(2))
    page.play(view, batches(training(2, 20), 0.02))
    view.end(fails)
    view.end(fails)
    assert page.shown[-1] == {"text/plain": live.NO_PICTURE}
    assert capsys.readouterr().err.count("no such font") == 1


def test_what_came_before_it_was_shown_is_drawn_too(page: Page) -> None:
    view = LiveView(range(2))
    page.play(view, batches(training(2, 30), 0.02))
    view.flush(page.now_s)
    starts = [r[3] for _, _, records, _ in page.messages for r in records.tolist()]
    assert min(starts) == 0.0
    view.end()
    assert page.shown[-1] == {"text/plain": live.NO_PICTURE}


def test_no_message_is_large_and_few_are_sent(page: Page) -> None:
    view = LiveView(range(8))
    page.play(view, batches(spans(8, 50_000, 8.0, start_s=100.0), 0.02))
    view.flush(page.now_s)
    view.end()
    assert sum(len(records) for _, _, records, _ in page.messages) == 50_000
    assert rate(page) <= 10


def rate(page: Page) -> float:
    """The most messages in any second."""
    times = [now_s for now_s, *_ in page.messages[:-1]]
    return max(sum(at <= t < at + 1 - 1e-6 for t in times) for at in times)


def test_nothing_is_open_and_final_at_once(page: Page) -> None:
    view = LiveView(range(4))
    page.play(view, batches(training(4, 60), 0.02))
    view.end()
    finals = {tuple(r[1:]) for _, _, records, _ in page.messages for r in records}
    assert any(len(opened) for *_, opened in page.messages)
    for _, _, records, opened in page.messages:
        now = {tuple(record[1:]) for record in records}
        assert not now & {tuple(record[1:]) for record in opened}
    assert len(finals) > 500


def test_wi_04_20_steps_a_second_of_4_ranks_are_5_messages_a_second(page: Page) -> None:
    view = LiveView(range(4))
    page.play(view, batches(spans(4, 4 * 20 * 60, 60.0, start_s=100.0), 0.02))
    assert rate(page) <= 5
    assert len(page.messages) > 4 * 59
    view.end()


def test_wi_09_fifty_runs_leave_no_widget_behind(page: Page) -> None:
    told = batches(training(2, 6), 0.05)
    before = len(ipywidgets._instances)
    for _ in range(50):
        view = LiveView(range(2))
        page.play(view, told)
        assert view.is_shown
        view.end()
        assert len(ipywidgets._instances) == before
    assert len(page.shown) == 100


def test_a_page_that_lost_messages_gets_everything_again(page: Page) -> None:
    view = LiveView(range(2))
    page.play(view, batches(training(2, 20), 0.02))
    page.messages.clear()
    view._widget._handle_custom_msg({"ask": "all"}, [])
    view.flush(page.now_s)
    [(_, content, records, _)] = page.messages
    assert len(records) == content["count"] > 100
    assert content["first"] == 0
    assert len(content["names"]) > 4
    view._widget._handle_custom_msg({"something": "else"}, [])
    view.end()


def test_a_rank_that_came_back_is_drawn_no_further(page: Page) -> None:
    view = LiveView(range(2))
    page.play(view, batches(training(2, 20), 0.02))
    view.finish(0)
    view.flush(page.now_s)
    assert page.messages[-1][3][:, 1].tolist() == [1.0]
    view.end()


@pytest.mark.parametrize("broken", ["send", "__init__"])
def test_wi_07_an_error_of_the_widget_never_reaches_the_run(
    page: Page,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the kernel's hooks have changed")

    monkeypatch.setattr(canvas.widget_class("live"), broken, fails)
    every = training(2, 20)
    for _ in range(2):
        view = LiveView(range(2))
        page.play(view, batches(every, 0.02))
        assert view.is_given_up
        view.finish(0)
        view.flush(page.now_s)
        view.end(lambda: timeline(of_events(every)))
    told = capsys.readouterr().err
    assert told.count("[labkit]") == 1
    assert "the kernel's hooks have changed" in told
    # The picture that stays is there where a live one was.
    stills = [shown for shown in page.shown if PLOTLY in shown]
    assert len(stills) == (2 if broken == "send" else 0)


def test_wi_01_wi_03_where_widgets_are_missing_the_picture_that_stays_is_shown(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "front_end", lambda: FrontEnd(False, "a hint"))
    every = training(2, 20)
    view = LiveView(range(2))
    page.play(view, batches(every, 0.02))
    assert view.is_given_up
    view.end(lambda: timeline(of_events(every)))
    view.end(lambda: timeline(of_events(every)))
    assert [set(shown) for shown in page.shown] == [{PLOTLY, "image/png", "text/plain"}]


def test_where_there_is_no_page_nothing_is_shown(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "front_end", lambda: FrontEnd(False))
    every = training(2, 20)
    view = LiveView(range(2))
    page.play(view, batches(every, 0.02))
    view.end(lambda: timeline(of_events(every)))
    assert page.shown == []


def test_the_look_is_that_of_the_still_picture() -> None:
    looks = live.look([0, 3], "ring")
    assert looks["rows"] == ("rank 0", "rank 3")
    colors = {kind["key"]: kind["color"] for kind in looks["kinds"]}
    assert colors["forward"] == "#0072B2"
    assert json.loads(json.dumps(looks))["geometry"]["row_pixels"] == 62
