"""Telemetry of made-up runs, for what is drawn while it grows."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from labkit.record.events import (
    CommEnd,
    CommStart,
    Event,
    Kind,
    NewGroup,
    Site,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)

SITE = Site("cell", 7, "train")


def comm(
    comm_id: int,
    kind: Kind,
    at: float,
    *,
    seq: int = 0,
    peer: int | None = None,
    group: str = "world",
) -> CommStart:
    """A transfer of 1 KiB."""
    return CommStart(
        comm_id, kind, group, seq, peer, 0, seq, ((256,),), "float32", 1024, None,
        None, None, 0, SITE, at,
    )  # fmt: skip


def waited(comm_id: int, start: float, end: float, ok: bool = True) -> list[Event]:
    """A wait."""
    return [WaitStart(comm_id, 0, start), WaitEnd(comm_id, end, ok)]


def training(num_ranks: int, steps: int, seed: int = 0) -> list[list[Event]]:
    """Steps of compute, an all-reduce, and a message around the ring, by rank."""
    rng = random.Random(seed)
    every: list[list[Event]] = [
        [NewGroup("world", tuple(range(num_ranks)))] for _ in range(num_ranks)
    ]
    clocks = [100.0] * num_ranks
    for step in range(steps):
        for rank, events in enumerate(every):
            events.append(SpanStart("step", 0, clocks[rank]))
            for name in ("forward", "backward"):
                events.append(SpanStart(name, 0, clocks[rank]))
                clocks[rank] += rng.uniform(0.01, 0.05)
                events.append(SpanEnd(0, clocks[rank]))
        ends = max(clocks) + 0.004
        for rank, events in enumerate(every):
            start, reduce_id = clocks[rank], 3 * step
            events += [comm(reduce_id, "all_reduce", start, seq=step)]
            events += waited(reduce_id, start, ends)
            events += ring(rank, num_ranks, step, ends)
            clocks[rank] = ends + 0.006
            events.append(SpanEnd(0, clocks[rank]))
    return every


def ring(rank: int, num_ranks: int, step: int, at: float) -> list[Event]:
    """Send to the next rank, receive from the one before."""
    right, left = (rank + 1) % num_ranks, (rank - 1) % num_ranks
    send, recv = 3 * step + 1, 3 * step + 2
    delay = 0.001 * (rank % 3)
    return [
        comm(send, "send", at + delay, seq=step, peer=right),
        comm(recv, "recv", at + delay, seq=step, peer=left),
        *waited(recv, at + delay, at + 0.005),
        CommEnd(send, at + 0.0052),
    ]


def spans(
    num_ranks: int, count: int, duration_s: float, *, start_s: float = 0.0
) -> list[list[Event]]:
    """`count` spans in all, evenly over the ranks and the time."""
    names = ("forward", "backward", "optimizer")
    each, every = count // num_ranks, list[list[Event]]()
    length = duration_s / each
    for _ in range(num_ranks):
        events: list[Event] = []
        for n in range(each):
            at = start_s + n * length
            events += [SpanStart(names[n % 3], 0, at), SpanEnd(0, at + 0.97 * length)]
        every.append(events)
    return every


def time_of(event: Event) -> float:
    """When an event was told; 0 for what has no time."""
    return getattr(event, "at_s", getattr(event, "issued_s", 0.0))


def batches(
    every: Sequence[Sequence[Event]], period_s: float
) -> list[tuple[float, list[list[Event]]]]:
    """What each rank tells in each period, with the time at its end."""
    rest = [deque(events) for events in every]
    times = [time_of(e) for events in every for e in events if time_of(e)]
    now, found = min(times), list[tuple[float, list[list[Event]]]]()
    while any(rest):
        now += period_s
        found.append((now, [_before(now, events) for events in rest]))
    return found


def _before(now: float, events: deque[Event]) -> list[Event]:
    heard: list[Event] = []
    while events and time_of(events[0]) < now:
        heard.append(events.popleft())
    return heard
