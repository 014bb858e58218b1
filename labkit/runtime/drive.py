"""One run, watched from the kernel: from the job's first byte to a verdict.

A loop on the calling thread moves bytes, shows output, and asks five questions in
order: do calls mismatch, did a process die, did a rank raise, is anybody stuck, are all
done? It never blocks for longer than a tick, and returns a verdict instead of raising.
"""

from __future__ import annotations

import pickle
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import MismatchError
from labkit.record.events import Event
from labkit.record.program import Clock, Level
from labkit.runtime import clocks
from labkit.runtime.channels import Gone, GuardGone, Happening, Output
from labkit.runtime.diagnosis import Doing, Finding, Ledger
from labkit.runtime.generation import Generation
from labkit.runtime.nodes import JoinedGeneration
from labkit.runtime.output import OutputPrinter
from labkit.runtime.rank.messages import Done, Failure, Job, Pong
from labkit.runtime.rank.wire import Frame, FrameKind
from labkit.runtime.watch import SilenceWatch

if TYPE_CHECKING:
    from labkit.view.live import LiveView

TICK_S = 0.02
# A mismatch often makes a rank raise or die: give its report time to be the headline.
GRACE_S = 0.06
ECHO_S = 1.0
STATUS_GRACE_S = 0.4
# A finding that rests on a buffered send may be about to dissolve; look again.
SOFT_STUCK_S = 1.0
HARD_STUCK_S = 0.06
COME_BACK_S = 0.2
PONG_S = 0.1
DRAIN_S = 0.1
START_LIMIT_S = 120.0
# Of a rank in one run: some 200 MB. The counters go on, and so does the diagnosis.
MAX_EVENTS = 500_000


@dataclass(frozen=True)
class AllDone:
    """Every rank returned."""


@dataclass(frozen=True)
class Raised:
    """A rank raised first; others may have failed after it."""

    rank: int
    failure: Failure


@dataclass(frozen=True)
class Died:
    """These ranks' processes ended; or the guard's, and with it all."""

    ranks: tuple[int, ...]
    guard: bool = False


@dataclass(frozen=True)
class Misfit:
    """The ranks' calls do not fit together; an exception that came of it is folded."""

    finding: Finding
    failure: tuple[int, Failure] | None = None


@dataclass(frozen=True)
class Interrupted:
    """The learner interrupted the run."""


@dataclass(frozen=True)
class NotStarted:
    """A rank never joined the others."""

    ranks: tuple[int, ...]


Verdict = AllDone | Raised | Died | Misfit | Interrupted | NotStarted


@dataclass
class Team:
    """A generation of ranks and what the kernel knows of them, from run to run.

    `is_warm` once they have imported what recording every operation needs.
    """

    generation: Generation | JoinedGeneration
    ledger: Ledger
    backend: str
    device: Literal["cpu", "cuda"]
    ready: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    guard_gone: bool = False
    is_warm: bool = False
    variables: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def elsewhere(self) -> set[int]:
        """The ranks of other machines, whose clocks are not this one's."""
        if isinstance(self.generation, Generation):
            return set()
        here = socket.gethostname()
        hellos = self.generation.hellos
        return {rank for rank, hello in hellos.items() if hello.host != here}

    @property
    def hosted(self) -> bool:
        """Whether all ranks are threads of one process."""
        return self.backend == "threads"


class Drive:
    """Runs one job on some ranks of a team."""

    def __init__(
        self,
        team: Team,
        job: Job,
        printer: OutputPrinter,
        is_interrupted: Callable[[], bool],
        live: LiveView | None = None,
    ) -> None:
        self.team = team
        self.ranks = job.ranks
        self.level: Level = job.level
        self.outcomes: dict[int, Done | Failure] = {}
        self.events: dict[int, list[Event]] = {rank: [] for rank in job.ranks}
        self.dropped: Counter[int] = Counter()
        self.clocks: dict[int, Clock] = {}
        self.pongs: dict[int, Pong] = {}
        self._job = job
        self._printer = printer
        self._is_interrupted = is_interrupted
        self._live = live
        self._since: dict[Any, float] = {}
        self._watch = SilenceWatch(team)
        self._changed = True
        self._last_stuck: Finding | None = None
        self._stuck_key: Any = None
        self._stuck_since_s = 0.0
        self.was_out: set[int] = set()
        self.judged_s: float | None = None
        self.doing_then: dict[int, Doing] = {}

    def run(self) -> Verdict:
        """Send the job and watch it until there is a verdict."""
        self.team.ledger.start(self.ranks)
        starts = clocks.compare(self)
        body = pickle.dumps(self._job, protocol=5)
        for rank in self._processes():
            self.team.generation.channels.send(FrameKind.JOB, rank, body)
        self._watch.start(self.ranks)
        while True:
            self.pump(TICK_S)
            self._watch.tick(self)
            verdict = self._judge()
            if verdict is not None:
                self.judged_s = time.monotonic()
                self._drain()
                ends = clocks.compare(self) if isinstance(verdict, AllDone) else {}
                self.clocks = {r: clocks.clock(r, starts, ends) for r in self.ranks}
                return verdict

    def _processes(self) -> tuple[int, ...]:
        return (0,) if self.team.hosted else self.ranks

    def out(self) -> set[int]:
        """The ranks that have not come back yet."""
        return set(self.ranks) - set(self.outcomes)

    def pump(self, timeout_s: float) -> None:
        """Take in what came, for at most `timeout_s`, and show what was printed."""
        for happening in self.team.generation.channels.pump(timeout_s):
            self._take(happening)
        self._printer.tick()
        if self._live is not None:
            self._live.tick(time.monotonic())

    def _drain(self) -> None:
        """Take in what is already there, so that a rank's last lines are not lost.

        Not for long: what prints without end may be a rank's child.
        """
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s:
            happenings = self.team.generation.channels.pump(0)
            if not happenings:
                return
            for happening in happenings:
                self._take(happening)

    def _take(self, happening: Happening) -> None:
        self._changed = True
        match happening:
            case Frame():
                self._take_frame(happening)
            case Output():
                self._printer.feed(happening.rank, happening.stream, happening.data)
            case Gone():
                hosted = self.team.hosted
                self.team.gone |= set(self.ranks) if hosted else {happening.rank}
            case GuardGone():
                self.team.guard_gone = True

    def _take_frame(self, frame: Frame) -> None:
        rank, kind = frame.rank, frame.kind
        self._watch.heard(rank)
        if kind is FrameKind.EVENTS:
            events = frame.load()
            self.team.ledger.add(rank, events)
            self._keep(rank, events)
            if self._live is not None:
                self._live.feed(rank, events)
        elif kind is FrameKind.READY:
            self.team.ready.add(rank)
        elif kind is FrameKind.OUTPUT:
            stream, data = frame.load()
            self._printer.feed(rank, stream, data)
        elif kind is FrameKind.PONG:
            self.pongs[rank] = frame.load()
        elif kind in (FrameKind.DONE, FrameKind.FAILED):
            self._come_back(rank, frame.load())

    def _keep(self, rank: int, events: Sequence[Event]) -> None:
        kept = self.events.setdefault(rank, [])
        room = MAX_EVENTS - len(kept)
        kept.extend(events[:room])
        self.dropped[rank] += max(0, len(events) - room)

    def _come_back(self, rank: int, outcome: Done | Failure) -> None:
        if outcome.job_id != self._job.id:
            return
        self.outcomes[rank] = outcome
        self.team.variables[rank] = outcome.variables
        if self._live is not None:
            self._live.finish(rank)
        if isinstance(outcome, Done):
            self.team.ledger.finish(rank)
        else:
            self.team.ledger.fail(rank)

    def _judge(self) -> Verdict | None:
        if self._is_interrupted():
            return Interrupted()
        if self.team.guard_gone:
            return Died(self.ranks, guard=True)
        return (
            self._mismatch()
            or self._death()
            or self._failure()
            or self._stuck()
            or self._end()
            or self._never_started()
        )

    def _for(self, key: Any, seconds: float) -> bool:
        """Whether `key` has been the case for so long, first asked now or before."""
        return (
            time.monotonic() - self._since.setdefault(key, time.monotonic()) >= seconds
        )

    def _mismatch(self) -> Verdict | None:
        finding = self.team.ledger.mismatch()
        if finding is None or (self.out() and not self._for("mismatch", GRACE_S)):
            return None
        return Misfit(finding, self._first_failure())

    def _death(self) -> Verdict | None:
        starting = set(self.team.generation.channels.ranks) - self.team.ready
        dead = tuple(sorted(self.team.gone & (self.out() | starting)))
        if not dead or not self.out():
            return None
        known = all(rank in self.team.generation.channels.exited for rank in dead[:1])
        if self._for("death", GRACE_S if known else STATUS_GRACE_S):
            return Died(dead)
        return None

    def _first_failure(self) -> tuple[int, Failure] | None:
        """The failure to tell: the first, but no echo where there is a cause."""
        failed = [
            ((_is_echo(outcome), outcome.at_s, rank), outcome)
            for rank, outcome in self.outcomes.items()
            if isinstance(outcome, Failure)
        ]
        if not failed:
            return None
        (_, _, rank), outcome = min(failed, key=lambda item: item[0])
        return rank, outcome

    def _failure(self) -> Verdict | None:
        first = self._first_failure()
        if first is None:
            return None
        patience_s = ECHO_S if _is_echo(first[1]) else GRACE_S
        if self.out() and not self._for(("failure", first[0]), patience_s):
            return None
        return Raised(*first)

    def _stuck(self) -> Verdict | None:
        if not self.out() or (self.team.gone & self.out()):
            return None
        finding = self.team.ledger.stuck() if self._changed else self._last_stuck
        self._changed, self._last_stuck = False, finding
        if finding is None or finding.failed:
            self._stuck_key = None
            return None
        patience_s = SOFT_STUCK_S if finding.soft else HARD_STUCK_S
        key = (finding.kind, finding.ranks, tuple(finding.calls.items()))
        if key != self._stuck_key:
            self._stuck_key, self._stuck_since_s = key, time.monotonic()
        lasted_s = time.monotonic() - self._stuck_since_s
        return Misfit(finding) if lasted_s >= patience_s else None

    def _end(self) -> Verdict | None:
        if self.out():
            return None
        finding = self.team.ledger.unfinished()
        return Misfit(finding) if finding is not None else AllDone()

    def _never_started(self) -> Verdict | None:
        missing = tuple(rank for rank in self.ranks if rank not in self.team.ready)
        if missing and self._for("start", START_LIMIT_S):
            return NotStarted(missing)
        return None

    def call_back(self) -> bool:
        """Interrupt the ranks that are still out; True if all came back clean."""
        for rank in self._processes():
            if rank in self.out():
                self.team.generation.channels.send(FrameKind.STOP, rank, b"")
        deadline_s = time.monotonic() + COME_BACK_S
        while self.out() and not self._hopeless() and time.monotonic() < deadline_s:
            self.pump(TICK_S)
        self._drain()
        return not self.out() and not self.team.gone and self.team.ledger.settled()

    def note_out(self) -> None:
        """Remember who was out, and where, before anybody is called back."""
        self.was_out = self.out()
        self.doing_then = {r: self.team.ledger.doing(r) for r in self.ranks}

    def may_keep(self, ended: Verdict) -> bool:
        """Call everybody back, and say whether the ranks can be used again."""
        if isinstance(ended, Died | Misfit | NotStarted):
            return False
        return self.call_back()

    def _hopeless(self) -> bool:
        """Whether some rank cannot be brought back: it stands in a backend's call.

        Ranks that are threads take no signal at all.
        """
        if self.team.hosted:
            return True
        ledger = self.team.ledger
        return any(ledger.doing(rank).since_s is not None for rank in self.out())

    def ask_where(self) -> dict[int, Pong]:
        """What each rank that is still out is doing, if it can say so in time."""
        self.pongs.clear()
        asked = self.out()
        for rank in self._processes():
            self.team.generation.channels.send(FrameKind.PING, rank, b"")
        deadline_s = time.monotonic() + PONG_S
        while asked - set(self.pongs) and time.monotonic() < deadline_s:
            self.pump(TICK_S)
        return self.pongs


# What gloo and NCCL say on a rank whose peer has gone.
_PEER_GONE = re.compile(
    "connection (reset|closed|refused)|broken pipe|read error|ncclRemoteError",
    re.IGNORECASE,
)


def _is_echo(failure: Failure) -> bool:
    """Whether a rank tells of what happened on another, whose own word comes later.

    The board tells a rank of a mismatch before the kernel hears the other side, and a
    backend tells of a peer's death before the kernel sees it.
    """
    if failure.type_name == MismatchError.__name__:
        return True
    return failure.type_name in ("RuntimeError", "DistBackendError") and bool(
        _PEER_GONE.search(failure.message)
    )
