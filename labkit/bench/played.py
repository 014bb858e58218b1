"""Plays made-up telemetry into a live timeline, as fast as ranks would tell it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from labkit.record.events import Event, SpanEnd, SpanStart
from labkit.view.live import LiveView

NAMES = ("forward", "backward", "optimizer")
PERIOD_S = 0.02  # How often a run's loop looks at what ranks told.
LEAD_S = 0.4
BUSY_SHARE = 0.97


@dataclass(frozen=True)
class Played:
    """What playing cost the kernel: processor seconds in so many seconds."""

    num_spans: int
    cpu_s: float
    seconds: float


def spans(rank: int, num_spans: int, length_s: float, start_s: float) -> list[Event]:
    """`num_spans` spans of one rank, one after the other; each begins `length_s` on."""
    events: list[Event] = []
    for number in range(num_spans):
        at_s = start_s + number * length_s
        name = NAMES[(number + rank) % len(NAMES)]
        events.append(SpanStart(name, 0, at_s))
        events.append(SpanEnd(0, at_s + BUSY_SHARE * length_s))
    return events


def play(view: LiveView, num_ranks: int, num_spans: int, duration_s: float) -> Played:
    """Let `num_ranks` ranks tell of `num_spans` spans in all, in `duration_s`."""
    each = num_spans // num_ranks
    length_s = duration_s / each
    start_s = time.monotonic() + LEAD_S
    told = [spans(rank, each, length_s, start_s) for rank in range(num_ranks)]
    time.sleep(max(0.0, start_s - time.monotonic()))
    cpu_s, done = -time.process_time(), 0
    while done < each:
        time.sleep(PERIOD_S)
        now_s = time.monotonic()
        before, done = done, min(each, int((now_s - start_s) / length_s))
        for rank, events in enumerate(told):
            view.feed(rank, events[2 * before : 2 * done])
        view.tick(now_s)
    view.flush(time.monotonic())
    cpu_s += time.process_time()
    return Played(each * num_ranks, cpu_s, time.monotonic() - start_s)
