"""The recorder of one rank: numbers its events and hands them to whoever listens.

A rank has one recorder. It is found through `current()`, which looks the calling thread
up, so that ranks that are threads of one process each find their own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from labkit.errors import UsageError
from labkit.record import ranges
from labkit.record.events import (
    P2P,
    Caveat,
    CommEnd,
    CommStart,
    Event,
    Kind,
    Moment,
    NewGroup,
    Operation,
    Site,
    SpanEnd,
    SpanStart,
    StreamMark,
    StreamWait,
    WaitEnd,
    WaitStart,
)
from labkit.record.traffic import Backend, Counters

MAX_PENDING = 200_000
MAX_FIXED_S = 3600.0
MAX_NAME = 200
MAX_GOOD_NAMES = 1000
MAX_NUMBER = 10**9

P = ParamSpec("P")
T = TypeVar("T")
_now_s = time.monotonic
_thread_id = threading.get_ident
# What a NamedTuple's own constructor does, in half the time: a span may cost 2 us.
_made = tuple.__new__


class Abandoned(RuntimeError):
    """Raised out of a wait that can never end: in the record it stays open."""


class Observer(Protocol):
    """Who watches the buffers of a rank's transfers, at level "work"."""

    def buffers(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """The storages of a transfer's tensors."""
        ...

    def issued(self, comm: CommStart) -> None:
        """A transfer was issued."""
        ...

    def waited(self, comm_id: int) -> None:
        """The program has waited for a transfer."""
        ...

    def future_taken(self, comm_id: int) -> None:
        """Somebody took a transfer's future."""
        ...

    def resized(self, storage: Any) -> None:
        """A storage has another size now."""
        ...


class Recorder:
    """Numbers the events of one rank and keeps them until `drain` takes them.

    `counters` count what it transfers, also where there is no room for the event.

    `dropped` counts the events that found no room. `groups` are the global ranks of
    each group that the rank is a member of, by uid. `epoch` is another object for each
    run.
    """

    def __init__(
        self,
        rank: int = 0,
        *,
        backend: Backend = "gloo",
        max_pending: int = MAX_PENDING,
    ) -> None:
        """`backend` is the one whose algorithms decide what leaves the rank."""
        self.counters = Counters(rank, backend)
        self.dropped = 0
        self._max_pending = max_pending
        self.observer: Observer | None = None
        self.groups: dict[str, tuple[int, ...]] = {}
        self.epoch = object()
        self._pending: deque[Event] = deque()
        self._numbering = threading.Lock()
        self._next_id = 0
        self._next_mark = 0
        self._streams: dict[int, int] = {}
        self._current_stream: dict[int, int] = {}
        self._group_seq: Counter[Any] = Counter()
        self._pair_seq: Counter[Any] = Counter()
        self._lanes: dict[int, int] = {_thread_id(): 0}
        self._caveats: set[str] = set()
        self._under_way: dict[int, Callable[[], bool]] = {}
        self._looked_s = 0.0

    def begin(self) -> None:
        """A run begins on the calling thread: lane 0, and nothing dropped so far."""
        self.adopt_thread()
        self.counters.clear()
        self.dropped = 0
        self.epoch = object()
        self._next_mark = 0
        self._streams.clear()
        self._current_stream.clear()
        self._caveats.clear()
        self._under_way.clear()

    def lane(self) -> int:
        """The calling thread's number: 0 for the thread that made the recorder."""
        thread = _thread_id()
        known = self._lanes.get(thread)
        if known is None:
            return self._lanes.setdefault(thread, len(self._lanes))
        return known

    def adopt_thread(self) -> None:
        """Make the calling thread lane 0: the one that runs the learner's function."""
        self._lanes = {_thread_id(): 0}

    @property
    def stream(self) -> int:
        """The calling thread's current logical stream, 0 the one that computes."""
        return self._current_stream.get(_thread_id(), 0)

    @stream.setter
    def stream(self, number: int) -> None:
        """From here on, the calling thread's lines are this stream's work."""
        self._current_stream[_thread_id()] = number

    def stream_number(self, key: int) -> int:
        """The number of a stream beside the one that computes, by first use in a run.

        Numbered so, two runs of a program agree, whatever streams were made before.
        """
        return self._streams.setdefault(key, len(self._streams) + 1)

    @property
    def stands_still(self) -> bool:
        """Whether the last that happened since `drain` is that a wait began."""
        pending = self._pending
        return bool(pending) and type(pending[-1]) is WaitStart

    def drain(self) -> list[Event]:
        """Take every event that has not been taken yet."""
        events = []
        while self._pending:
            events.append(self._pending.popleft())
        return events

    def add(self, event: Event) -> None:
        """Keep an event; beyond `max_pending` it is only counted, in `dropped`."""
        if len(self._pending) < self._max_pending:
            self._pending.append(event)
        else:
            self.dropped += 1

    def new_group(self, uid: str, ranks: tuple[int, ...]) -> None:
        """Say that this rank is a member of a group."""
        self.groups[uid] = ranks
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
        batch: int | None = None,
        reads: tuple[int, ...] = (),
        writes: tuple[int, ...] = (),
    ) -> CommStart:
        """Record that a transfer is issued now, and return its event."""
        if self._under_way:
            self.look()
        pair = (group, kind, peer, tag)
        thread = _thread_id()
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self.lane()
        with self._numbering:
            group_seq, pair_seq = self._group_seq[group], self._pair_seq[pair]
            if kind in P2P:
                self._pair_seq[pair] = pair_seq + 1
            else:
                self._group_seq[group] = group_seq + 1
            comm = _made(CommStart, (
                self._next_id, kind, group, group_seq, peer, tag, pair_seq, shapes,
                dtype, payload_bytes, op, send_splits, recv_splits, lane, site,
                _now_s(), self._current_stream.get(thread, 0), batch, reads, writes,
            ))  # fmt: skip
            self._next_id += 1
            self.counters.add(comm, self.groups.get(group, (self.counters.rank,)))
            self.add(comm)
        return comm

    def waiting(self, target: int, since_s: float | None = None) -> Waiting:
        """Record that the calling thread stands still until transfer `target` ends.

        `since_s` is when it was issued, where the very call that issued it waits.
        """
        return Waiting(self, target, since_s)

    def follow(self, target: int, is_over: Callable[[], bool]) -> None:
        """Look from now on whether transfer `target` is over: see `look`."""
        self._under_way[target] = is_over

    def ended(self, target: int) -> None:
        """Record that a transfer that is followed ends now: the backend says so."""
        if self._under_way.pop(target, None) is not None:
            self.add(CommEnd(target, _now_s()))

    def unfollow(self, target: int) -> None:
        """Look no longer: its end is known otherwise."""
        self._under_way.pop(target, None)

    @property
    def follows_any(self) -> bool:
        """Whether a transfer is under way whose end is looked for."""
        return bool(self._under_way)

    def look(self) -> None:
        """Record which of the transfers that are followed have ended since last time.

        At level "comm" nobody else tells. The backend's thread could, as it does at
        level "work"; but it would wait for the interpreter's lock, and with it the
        transfers behind.
        """
        looked_s, self._looked_s = self._looked_s, _now_s()
        for target, is_over in list(self._under_way.items()):
            if is_over() and self._under_way.pop(target, None) is not None:
                now_s = _now_s()
                self.add(CommEnd(target, now_s, now_s - looked_s))

    def new_mark(self) -> int:
        """The number of a mark that a stream will come to."""
        with self._numbering:
            self._next_mark += 1
            return self._next_mark - 1

    def stream_mark(self, number: int, stream: int) -> None:
        """Record that a logical stream is given mark `number`."""
        self.add(StreamMark(number, self.lane(), stream, _now_s()))

    def stream_wait(
        self, stream: int, target: int, cause: Literal["event", "wait"] = "event"
    ) -> None:
        """Record that a stream waits: for a mark, or (cause "wait") for a transfer."""
        self.add(StreamWait(target, self.lane(), stream, cause, _now_s()))

    def caveat(
        self, about: Literal["timing", "streams"], why: str, site: Site | None
    ) -> None:
        """Record, once a run, why this record cannot be given other times."""
        if about not in self._caveats:
            self._caveats.add(about)
            self.add(Caveat(about, why, site))

    def mark(self, name: str) -> None:
        """Record a moment."""
        self.add(Moment(name, self.lane(), _now_s()))

    def fixed(self, seconds: float) -> None:
        """Record host work that takes as long on every hardware."""
        at_s = _now_s()
        self.add(
            Operation(
                "fixed", self.lane(), self.stream, 0, 0, 0, "", seconds, at_s, at_s
            )
        )

    def open_span(self, name: str, micro_batch: int | None, stage: int | None) -> int:
        """Record that a span begins, and return its lane; `add`, written out."""
        lane = self._lanes.get(_thread_id())
        if lane is None:
            lane = self.lane()
        pending = self._pending
        if len(pending) < self._max_pending:
            start = (name, lane, _now_s(), micro_batch, stage)
            pending.append(_made(SpanStart, start))
        else:
            self.dropped += 1
        return lane

    def close_span(self, lane: int) -> None:
        """Record that a lane's innermost span ends; `add`, written out."""
        pending = self._pending
        if len(pending) < self._max_pending:
            pending.append(_made(SpanEnd, (lane, _now_s())))
        else:
            self.dropped += 1

    def span(
        self, name: str, *, micro_batch: int | None = None, stage: int | None = None
    ) -> Span:
        """Record a named stretch of the calling thread's program."""
        return Span(name, self, micro_batch, stage)


class Waiting:
    """A thread stands still within it, for a transfer: `with recorder.waiting(id):`."""

    __slots__ = ("_recorder", "_since_s", "_target")

    def __init__(self, recorder: Recorder, target: int, since_s: float | None) -> None:
        """A generator would take four times as long."""
        self._recorder = recorder
        self._target = target
        self._since_s = since_s

    def __enter__(self) -> None:
        recorder = self._recorder
        if recorder.follows_any:
            recorder.look()
        at_s = _now_s() if self._since_s is None else self._since_s
        recorder.add(WaitStart(self._target, recorder.lane(), at_s))

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is None or not issubclass(kind, Abandoned):
            self._recorder.add(WaitEnd(self._target, _now_s(), ok=kind is None))
            self._recorder.unfollow(self._target)


class Span:
    """A named stretch: `with span("forward"):`, or `@span("forward")` on a function.

    A profiler that watches sees it too: torch's as a `record_function` range, Nsight
    Systems as an NVTX range. A span may be entered many times, also inside itself.
    """

    __slots__ = ("_micro_batch", "_name", "_open", "_recorder", "_stage")

    def __init__(
        self,
        name: str,
        recorder: Recorder | None,
        micro_batch: int | None,
        stage: int | None,
    ) -> None:
        """Without a recorder, that of the rank that enters is taken."""
        self._name = name
        self._recorder = recorder
        self._micro_batch = micro_batch
        self._stage = stage
        # Innermost first: (recorder, lane, range, the one around it).
        self._open: Any = None

    def __enter__(self) -> None:
        recorder = self._recorder or current()
        lane = recorder.open_span(self._name, self._micro_batch, self._stage)
        seen = ranges.enter(self._name) if ranges.watched() else None
        self._open = (recorder, lane, seen, self._open)

    def __exit__(self, *raised: object) -> None:
        if self._open is None:
            raise UsageError(
                f"a span ends after it began; {self._name!r} was left more often than "
                f"it was entered. Use it as `with span({self._name!r}):`"
            )
        recorder, lane, seen, self._open = self._open
        if seen is not None:
            ranges.leave(seen)
        recorder.close_span(lane)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, with each of its calls as a span."""

        @wraps(function)
        def spanned(*args: P.args, **kwargs: P.kwargs) -> T:
            with Span(self._name, self._recorder, self._micro_batch, self._stage):
                return function(*args, **kwargs)

        return spanned


_process_recorder: Recorder | None = None
_thread_recorder = threading.local()
# Asking a thread for what it does not have takes half a microsecond.
_any_thread_has_its_own = False


def install(recorder: Recorder, *, this_thread_only: bool = False) -> None:
    """Make `recorder` the one that `current` finds, in this process or this thread."""
    global _process_recorder, _any_thread_has_its_own
    if this_thread_only:
        _any_thread_has_its_own = True
        _thread_recorder.value = recorder
    else:
        _process_recorder = recorder


def current() -> Recorder:
    """The recorder of the rank that calls; outside a rank, one that nobody reads."""
    global _process_recorder
    if _any_thread_has_its_own:
        own = getattr(_thread_recorder, "value", None)
        if own is not None:
            return own
    if _process_recorder is None:
        _process_recorder = Recorder()
    return _process_recorder


def mark(name: str) -> None:
    """Record a moment of the rank that calls: `mark("spoke")`.

    Raises:
        UsageError: The name is no line of text.
    """
    _check_name(name)
    current().mark(name)


def span(
    name: str, *, micro_batch: int | None = None, stage: int | None = None
) -> Span:
    """Record a named stretch of the rank that calls.

    `with span("step"):` records what the block does, `@span("step")` each call of a
    function. Spans named "step" number the steps; "forward", "backward" and "optimizer"
    have colours of their own in a timeline.

    Args:
        name: What to call it.
        micro_batch: Which micro-batch it works on, from 0.
        stage: Which pipeline stage it belongs to, from 0.

    Raises:
        UsageError: The name is no line of text, or a number no whole one.
    """
    if type(name) is not str or name not in _good_names:
        _check_name(name)
    if micro_batch is not None:
        _check_number("micro_batch", micro_batch)
    if stage is not None:
        _check_number("stage", stage)
    return Span(name, None, micro_batch, stage)


# Names that were checked before: looking one up takes a third of checking it.
_good_names: set[str] = set()


def _check_name(name: Any) -> None:
    """Hold that pictures and files can show a name."""
    if type(name) is not str or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError(
            f"a span or a mark is named by a line of at most {MAX_NAME} printable "
            f'characters; got {name!r:.80}. Name it in a word: span("forward")'
        )
    if len(_good_names) < MAX_GOOD_NAMES:
        _good_names.add(name)


def _check_number(what: str, number: Any) -> None:
    if type(number) is not int or not 0 <= number <= MAX_NUMBER:
        raise UsageError(
            f"a span's {what} is a whole number from 0 to {MAX_NUMBER}; got "
            f'{number!r:.80}. Count from 0: span("forward", {what}=0)'
        )


def fixed(seconds: float) -> None:
    """Say that the rank that calls does work now that no hardware makes faster.

    Replay cannot see a `time.sleep`, a disk or numpy: `fixed(0.02)` gives its lane 20
    ms there, on every hardware.

    Raises:
        UsageError: Not a number of seconds from 0 to an hour.
    """
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_FIXED_S:
        raise UsageError(
            f"fixed work takes from 0 to {MAX_FIXED_S:g} s; got {seconds!r}. Say how "
            "long it takes in seconds: fixed(0.02)"
        )
    current().fixed(float(seconds))
