"""A record as slices of threads: what a viewer of traces wants, before any format.

    rank 0   lane 0              spans; on a CPU compute and waits inside them
             stream 0            on a GPU: compute, and what it stands still for;
                                 where a model gave the times, spans too
             transfers of world  from when the last rank had come

Times are whole nanoseconds, and the slices of a thread nest: of two that overlap and do
not, the later goes to a thread beside, "lane 0 (2)".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from labkit.record import intervals
from labkit.record.ahead import runs_ahead
from labkit.record.intervals import Stretch
from labkit.record.measure import transfers
from labkit.record.measure.awaited import Awaited
from labkit.record.program import Comm, Event, Moment, Program, Race, Span, Wait, Work

Place: TypeAlias = Literal["lane", "stream", "transfers of"]
PLACES: tuple[Place, ...] = ("lane", "stream", "transfers of")
_NS = 1e9


class Thread(NamedTuple):
    """A row of a rank: a host's lane, a stream, or the transfers of a group."""

    rank: int
    place: Place
    which: int | str
    beside: int = 0

    @property
    def name(self) -> str:
        """As it is shown."""
        shown = f"{self.place} {self.which}"
        return f"{shown} ({self.beside + 1})" if self.beside else shown


class Slice(NamedTuple):
    """A named stretch of a thread, or at `end_ns` None one moment of it.

    An arrow leads from the slice with `begins` to those with the same `ends`.
    """

    thread: Thread
    start_ns: int
    end_ns: int | None
    name: str
    category: str
    args: dict[str, Any]
    begins: int | None = None
    ends: int | None = None


def slices(program: Program) -> list[Slice]:
    """Everything that happened, thread by thread: within one in order, the outer first.

    Arrows begin on lanes, and lanes come before transfers.

    Raises:
        UsageError: The record has no times.
    """
    by_thread: defaultdict[Thread, list[Slice]] = defaultdict(list)
    for found in _Reader(program).slices():
        by_thread[found.thread].append(found)
    order = sorted(by_thread, key=lambda thread: PLACES.index(thread.place))
    return [piece for thread in order for piece in _nested(by_thread[thread])]


def _nested(found: list[Slice]) -> Iterator[Slice]:
    """The slices of one thread in order, each where it nests."""
    found.sort(key=lambda s: (s.start_ns, -_end(s)))
    layers: list[list[int]] = []
    for piece in found:
        beside = _layer(layers, piece)
        yield piece._replace(thread=piece.thread._replace(beside=beside))


def _layer(layers: list[list[int]], piece: Slice) -> int:
    """The first thread in which a slice nests; `layers` are the ends that are open."""
    for beside, open_ends in enumerate(layers):
        while open_ends and open_ends[-1] <= piece.start_ns:
            open_ends.pop()
        if not open_ends or _end(piece) <= open_ends[-1]:
            open_ends.append(_end(piece))
            return beside
    layers.append([_end(piece)])
    return len(layers) - 1


def _end(piece: Slice) -> int:
    return piece.start_ns if piece.end_ns is None else piece.end_ns


class _Reader:
    """Reads a Program's events as slices."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ahead = runs_ahead(program)
        # A GPU's model gives spans the times of their work: see `labkit.replay`.
        self._models_gpu = self._ahead and program.header.source == "replayed"
        # What a CPU's record calls the host's wait is on a GPU the stream's.
        self._waits_move = self._models_gpu and program.header.device == "cpu"
        self._over_s = program.duration_s
        self._stretches = intervals.read(program).stretches
        self._matched = transfers.match(program)
        self._awaited = Awaited(program, self._matched)
        self._names = {
            (comm.rank, comm.id): row.name for row, comm, _ in self._stretches if comm
        }
        self._begun = self._begun_by()
        starters = dict.fromkeys(self._begun.values())
        self._arrows = {key: number for number, key in enumerate(starters, start=1)}

    def _begun_by(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of each transfer that a call on another rank let begin: that call."""
        begun: dict[tuple[int, int], tuple[int, int]] = {}
        for row, comm, _ in self._stretches:
            if comm is None or row.kind != "transfer":
                continue
            call = self._call_before(comm)
            if call is not None and (call.issued_s or 0.0) <= row.start:
                begun[comm.rank, comm.id] = call.rank, call.id
        return begun

    def _call_before(self, comm: Comm) -> Comm | None:
        if comm.kind == "send":
            return None
        if comm.kind == "recv":
            parts = self._matched[comm.rank, comm.id].parts
            return next((p.comm for p in parts if p.comm.kind == "send"), None)
        return self._awaited.call(comm)

    def slices(self) -> Iterator[Slice]:
        """Every slice; of two of one thread and time, the outer first."""
        comms = {(e.rank, e.id): e for e in self._program if isinstance(e, Comm)}
        for event in self._program:
            yield from self._of_event(event, comms)
        for stretch in self._stretches:
            if stretch.comm is not None and stretch.row.kind == "transfer":
                yield self._transfer(stretch, stretch.comm)
        for race in self._program.races:
            yield self._race(race, comms[race.rank, race.target])

    def _of_event(
        self, event: Event, comms: Mapping[tuple[int, int], Comm]
    ) -> Iterator[Slice]:
        match event:
            case Span() if event.start_s is not None:
                yield self._span(event, event.start_s)
            case Work() if event.start_s is not None and event.end_s is not None:
                yield _slice(
                    self._home(event), event.start_s, event.end_s, event.name,
                    "compute", _costs(event),
                )  # fmt: skip
            case Comm() if event.issued_s is not None:
                yield self._call(event, event.issued_s)
            case Wait() if event.start_s is not None:
                comm = comms.get((event.rank, event.target))
                yield from self._wait(event, event.start_s, comm)
            case Moment() if event.at_s is not None:
                thread = self._home(event)
                yield _slice(thread, event.at_s, None, event.name, "mark", {})
            case _:
                pass

    def _home(self, event: Work | Wait | Span | Moment) -> Thread:
        """Where it takes time: on a GPU it is the stream that computes and waits."""
        match event:
            case Work() if self._ahead:
                return Thread(event.rank, "stream", event.stream)
            case Wait() if event.who == "stream" or self._waits_move:
                return Thread(event.rank, "stream", event.stream)
            case Span() | Moment() if self._models_gpu:
                return Thread(event.rank, "stream", 0)
            case _:
                return Thread(event.rank, "lane", event.lane)

    def _span(self, span: Span, start_s: float) -> Slice:
        args = _known(micro_batch=span.micro_batch, stage=span.stage)
        if span.end_s is None:
            args["closed"] = False
        end_s = self._over_s if span.end_s is None else span.end_s
        args = {"step": span.step, **args}
        return _slice(self._home(span), start_s, end_s, span.name, "span", args)

    def _call(self, comm: Comm, issued_s: float) -> Slice:
        thread = Thread(comm.rank, "lane", comm.lane)
        args = _about(comm)
        if comm.ended_s is None:
            args["end"] = "not recorded"
        made = _slice(thread, issued_s, issued_s, self._name(comm), "call", args)
        return made._replace(begins=self._arrows.get((comm.rank, comm.id)))

    def _name(self, comm: Comm) -> str:
        return self._names.get((comm.rank, comm.id), comm.kind)

    def _wait(self, wait: Wait, start_s: float, comm: Comm | None) -> Iterator[Slice]:
        """A wait, and within it how long it was for a rank that came late."""
        thread = self._home(wait)
        end_s = self._over_s if wait.end_s is None else wait.end_s
        args: dict[str, Any] = {} if wait.ok else {"ok": False}
        if wait.cause == "event" or comm is None:
            yield _slice(thread, start_s, end_s, "wait for a stream", "wait", args)
            return
        name = f"wait for {self._name(comm)}"
        yield _slice(thread, start_s, end_s, name, "wait", args)
        came_s = comm.arrived_s if wait.ok and comm.arrived_s is not None else end_s
        if min(came_s, end_s) > start_s:
            rank = self._awaited.rank(comm)
            who = "another rank" if rank is None else f"rank {rank}"
            late = f"waiting for {who}"
            yield _slice(thread, start_s, min(came_s, end_s), late, "late", {})

    def _transfer(self, stretch: Stretch, comm: Comm) -> Slice:
        row, args = stretch.row, _about(comm)
        if row.end > row.start and comm.logical_bytes:
            args["GB_per_s"] = comm.logical_bytes / (row.end - row.start) / 1e9
        last = self._awaited.rank(comm)
        if last is not None:
            args["came_last"] = last
        thread = Thread(comm.rank, "transfers of", comm.group)
        made = _slice(thread, row.start, row.end, row.name, "transfer", args)
        begun_by = self._begun.get((comm.rank, comm.id))
        return made._replace(ends=self._arrows[begun_by]) if begun_by else made

    def _race(self, race: Race, comm: Comm) -> Slice:
        """Races have no time: each stands where its transfer was issued."""
        thread = Thread(comm.rank, "lane", comm.lane)
        name = f"race: {race.operation} {race.access}s a buffer of {self._name(comm)}"
        args: dict[str, Any] = {"storage": race.storage}
        if race.site is not None:
            args["line"] = f"{race.site.line} of {race.site.function}"
        return _slice(thread, comm.issued_s or 0.0, None, name, "race", args)


def _slice(thread: Thread, start_s: float, end_s: float | None, *rest: Any) -> Slice:
    start_ns = round(start_s * _NS)
    end_ns = None if end_s is None else max(start_ns, round(end_s * _NS))
    return Slice(thread, start_ns, end_ns, *rest)


def _about(comm: Comm) -> dict[str, Any]:
    args: dict[str, Any] = {"kind": comm.kind, "group": comm.group}
    args |= {"bytes": comm.logical_bytes, "dtype": comm.dtype}
    args |= {"peer": comm.peer} if comm.peer is not None else {}
    if comm.site is not None:
        args["line"] = f"{comm.site.line} of {comm.site.function}"
    return args


def _costs(work: Work) -> dict[str, Any]:
    return _known(flops=work.flops or None, bytes=work.moved_bytes or None)


def _known(**args: float | None) -> dict[str, Any]:
    """Those that say something."""
    return {name: value for name, value in args.items() if value is not None}


def threads(found: Sequence[Slice]) -> list[Thread]:
    """Every thread, in the order in which ranks show them."""

    def order(thread: Thread) -> tuple[int, int, str, int]:
        place = PLACES.index(thread.place)
        return thread.rank, place, f"{thread.which:>20}", thread.beside

    return sorted({piece.thread for piece in found}, key=order)
