"""The live timeline: drawn under the cell while ranks run, replaced when they are done.

    feed ──> LiveReader ──> every 100 or 200 ms one message ──> canvas in the page
                                                        end ──> the picture that stays

A run that is over before anybody could look shows nothing and costs nothing. Nothing
here ever raises into a run: what goes wrong is told once, and the live picture is left
out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from typing import Any, Concatenate, ParamSpec

from labkit.record.events import Event
from labkit.record.live import WIDTH, LiveReader
from labkit.record.scene import KINDS, LiveKind
from labkit.view import canvas, chart
from labkit.view.bundle import Still
from labkit.view.chart import Look
from labkit.view.front_end import front_end
from labkit.view.place import Place

SHOW_AFTER_S = 0.3
# Many news travel at once in small messages; few can wait for each other.
BUSY_PERIOD_S, CALM_PERIOD_S, BUSY_EVENTS = 0.1, 0.2, 600
MAX_MESSAGE_BYTES = 95_000
MAX_OPEN = 256
MAX_NAME, MAX_NEW_NAMES = 60, 64
RECORD_BYTES = 8 * WIDTH
NO_PICTURE = "There is no picture of this run."
_LOOKS: dict[LiveKind, tuple[str, Look, str]] = {
    "compute": ("compute", chart.COMPUTE, ""),
    "forward": ("compute", chart.FORWARD, ""),
    "backward": ("compute", chart.BACKWARD, ""),
    "optimizer": ("compute", chart.OPTIMIZER, ""),
    "collective": ("comm", chart.COLLECTIVE, "transfer"),
    "p2p": ("comm", chart.P2P, "transfer"),
    "waiting": ("comm", chart.WAITING, "waiting"),
    "issued": ("comm", Look("issued, nobody waits yet", chart.TEXT), "issued"),
    "mark": ("point", Look("", ""), ""),
    "race": ("point", Look("race", chart.RACE), ""),
    "step": ("step", Look("", ""), ""),
}

P = ParamSpec("P")


def _harmless(
    method: Callable[Concatenate[LiveView, P], None],
) -> Callable[Concatenate[LiveView, P], None]:
    """A method that gives the live picture up instead of raising."""

    @wraps(method)
    def tried(self: LiveView, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.is_given_up = True
            _tell_once(f"{type(error).__name__}: {error}")

    return tried


class LiveView:
    """The live picture of one run.

    Make it in the thread and the cell that start the run; then feed and tick it from
    any one thread.

    Attributes:
        is_shown: Whether it is on the page.
        is_given_up: Whether it never will be: no front end for it, or an error.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        title: str = "",
        place: Place | None = None,
        groups: Mapping[str, tuple[int, ...]] | None = None,
        offsets_s: Mapping[int, float] | None = None,
    ) -> None:
        """Show nothing yet.

        Args:
            ranks: Whose events will come.
            title: Stands above the picture.
            place: Where it will be; by default under the cell that runs now.
            groups: Groups made in runs before, with their ranks.
            offsets_s: What to subtract from a rank's clock to have the caller's.
        """
        self.is_shown = False
        self.is_given_up = False
        self._ranks = tuple(ranks)
        self._title = title
        self._place = place or Place()
        self._new_reader = partial(
            LiveReader, ranks, groups=groups, offsets_s=offsets_s
        )
        self._reader: LiveReader | None = None
        # What came before the picture is shown; None: the rank has come back.
        self._waiting: list[tuple[int, Sequence[Event] | None]] = []
        self._began_s: float | None = None
        self._widget: Any = None
        self._sent_s = 0.0
        self._news = 0
        self._seq = 0
        self._num_names = 0
        self._is_flushed = False
        self._owes_still = False

    @_harmless
    def feed(self, rank: int, events: Sequence[Event]) -> None:
        """Take what a rank told, in its order."""
        if not self.is_given_up:
            self._news += len(events)
            self._hand_on(rank, events)

    @_harmless
    def finish(self, rank: int) -> None:
        """The rank has come back: it computes no longer."""
        if not self.is_given_up:
            self._hand_on(rank, None)

    def _hand_on(self, rank: int, events: Sequence[Event] | None) -> None:
        if self._reader is None:
            self._waiting.append((rank, events))
        elif events is None:
            self._reader.finish(rank)
        else:
            self._reader.feed(rank, events)

    @_harmless
    def tick(self, now_s: float) -> None:
        """Show, or send, what there is, if it is time to. Costs next to nothing if not.

        Args:
            now_s: The time on the caller's monotonic clock, on which events are.
        """
        if self.is_given_up:
            return
        if self._began_s is None:
            if not self._news:
                return  # Ranks that are only starting are nothing to look at.
            self._began_s = now_s
        if not self.is_shown:
            if now_s - self._began_s >= SHOW_AFTER_S:
                self._show()
            return
        since_s = now_s - self._sent_s
        if since_s >= CALM_PERIOD_S or (
            since_s >= BUSY_PERIOD_S and self._news >= BUSY_EVENTS
        ):
            self._send(now_s)

    def end(self, draw: Callable[[], Still] | None = None) -> None:
        """Put the picture that stays where the live one was; if none was, do nothing.

        Where there is no picture, or it cannot be drawn, a line of text says so. Of
        several calls the first counts.

        Args:
            draw: Draws the picture; not called if there is no use for it.
        """
        if self.is_shown:
            self.flush(time.monotonic())
        if self.is_shown or self._owes_still:
            self._replace(draw)
        if self.is_shown:
            self._close()
        self.is_given_up, self.is_shown, self._owes_still = True, False, False
        self._waiting.clear()
        self._reader = None

    @_harmless
    def _replace(self, draw: Callable[[], Still] | None) -> None:
        still = _drawn(draw)
        if still is not None:
            self._place.show_still(still)
        else:
            self._place.show({"text/plain": NO_PICTURE})

    @_harmless
    def _close(self) -> None:
        widget, self._widget = self._widget, None
        canvas.close(widget)

    @_harmless
    def flush(self, now_s: float) -> None:
        """Send all that there is now, for the last time."""
        if self.is_shown and not self.is_given_up and not self._is_flushed:
            self._is_flushed = True
            self._send(now_s, ended=True)

    def _show(self) -> None:
        """Make the widget, and put it on the page."""
        found = front_end()
        if not found.shows_widgets:
            self.is_given_up = True
            # A page that should have shown it; a converter asks for nothing.
            self._owes_still = bool(found.hint)
            self._waiting.clear()
            return
        self._reader = self._new_reader()
        for rank, events in self._waiting:
            self._hand_on(rank, events)
        self._waiting.clear()
        text = f"Live timeline of {len(self._ranks)} ranks"
        looks = look(self._ranks, self._title)
        self._widget = canvas.show("live", looks, self._place, text)
        self._widget.on_msg(self._take)
        self.is_shown = True

    def _send(self, now_s: float, *, ended: bool = False) -> None:
        """Send one message: what became final, and all that is open."""
        reader = self._reader
        zero_s = None if reader is None else reader.zero_s
        if reader is None or zero_s is None:
            return
        content: dict[str, Any] = {
            "seq": self._seq, "now": now_s - zero_s, "wall": time.time(),
            "steps": reader.num_steps, "ended": ended,
        }  # fmt: skip
        names = reader.names[self._num_names : self._num_names + MAX_NEW_NAMES]
        if names:
            short = [[part[:MAX_NAME] for part in name] for name in names]
            content |= {"names": short, "first": self._num_names}
            self._num_names += len(names)
        used = len(json.dumps(content)) + 100
        limit = (MAX_MESSAGE_BYTES - used) // RECORD_BYTES - MAX_OPEN
        records = reader.take(now_s - zero_s, limit)
        # After it: what was taken is open no longer.
        opened = reader.open()[:MAX_OPEN]
        content |= {"total": reader.total, "count": reader.count}
        self._widget.send(content, buffers=[records.tobytes(), opened.tobytes()])
        self._seq += 1
        self._sent_s, self._news = now_s, 0

    def _take(self, widget: Any, content: Any, buffers: Any) -> None:
        """The page has lost messages: after a reload it knows nothing."""
        if content == {"ask": "all"} and self._reader is not None:
            self._reader.resend()
            self._num_names = 0


def look(ranks: Sequence[int], title: str) -> dict[str, Any]:
    """What the page must know of how things look: the same as in the still picture."""
    rows = tuple(f"rank {rank}" for rank in ranks)
    empty = chart.Chart(title, (), rows, 0.0, (), (), (), (), ())
    kinds = [
        {
            "key": kind, "row": row, "label": drawn.label, "color": drawn.color,
            "hatched": drawn.hatched, "verb": verb,
            "alpha": 0.4 if kind == "issued" else 1.0,
        }
        for kind in KINDS
        for row, drawn, verb in (_LOOKS[kind],)
    ]  # fmt: skip
    geometry = {
        "compute": chart.COMPUTE_ROW, "comm": chart.COMM_ROW, "band": chart.BAND_ROW,
        "mark_at": chart.MARK_AT, "row_pixels": empty.row_pixels,
    }  # fmt: skip
    return {"title": title, "rows": rows, "kinds": kinds, "geometry": geometry}


def _drawn(draw: Callable[[], Still] | None) -> Still | None:
    try:
        return None if draw is None else draw()
    except Exception as error:
        sys.stderr.write(
            f"[labkit] the run's picture could not be drawn ({type(error).__name__}: "
            f"{error}); its record is whole. run.timeline() draws it again\n"
        )
        return None


@cache
def _tell_once(why: str) -> None:
    """Say why there is no live picture; the same reason is not told again."""
    sys.stderr.write(
        f"[labkit] the live picture was given up ({why}); the run goes on, and its "
        "record is drawn at the end. `labkit doctor` says what is missing\n"
    )
