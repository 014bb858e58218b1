"""Follows one rank's telemetry, and draws it into the scene that all ranks share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.record import events as told
from labkit.record.scene import KIND, MAX_CALLS, MAX_NAMES, Call, Line, Scene, where
from labkit.record.track import COMPUTE, STEP

# A gap between spans that is no longer than this is no work of its own.
SLIVER_S = 5e-5
MAX_OPEN = 8  # Of a rank's calls that nobody waits for, drawn while they last.


class Follower:
    """Follows one rank; `zero_s` is the time of its clock at which the picture begins.

    Only the first thread's spans cut the compute, as in the timeline that stays.
    """

    def __init__(self, scene: Scene, rank: int) -> None:
        self.zero_s = 0.0
        self._scene = scene
        self._rank = rank
        self._place = float(scene.ranks.index(rank))
        self._since = 0.0
        self._looks: dict[str, tuple[float, float]] = {}
        self._plain = self._look(COMPUTE)
        self._spans = [self._plain]
        self._standing: set[int] = set()
        self._calls: dict[int, Call] = {}
        self._count: Counter[str] = Counter()
        self._num_steps = 0
        self._is_finished = False
        self._handlers: dict[type, Any] = {
            told.SpanStart: self._open_span,
            told.SpanEnd: self._close_span,
            told.CommStart: self._issue,
            told.WaitStart: self._wait,
            told.WaitEnd: self._end_wait,
            told.CommEnd: self._end,
            told.Moment: self._mark,
            told.RaceSeen: self._race,
            told.NewGroup: self._join,
        }

    def follow(self, events: Iterable[told.Event]) -> None:
        """Take events in their order; of the others there is nothing to draw."""
        handlers = self._handlers
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)

    def finish(self) -> None:
        """The rank has returned: what it computed ends with its last event."""
        if not self._is_finished:
            self._cut(self._scene.heard[self._rank])
            self._is_finished = True

    def settle(self, call: Call) -> None:
        """A call is final."""
        self._scene.final += call.lines()
        self._calls.pop(call.id, None)

    def open_lines(self) -> Iterator[Line]:
        """What the rank is doing."""
        lasting = [call for call in self._calls.values() if not call.is_ending]
        issued = [call for call in lasting if not call.open_waits]
        for call in (
            *filter(lambda call: call.open_waits, lasting),
            *issued[-MAX_OPEN:],
        ):
            yield from call.open_lines()
        if not self._standing and not self._is_finished:
            kind, name = self._spans[-1]
            yield self._place, kind, self._since, math.nan, 0.0, name, 0.0

    def _at(self, clock_s: float) -> float:
        """A time of the rank's clock, on the picture's."""
        at = clock_s - self.zero_s
        if at > self._scene.heard[self._rank]:
            self._scene.heard[self._rank] = at
        return at

    def _look(self, name: str) -> tuple[float, float]:
        """Kind and name of what is computed in a span."""
        found = self._looks.get(name)
        if found is None:
            kind = KIND.get(name.split(" ")[0].lower(), KIND[COMPUTE])
            kind = kind if kind <= KIND["optimizer"] else KIND[COMPUTE]
            found = (kind, self._scene.name(name))
            if len(self._looks) < MAX_NAMES:
                self._looks[name] = found
        return found

    def _cut(self, at: float) -> None:
        """End the present stretch of compute."""
        start, self._since = self._since, at
        look = self._spans[-1]
        shortest = SLIVER_S if look is self._plain else 0.0
        if at - start > shortest and not self._standing and not self._is_finished:
            line = (self._place, look[0], start, at - start, 0.0, look[1], 0.0)
            self._scene.final.append(line)

    def _open_span(self, event: told.SpanStart) -> None:
        at = self._at(event.at_s)
        if event.lane:
            return
        if event.name == STEP:
            # A step is no name of its own for what is computed in it.
            self._spans.append(self._spans[-1])
            self._begin_step(at)
        else:
            self._cut(at)
            self._spans.append(self._look(event.name))

    def _begin_step(self, at: float) -> None:
        """The first rank that comes to a step draws where it begins."""
        number, self._num_steps = self._num_steps, self._num_steps + 1
        if self._num_steps > self._scene.num_steps:
            self._scene.num_steps = self._num_steps
            line = (self._place, KIND[STEP], at, 0.0, 0.0, 0.0, float(number))
            self._scene.final.append(line)

    def _close_span(self, event: told.SpanEnd) -> None:
        at = self._at(event.at_s)
        if event.lane == 0 and len(self._spans) > 1:
            if self._spans[-1] is not self._spans[-2]:
                self._cut(at)
            self._spans.pop()

    def _issue(self, event: told.CommStart) -> None:
        at = self._at(event.issued_s)
        self._count[event.kind] += 1
        call = Call(self._scene, self._rank, event, at, self._count[event.kind])
        self._calls[event.id] = call
        self._scene.issue(call)
        if len(self._calls) > MAX_CALLS:
            # Nobody ever told of its end.
            del self._calls[next(iter(self._calls))]

    def _wait(self, event: told.WaitStart) -> None:
        at = self._at(event.at_s)
        if event.lane == 0:
            self._cut(at)
            self._standing.add(event.target)
        call = self._calls.get(event.target)
        if call is not None:
            call.open_waits.append(at)

    def _end_wait(self, event: told.WaitEnd) -> None:
        at = self._at(event.at_s)
        if event.target in self._standing:
            self._standing.discard(event.target)
            self._since = at
        call = self._calls.get(event.target)
        if call is None or not call.open_waits:
            return
        start = call.open_waits.pop()
        if event.ok:
            call.waits.append((start, at))
            call.learn_end(at, of_wait=True)
        else:
            line = call.line(KIND["waiting"], start, at - start)
            self._scene.final.append(line)
        self._note_end(call)

    def _end(self, event: told.CommEnd) -> None:
        at = self._at(event.at_s)
        call = self._calls.get(event.target)
        if call is not None:
            call.learn_end(at, of_wait=False)
            self._note_end(call)

    def _note_end(self, call: Call) -> None:
        """Once its end is known and nobody waits, all that this rank tells is told."""
        if call.end is not None and not call.open_waits and not call.is_ending:
            call.is_ending = True
            self._scene.ending.append(call)

    def _mark(self, event: told.Moment) -> None:
        at, name = self._at(event.at_s), self._scene.name(event.name)
        line = (self._place, KIND["mark"], at, 0.0, 0.0, name, 0.0)
        self._scene.final.append(line)

    def _race(self, event: told.RaceSeen) -> None:
        """It has no time of its own: it was seen after the rank's last event."""
        told_of = f"{event.operation} {_PAST[event.access]} a buffer nobody waited for"
        name = self._scene.name(told_of, where(event.site))
        at = self._scene.heard[self._rank]
        line = (self._place, KIND["race"], at, 0.0, 0.0, name, 0.0)
        self._scene.final.append(line)

    def _join(self, event: told.NewGroup) -> None:
        self._scene.groups[event.uid] = event.ranks


_PAST = {"read": "read", "write": "wrote"}
