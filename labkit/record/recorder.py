"""The recorder of one rank: numbers its events and hands them to whoever listens.

A rank has one recorder. It is found through `current()`, which looks the calling thread
up, so that ranks that are threads of one process each find their own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from labkit.record.events import (
    P2P,
    CommEnd,
    CommStart,
    Event,
    Kind,
    Moment,
    NewGroup,
    Site,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)

MAX_PENDING = 200_000


class Abandoned(RuntimeError):
    """Raised out of a wait that can never end: in the record it stays open."""


class Recorder:
    """Numbers the events of one rank and keeps them until `drain` takes them."""

    def __init__(self) -> None:
        self.dropped = 0
        self._pending: deque[Event] = deque()
        self._numbering = threading.Lock()
        self._next_id = 0
        self._group_seq: Counter[Any] = Counter()
        self._pair_seq: Counter[Any] = Counter()
        self._lanes: dict[int, int] = {threading.get_ident(): 0}

    def lane(self) -> int:
        """The calling thread's number: 0 for the thread that made the recorder."""
        return self._lanes.setdefault(threading.get_ident(), len(self._lanes))

    def adopt_thread(self) -> None:
        """Make the calling thread lane 0: the one that runs the learner's function."""
        self._lanes = {threading.get_ident(): 0}

    def drain(self) -> list[Event]:
        """Take every event that has not been taken yet."""
        events = []
        while self._pending:
            events.append(self._pending.popleft())
        return events

    def add(self, event: Event) -> None:
        """Keep an event; beyond MAX_PENDING it is only counted, in `dropped`."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append(event)
        else:
            self.dropped += 1

    def new_group(self, uid: str, ranks: tuple[int, ...]) -> None:
        """Say that this rank is a member of a group."""
        self.add(NewGroup(uid, ranks))

    def comm(
        self,
        kind: Kind,
        group: str,
        *,
        peer: int | None = None,
        tag: int = 0,
        shapes: tuple[tuple[int, ...], ...] = (),
        dtype: str = "",
        payload_bytes: int = 0,
        op: str | None = None,
        send_splits: tuple[int, ...] | None = None,
        recv_splits: tuple[int, ...] | None = None,
        site: Site | None = None,
    ) -> CommStart:
        """Record that a transfer is issued now, and return its event."""
        pair = (group, kind, peer, tag)
        counter = self._pair_seq if kind in P2P else self._group_seq
        key = pair if kind in P2P else group
        with self._numbering:
            comm = CommStart(
                self._next_id, kind, group, self._group_seq[group], peer, tag,
                self._pair_seq[pair], shapes, dtype, payload_bytes, op, send_splits,
                recv_splits, self.lane(), site, time.monotonic(),
            )  # fmt: skip
            self._next_id += 1
            counter[key] += 1
            self.add(comm)
        return comm

    @contextmanager
    def waiting(self, target: int) -> Generator[None]:
        """Record that the calling thread stands still until transfer `target` ends."""
        self.add(WaitStart(target, self.lane(), time.monotonic()))
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Abandoned):
                self.add(WaitEnd(target, time.monotonic(), ok=False))
            raise
        self.add(WaitEnd(target, time.monotonic(), ok=True))

    def ended(self, target: int) -> None:
        """Record that a transfer is known to have ended."""
        self.add(CommEnd(target, time.monotonic()))

    def mark(self, name: str) -> None:
        """Record a moment."""
        self.add(Moment(name, self.lane(), time.monotonic()))

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Record a named stretch of the calling thread's program."""
        lane = self.lane()
        self.add(SpanStart(name, lane, time.monotonic()))
        try:
            yield
        finally:
            self.add(SpanEnd(lane, time.monotonic()))


_process_recorder: Recorder | None = None
_thread_recorder = threading.local()


def install(recorder: Recorder, *, this_thread_only: bool = False) -> None:
    """Make `recorder` the one that `current` finds, in this process or this thread."""
    global _process_recorder
    if this_thread_only:
        _thread_recorder.value = recorder
    else:
        _process_recorder = recorder


def current() -> Recorder:
    """The recorder of the rank that calls; outside a rank, one that nobody reads."""
    global _process_recorder
    found = getattr(_thread_recorder, "value", None) or _process_recorder
    if found is None:
        found = _process_recorder = Recorder()
    return found


def mark(name: str) -> None:
    """Record a moment of the rank that calls: `mark("spoke")`."""
    current().mark(name)


def span(name: str) -> AbstractContextManager[None]:
    """Record a named stretch of the rank that calls: what a `with` block does.

    `with span("step"):` names it.
    """
    return current().span(name)
