"""Ranks driven from a notebook: `Cluster(4).run(function)`.

Before: nothing runs. After: `function` has run on every rank, each result is in
`run.results`, and the ranks are warm, with their variables, for the next cell. When it
does not end well, the error says which rank, which line, and what to try.
"""

from __future__ import annotations

import atexit
import contextvars
import html
import itertools
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, overload

from labkit.errors import (
    ClusterClosed,
    RunError,
    StartError,
    StuckError,
    TravelError,
    UsageError,
)
from labkit.record import operations
from labkit.record.events import P2P, Event
from labkit.record.program import Header, Level, Program
from labkit.record.reduce import RankLog, reduce
from labkit.runtime import devices, dry, live, payload, sources, verdict
from labkit.runtime.diagnosis import Ledger
from labkit.runtime.drive import AllDone, Drive, Interrupted, Team, Verdict
from labkit.runtime.generation import Generation
from labkit.runtime.nodes import Door, JoinedGeneration
from labkit.runtime.output import OutputPrinter
from labkit.runtime.rank import travel
from labkit.runtime.rank.messages import Done, Failure, Job, Knobs
from labkit.runtime.recorded import Recorded
from labkit.units import format_seconds

if TYPE_CHECKING:
    from labkit.view.place import Place

MAX_SHOWN = 400  # Letters of the results, where a Run is shown.
_job_ids = itertools.count(1)


@dataclass(frozen=True, repr=False)
class Run(Recorded):
    """What a run left: one result a rank, and everything the ranks did."""

    ranks: tuple[int, ...]
    results: list[Any]
    seconds: float
    logs: tuple[RankLog, ...]
    header: Header
    place: Place | None = field(default=None, compare=False)

    @property
    def drawn_at(self) -> Place | None:
        """Where its live picture was."""
        return self.place

    @property
    def events(self) -> list[Sequence[Event]]:
        """What each rank told, event by event."""
        return [log.events for log in self.logs]

    def _reduced(self) -> Program:
        return reduce(self.logs, self.header)

    def __repr__(self) -> str:
        ranks = f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)}"
        if self.header.source == "dry":
            return f"A dry run of {ranks}: a record without results or times"
        results = repr(self.results)
        if len(results) > MAX_SHOWN:
            results = f"{results[:MAX_SHOWN]}..."
        return f"A run of {ranks}, {format_seconds(self.seconds)}, results {results}"


class Cluster:
    """`world_size` ranks that a notebook runs functions on.

    Attributes:
        live: Whether a run in a notebook that takes a while is drawn under its cell
            while it goes on, and stays there as a picture.
    """

    def __init__(
        self,
        world_size: int,
        *,
        backend: Literal["auto", "gloo", "nccl", "threads"] = "auto",
        device: str = "auto",
        start: Literal["auto", "fork", "spawn"] = "auto",
        threads: int | None = None,
        rendezvous: bool = False,
        nodes: str | None = None,
        quiet: bool = False,
        live: bool = True,
    ) -> None:
        """Choose backend and devices, say so, and start the ranks in the background.

        Args:
            world_size: How many ranks.
            backend: `"threads"` runs the ranks as threads of one process, one at a
                time.
            device: `"cpu"` or `"cuda"`; by default a GPU for each rank where there is.
            start: How a rank's process is made.
            threads: How many threads a rank computes with.
            rendezvous: A send ends only when it is received: no buffer hides a
                deadlock.
            nodes: HOST:PORT at which ranks of other nodes join; nothing starts here.
            quiet: Say nothing.
            live: Draw runs while they go on.

        Raises:
            UsageError: This machine cannot do it.
        """
        self.world_size = world_size
        self.rendezvous = rendezvous
        self.live = live
        self._knobs: dict[int, Knobs] = {}
        self._lock = threading.Lock()
        if nodes is not None:
            _check_alone(
                backend=backend != "auto", device=device != "auto",
                start=start != "auto", threads=threads is not None,
                rendezvous=rendezvous,
            )  # fmt: skip
        self.door = Door.at(nodes, world_size) if nodes is not None else None
        self.placement = None if self.door is not None else devices.place(
            world_size, devices.look(), backend=backend, device=device, start=start,
            threads=threads,
        )  # fmt: skip
        self._closed = False
        self._background: BackgroundRun | None = None
        self._team: Team | None = None
        self._dry_workers: Cluster | None = None
        if self.door is None:
            self._team = self._new_team()
        _clusters.append(weakref.ref(self))
        register_magic()
        if not quiet:
            print(self.description)

    @property
    def description(self) -> str:
        """What was chosen and why, or how ranks join."""
        if self.placement is not None:
            return self.placement.because
        assert self.door is not None
        return self.door.instructions()

    def _new_team(self, is_interrupted: Callable[[], bool] = lambda: False) -> Team:
        generation: Generation | JoinedGeneration
        if self.placement is None:
            assert self.door is not None
            generation = JoinedGeneration(self.door, is_interrupted)
            backend = generation.hellos[0].backend
            device = generation.hellos[0].device
        else:
            generation = Generation(
                self.placement, self.world_size, rendezvous=self.rendezvous
            )
            backend = self.placement.backend
            device = self.placement.device_of[0]
        ledger = Ledger(
            self.world_size,
            ignore_tags=backend == "nccl",
            rendezvous=self.rendezvous or backend == "gloo",
        )
        return Team(
            generation,
            ledger,
            backend=backend,
            device="cuda" if device.startswith("cuda") else "cpu",
        )

    @overload
    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | int | None = None,
        record: Level = "comm",
        background: Literal[False] = False,
        **kwargs: Any,
    ) -> Run: ...

    @overload
    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | int | None = None,
        record: Level = "comm",
        background: Literal[True],
        **kwargs: Any,
    ) -> BackgroundRun: ...

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | int | None = None,
        record: Level = "comm",
        background: bool = False,
        **kwargs: Any,
    ) -> Run | BackgroundRun:
        """Call `function(*args, **kwargs)` on every rank, or on `ranks` only.

        Returns when all have returned. Arguments, and whatever the function uses,
        travel by value; what it returns travels back. With `background=True` it returns
        a BackgroundRun at once. With `record="work"` every operation is recorded, with
        its FLOPs, bytes and memory: that takes longer, and is what replay needs.

        Raises RankFailed, RankDied, a StuckError, TravelError or RunInterrupted.
        """
        chosen = self._check_ranks(ranks)
        packed = payload.pack_call(function, args, kwargs, len(chosen))
        check_level(record)
        job = self._job(packed, chosen, filename=None, level=record)
        place = live.place() if self.live else None
        return self._start(job, packed.warning, place, background=background)

    @contextmanager
    def undrawn(self) -> Generator[None]:
        """Draw no live picture of what runs meanwhile, as where one table says it."""
        was, self.live = self.live, False
        try:
            yield
        finally:
            self.live = was

    def dry(
        self,
        function: Callable[..., Any],
        *args: Any,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> Run:
        """Record `function(*args, **kwargs)` at its real size, on fake tensors.

        No data, no GPU, seconds: the Run has no results and no times, but every
        operation, transfer and byte of memory of each rank, for `run.replay(...)`.

        Args:
            function: What every rank runs. Tensors that it makes are fake.
            *args: Its arguments.
            world_size: How many ranks; this cluster's number by default.
            **kwargs: Its arguments by name.

        Raises:
            UsageError: The function needs values; the message has the line.
        """
        self._check_ranks(None)
        size = self.world_size if world_size is None else world_size
        dry.check_world_size(size)
        packed = payload.pack_call(function, args, kwargs, size)
        if self._dry_workers is None:
            self._dry_workers = Cluster(
                dry.num_workers(), device="cpu", quiet=True, live=False
            )
        try:
            recorded = dry.run(self._dry_workers, packed.body, size)
        except BaseException:
            self._dry_workers.close()
            self._dry_workers = None
            raise
        return Run(
            tuple(range(size)), [], recorded.seconds, recorded.logs, recorded.header
        )

    def run_cell(self, source: str, ranks: Sequence[int] | int | None = None) -> None:
        """Run a cell's source in the ranks' own variables: what `%%ranks` calls."""
        chosen = self._check_ranks(ranks)
        filename, brought = sources.cell_context(source)
        packed = payload.pack_cell(source, brought, len(chosen))
        packed.cells[filename] = source
        job = self._job(packed, chosen, filename=filename)
        self._start(job, None, None, background=False)

    def _job(
        self,
        packed: payload.Payload,
        ranks: tuple[int, ...],
        *,
        filename: str | None,
        level: Level = "comm",
    ) -> Job:
        return Job(
            id=next(_job_ids),
            ranks=ranks,
            body=packed.body,
            cell_filename=filename,
            sources=packed.cells,
            labels={name: sources.label(name) for name in packed.cells},
            modules=packed.modules,
            sys_path=tuple(sys.path),
            knobs=dict(self._knobs),
            level=level,
        )

    def _start(
        self, job: Job, warning: str | None, place: Place | None, *, background: bool
    ) -> Any:
        if warning:
            sys.stderr.write(f"[labkit] {warning}\n")
        if background:
            self._occupy()
            self._background = BackgroundRun(partial(self._drive_and_free, job, place))
            return self._background
        with _sigint_as_flag() as is_interrupted:
            self._occupy()
            return self._drive_and_free(job, place, is_interrupted)

    def _occupy(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "one run at a time: this cluster is still busy with another run, in "
                "the background or from another thread. Wait for it with .wait(), end "
                "it with .stop(), or make a second Cluster"
            )

    def _drive_and_free(
        self, job: Job, place: Place | None, is_interrupted: Callable[[], bool]
    ) -> Run:
        try:
            return self._drive(job, place, is_interrupted)
        finally:
            self._lock.release()

    def _drive(
        self, job: Job, place: Place | None, is_interrupted: Callable[[], bool]
    ) -> Run:
        self._bury()
        if self._team is None:
            self._team = self._new_team(is_interrupted)
        printer = OutputPrinter(self.world_size)
        if job.level == "work" and not self._team.is_warm:
            self._warm_up(printer, is_interrupted)
        view = live.view(self._team, job.ranks, place)
        drive = Drive(self._team, job, printer, is_interrupted, view)
        if view is None:
            return self._watch(drive, printer)
        try:
            run = replace(self._watch(drive, printer), place=place)
            view.end(run.timeline)
            return run
        finally:
            view.end(partial(live.broken, drive, self.world_size))

    def _warm_up(
        self, printer: OutputPrinter, is_interrupted: Callable[[], bool]
    ) -> None:
        """Import what recording needs, so that no rank waits for it in the record."""
        assert self._team is not None
        packed = payload.pack_call(operations.warm_up, (), {}, self.world_size)
        job = self._job(packed, tuple(range(self.world_size)), filename=None)
        self._watch(Drive(self._team, job, printer, is_interrupted), printer)
        self._team.is_warm = True

    def _watch(self, drive: Drive, printer: OutputPrinter) -> Run:
        began_s = time.monotonic()
        try:
            ended = drive.run()
        except BaseException:
            self._replace()
            raise
        seconds = time.monotonic() - began_s
        if isinstance(ended, AllDone):
            printer.finish()
            return self._finished(drive, seconds)
        raise self._explain(ended, drive, printer)

    def _bury(self) -> None:
        """Replace ranks that ended while nothing ran, and say so."""
        team = self._team
        if team is None or not (team.guard_gone or team.gone):
            return
        who = ", ".join(map(str, sorted(team.gone))) or "all, with their guard"
        names = [name for known in team.variables.values() for name in known]
        fate = verdict.fate_text(kept=False, variables=names)
        sys.stderr.write(f"[labkit] ended since the last run: rank {who}. {fate}\n")
        self._replace()

    def _finished(self, drive: Drive, seconds: float) -> Run:
        results = [_result(rank, drive.outcomes[rank]) for rank in drive.ranks]
        return Run(drive.ranks, results, seconds, *self._recorded(drive))

    def _recorded(self, drive: Drive) -> tuple[tuple[RankLog, ...], Header]:
        """What the ranks told, and who they are."""
        told = [_done(drive.outcomes[rank]).told for rank in drive.ranks]
        logs = tuple(
            RankLog(
                rank, drive.events[rank], each.groups, each.traffic, drive.clocks[rank]
            )
            for rank, each in zip(drive.ranks, told, strict=True)
        )
        assert self._team is not None
        dropped = tuple(
            each.dropped + drive.dropped[rank]
            for rank, each in zip(drive.ranks, told, strict=True)
        )
        header = Header(
            world_size=self.world_size,
            ranks=drive.ranks,
            hosts=tuple(each.host for each in told),
            device=self._team.device,
            backend=self._team.backend,
            torch=told[0].torch,
            level=drive.level,
            dropped=dropped if any(dropped) else (),
        )
        return logs, header

    def _explain(
        self, ended: Verdict, drive: Drive, printer: OutputPrinter
    ) -> BaseException:
        assert self._team is not None
        drive.note_out()
        if isinstance(ended, Interrupted):
            drive.ask_where()
        kept = drive.may_keep(ended)
        names = [n for known in self._team.variables.values() for n in known]
        error = verdict.error_of(ended, drive, verdict.fate_text(kept, names))
        if isinstance(error, RunError):
            error.events = [drive.events[rank] for rank in drive.ranks]
        if not kept:
            try:
                self._replace()
            except StartError as trouble:
                error.add_note(f"Fresh ranks could not be started: {trouble}")
        printer.finish()
        if isinstance(error, StuckError):
            _show_details(error)
        return error

    def _replace(self) -> None:
        """End this generation; fresh ranks start while the notebook goes on.

        Ranks of other nodes join again when the next run calls for them.
        """
        if self._team is not None:
            self._team.generation.end(wait=False)
            self._team = None
        if self.door is None and not self._closed:
            self._team = self._new_team()

    def _check_ranks(self, ranks: Sequence[int] | int | None) -> tuple[int, ...]:
        if self._closed:
            raise ClusterClosed(
                "this cluster was closed, and its ranks have ended. Make a new one: "
                f"Cluster({self.world_size})"
            )
        if ranks is None:
            return tuple(range(self.world_size))
        chosen = tuple(ranks) if isinstance(ranks, Iterable) else (ranks,)
        for rank in chosen:
            self._check_rank(rank)
        if not chosen or len(set(chosen)) != len(chosen):
            raise UsageError(
                f"a list of ranks names at least one, each once; got {list(chosen)}. "
                f"Use ranks from 0 to {self.world_size - 1}"
            )
        return chosen

    def _check_rank(self, rank: Any) -> None:
        is_int = isinstance(rank, int) and not isinstance(rank, bool)
        if not is_int or not 0 <= rank < self.world_size:
            raise UsageError(
                f"a rank of this cluster is a whole number from 0 to "
                f"{self.world_size - 1}; got {rank!r}. Cluster({self.world_size}) has "
                f"{self.world_size} ranks"
            )

    def slow(self, *, rank: int, factor: float) -> None:
        """Make a rank take `factor` times as long for what it computes (at least 1)."""
        self._check_rank(rank)
        if not _is_slowness(factor):
            raise UsageError(
                f"a slowed rank takes 1 to 1000 times as long; got factor={factor!r}. "
                "factor=2.0 doubles its time, factor=1.0 takes the slowness away"
            )
        old = self._knobs.get(rank, Knobs())
        self._knobs[rank] = Knobs(float(factor), old.fail_kind, old.fail_at)

    def fail(self, *, rank: int, at: str) -> None:
        """Make a rank raise at one of its calls: `at="all_reduce#3"` is the third."""
        self._check_rank(rank)
        kind, _, number = str(at).partition("#")
        if kind not in _KINDS or not re.fullmatch("[1-9][0-9]*", number):
            raise UsageError(
                'a failure is placed at the n-th call of a kind, as "all_reduce#3"; '
                f"got {at!r}. Kinds: {', '.join(sorted(_KINDS))}; calls count from 1"
            )
        old = self._knobs.get(rank, Knobs())
        self._knobs[rank] = Knobs(old.slow_factor, kind, int(number))

    def heal(self) -> None:
        """Take back every `slow` and `fail`."""
        self._knobs.clear()

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def close(self) -> None:
        """End the ranks and wait until nothing of them is left."""
        if not self._closed:
            self._closed = True
            if self._background is not None:
                self._background.stop()
            if self._team is not None:
                self._team.generation.end(wait=True)
                self._team = None
            if self._dry_workers is not None:
                self._dry_workers.close()
            if self.door is not None:
                self.door.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._team is not None:
            self._team.generation.end(wait=False)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.description
        return f"Cluster({self.world_size}): {state}"


def _check_alone(**given: bool) -> None:
    """Refuse options that say how ranks start, where others start them."""
    named = [name for name, is_given in given.items() if is_given]
    if named:
        raise UsageError(
            f"ranks of other nodes are started there, each as its node allows; got "
            f"{', '.join(named)} beside nodes=. Leave {' and '.join(named)} out"
        )


def check_level(level: Any) -> None:
    """Raise UsageError for what is no level of recording."""
    if level not in ("comm", "work"):
        raise UsageError(
            'record is "comm" (transfers, waits, spans) or "work" (every operation '
            f'too); got {level!r}. Use record="work" for what is to be replayed'
        )


def _done(outcome: Done | Failure) -> Done:
    assert isinstance(outcome, Done)
    return outcome


def _result(rank: int, outcome: Done | Failure) -> Any:
    """What a rank returned. Raises TravelError where it cannot be rebuilt here."""
    try:
        return travel.loads(_done(outcome).result)
    except Exception as error:
        raise TravelError(
            f"what a function returns is rebuilt in the notebook; rank {rank}'s result "
            f"could not be: {type(error).__name__}: {error}. Return its parts"
        ) from error


def _is_slowness(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and 1 <= factor <= 1000


class BackgroundRun:
    """A run that goes on while the notebook does something else."""

    def __init__(self, drive: Callable[[Callable[[], bool]], Run]) -> None:
        """Call `drive` in a thread, with a function that says whether to stop."""
        self._drive = drive
        self._stop = threading.Event()
        self._outcome: Run | BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._body,), daemon=True
        )
        self._thread.start()

    def _body(self) -> None:
        try:
            self._outcome = self._drive(self._stop.is_set)
        except BaseException as error:
            self._outcome = error

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait for the end: the Run, or the error that a run in a cell would raise."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the run still goes on after {timeout_s} s")
        assert self._outcome is not None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def stop(self) -> None:
        """Interrupt the run, as the stop button does for a run in a cell."""
        self._stop.set()
        self._thread.join()


_KINDS = frozenset({
    *P2P, "broadcast", "reduce", "all_reduce", "gather", "scatter", "all_gather",
    "reduce_scatter", "all_to_all", "barrier",
})  # fmt: skip


@contextmanager
def _sigint_as_flag() -> Generator[Callable[[], bool]]:
    """Turn interrupts, however many, into one flag that the run's loop reads."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen = threading.Event()

    def see(signum: int, frame: FrameType | None) -> None:
        seen.set()

    before = signal.signal(signal.SIGINT, see)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)
    if seen.is_set():
        # It came when the run had just ended well: it is for what comes next.
        signal.raise_signal(signal.SIGINT)


def _show_details(error: StuckError) -> None:
    """Fold each rank's last calls under the message; in a terminal they are a note."""
    if sources.in_notebook():
        from IPython.display import HTML, display

        display(
            HTML(
                "<details><summary>Each rank's last calls</summary><pre>"
                f"{html.escape(error.details)}</pre></details>"
            )
        )
    else:
        error.add_note(error.details)


_clusters: list[weakref.ref[Cluster]] = []


def newest() -> Cluster:
    """The cluster made last that is still open: the one that `%%ranks` uses."""
    for reference in reversed(_clusters):
        cluster = reference()
        if cluster is not None and not cluster.is_closed:
            return cluster
    raise UsageError("%%ranks needs ranks to run on; make some: cluster = Cluster(4)")


def ranks_magic(line: str, cell: str) -> None:
    """Run the cell on every rank of the newest cluster, or on those named.

    `%%ranks`, `%%ranks 0,2`, `%%ranks 1-3`. Names that the cell assigns stay on the
    ranks; the notebook's functions and classes that it names come along. Each rank has
    `rank`, `world_size`, `torch` and `dist`.
    """
    newest().run_cell(cell, sources.parse_ranks(line))


def register_magic() -> None:
    """Make `%%ranks` known to IPython, if this is IPython."""
    running = sources.shell()
    if running is not None:
        running.register_magic_function(ranks_magic, "cell", "ranks")


_owner_pid = os.getpid()


@atexit.register
def _close_all() -> None:
    if os.getpid() == _owner_pid:
        for reference in _clusters:
            cluster = reference()
            if cluster is not None:
                cluster.close()
