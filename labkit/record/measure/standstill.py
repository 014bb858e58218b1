"""When a rank's compute stood still, and for what: a late rank, or a transfer.

    stream 0   compute |  late . . . . .  |  transfer  | compute
                       ^ it waits         ^ the last   ^ the transfer has ended
                                            rank came

On a CPU it is the host's lane 0 that computes and waits; on a GPU stream 0 waits, and
the host only where it reads a value. Where stream 0 waits for a mark of another stream,
it stands still for what that stream stands still for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from labkit.record.program import Comm, Event, Mark, Wait


class Standstill(NamedTuple):
    """A stretch in which a rank stood still for a transfer; `wait_s` is the whole."""

    start: float
    end: float
    why: Literal["late", "transfer"]
    comm: Comm
    wait_s: float


def find(events: Sequence[Event], over_s: float) -> list[Standstill]:
    """Where one rank's compute stood still, in order; no two overlap.

    Args:
        events: The rank's events, with times.
        over_s: When the record ends: a wait that is still on lasts until then.
    """
    comms = {event.id: event for event in events if isinstance(event, Comm)}
    marked = {event.id: event.stream for event in events if isinstance(event, Mark)}
    waits = [event for event in events if isinstance(event, Wait)]
    beside = _beside(waits, comms, over_s)
    found: list[Standstill] = []
    for wait in filter(_blocks, waits):
        if wait.cause == "event":
            found += _inherited(wait, beside.get(marked.get(wait.target, 0), []))
        else:
            found += _parts(wait, comms, over_s)
    return _disjoint(found)


def _beside(
    waits: Sequence[Wait], comms: dict[int, Comm], over_s: float
) -> dict[int, list[Standstill]]:
    """Where each stream that does not compute stood still."""
    found: defaultdict[int, list[Standstill]] = defaultdict(list)
    for wait in waits:
        if wait.who == "stream" and wait.stream and wait.cause != "event":
            found[wait.stream] += _parts(wait, comms, over_s)
    return {stream: _disjoint(parts) for stream, parts in found.items()}


def num_untimed(events: Sequence[Event]) -> int:
    """How many waits of one rank happened unseen, inside C++: they have no times."""
    return sum(
        isinstance(event, Wait) and event.start_s is None and event.cause != "event"
        for event in events
    )


def _blocks(wait: Wait) -> bool:
    """Whether it is compute that waits."""
    return wait.stream == 0 if wait.who == "stream" else wait.lane == 0


def _parts(wait: Wait, comms: dict[int, Comm], over_s: float) -> Iterator[Standstill]:
    """A wait, cut where the last rank came."""
    start, end = wait.start_s, wait.end_s
    if start is None or (end is None and wait.who == "stream"):
        return
    end = over_s if end is None else end
    comm = comms[wait.target]
    came = comm.arrived_s if wait.ok and comm.arrived_s is not None else end
    came = min(max(came, start), end)
    if came > start:
        yield Standstill(start, came, "late", comm, end - start)
    if end > came:
        yield Standstill(came, end, "transfer", comm, end - start)


def _inherited(wait: Wait, beside: list[Standstill]) -> Iterator[Standstill]:
    """What other streams stood still for while stream 0 waited for one of them."""
    if wait.start_s is None or wait.end_s is None:
        return
    place = bisect_left(beside, wait.start_s, key=lambda part: part.end)
    for part in beside[place:]:
        start, end = max(part.start, wait.start_s), min(part.end, wait.end_s)
        if part.start >= wait.end_s:
            break
        if end > start:
            yield part._replace(start=start, end=end)


def _disjoint(parts: list[Standstill]) -> list[Standstill]:
    """Each moment once, in order: the wait that began first has it."""
    kept: list[Standstill] = []
    over = 0.0
    for part in sorted(parts, key=lambda part: (part.start, part.end)):
        if part.end > over:
            kept.append(part._replace(start=max(part.start, over)))
            over = part.end
    return kept
