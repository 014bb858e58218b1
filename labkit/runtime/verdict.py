"""From a verdict to the error that the learner reads.

Each message ends with what became of the ranks: kept with their variables, or replaced,
and then what was lost.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from labkit.errors import (
    LabkitError,
    RankDied,
    RankFailed,
    RunError,
    RunInterrupted,
    StartError,
)
from labkit.record.events import Site
from labkit.record.site import is_library
from labkit.runtime import kernel, sources
from labkit.runtime.diagnosis import doing_text, report
from labkit.runtime.drive import (
    Died,
    Drive,
    Interrupted,
    Misfit,
    NotStarted,
    Raised,
    Verdict,
)
from labkit.runtime.rank import travel
from labkit.runtime.rank.messages import Done, Failure
from labkit.units import format_bytes


def error_of(verdict: Verdict, drive: Drive, fate: str) -> BaseException:
    """The exception for a verdict; `fate` says what became of the ranks."""
    if isinstance(verdict, Raised):
        return _raised(verdict, drive, fate)
    if isinstance(verdict, Misfit):
        return _misfit(verdict, drive, fate)
    if isinstance(verdict, Died) and verdict.guard and not drive.team.ready:
        return StartError(kernel.obituary())
    if isinstance(verdict, Died):
        return RankDied(_join(_death_text(verdict, drive), fate))
    if isinstance(verdict, Interrupted):
        return RunInterrupted(_join(_doing_text(drive), fate))
    assert isinstance(verdict, NotStarted)
    return StartError(_start_text(verdict))


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _raised(verdict: Raised, drive: Drive, fate: str) -> RunError:
    rank, failure = verdict.rank, verdict.failure
    others = [r for r in drive.ranks if r != rank]
    failed = {
        r: outcome
        for r in others
        if isinstance(outcome := drive.outcomes.get(r), Failure) and not outcome.stopped
    }
    also = sorted(
        r
        for r, theirs in failed.items()
        if (theirs.type_name, theirs.message) == (failure.type_name, failure.message)
    )
    lines = [f"rank {rank} raised {failure.type_name}: {failure.message}", failure.text]
    stopped = [r for r in others if r not in failed and not _returned(r, drive)]
    if also:
        lines.append(f"The same error on {_ranks(also)}.")
    for other in sorted(set(failed) - set(also)):
        theirs = failed[other]
        lines.append(f"Rank {other} raised {theirs.type_name}: {theirs.message}.")
    if stopped:
        lines.append(f"Stopped because rank {rank} failed: {_ranks(stopped)}.")
    message = _join(lines[0], lines[1], " ".join([*lines[2:], fate]))
    return RankFailed(message, rank=rank, exception=_original(failure))


def _returned(rank: int, drive: Drive) -> bool:
    return isinstance(drive.outcomes.get(rank), Done)


def _original(failure: Failure) -> BaseException | None:
    """The rank's own exception, where it could travel."""
    try:
        return travel.loads(failure.exception) if failure.exception else None
    except Exception:
        return None


def _misfit(verdict: Misfit, drive: Drive, fate: str) -> LabkitError:
    finding = verdict.finding
    told = report(finding, drive.team.ledger.history(), where=sources.where)
    details = told.details
    if verdict.failure is not None:
        rank, failure = verdict.failure
        details = f"{details}\n\nrank {rank} raised:\n{failure.text}"
    return finding.error(_join(told.text, fate), finding=finding, details=details)


def _death_text(verdict: Died, drive: Drive) -> str:
    if verdict.guard:
        return (
            "the process that watches over the ranks must live as long as they do; it "
            "was killed, and every rank ended with it. Something outside labkit did "
            "that: another program, or the system for lack of memory"
        )
    texts = [_one_death(rank, drive) for rank in _dead_first(verdict.ranks, drive)]
    return "\n".join(texts)


def _dead_first(ranks: Iterable[int], drive: Drive) -> list[int]:
    return [r for r in ranks if r in drive.team.generation.channels.exited] or list(
        ranks
    )


def _one_death(rank: int, drive: Drive) -> str:
    exited = drive.team.generation.channels.exited.get(0 if drive.team.hosted else rank)
    doing = doing_text(rank, drive.team.ledger.doing(rank), where=sources.where)
    crash = crash_line(drive.team.generation.crash_text(rank))
    last = f" It was at {crash}." if crash else f" Last seen: {doing}."
    who = "the process that hosts the ranks" if drive.team.hosted else f"rank {rank}"
    if exited is None:
        return f"{who} ended, and nobody saw how.{last}"
    if exited.signal is None:
        return (
            f"{who} must return from its function; its process ended with exit status "
            f"{exited.status} first (os._exit, or a library that ends the process)."
            f"{last}"
        )
    name = _signal_name(exited.signal)
    meaning = _MEANING.get(name, "").format(peak=format_bytes(exited.peak_bytes))
    return f"{who} died of {name}{meaning}.{last}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_MEANING = {
    "SIGSEGV": ": native code touched memory that is not its own",
    "SIGABRT": ": native code gave up on an error of its own",
    "SIGBUS": ": a memory-mapped file or shared memory ran out",
    "SIGFPE": ": native code divided by zero",
    "SIGILL": ": native code used an instruction that this processor lacks",
    "SIGKILL": ": somebody killed it, most likely the system for lack of memory; at "
    "its peak it held {peak}. Use fewer ranks or smaller batches",
    "SIGTERM": ": something outside labkit asked it to end",
}


def crash_line(text: str) -> str | None:
    """The learner's innermost line in a stack that faulthandler wrote."""
    for filename, line in re.findall(r'File "([^"]+)", line (\d+)', text):
        if not is_library(filename):
            return sources.where(Site(filename, int(line), ""))
    return None


def _doing_text(drive: Drive) -> str:
    """What every rank was doing when the learner interrupted."""
    lines = ["the run was interrupted. What each rank was doing:"]
    lines += [f"  {_doing(rank, drive)}" for rank in drive.ranks]
    return "\n".join(lines)


def _doing(rank: int, drive: Drive) -> str:
    """In a call, by the ledger; else where the rank says that it stands."""
    doing = drive.doing_then[rank]
    pong = drive.pongs.get(rank)
    if rank in drive.was_out and doing.since_s is None:
        if pong is None:
            return f"rank {rank} is busy in native code"
        if pong.where:
            return f"rank {rank} is computing at {sources.named(pong.where)}"
    return doing_text(rank, doing, where=sources.where)


def _start_text(verdict: NotStarted) -> str:
    return (
        f"every rank must join the others before it runs; {_ranks(verdict.ranks)} did "
        "not. `labkit doctor` shows whether this machine lets processes talk over its "
        "loopback interface"
    )


def _ranks(ranks: Iterable[int]) -> str:
    listed = [str(rank) for rank in ranks]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}"


def fate_text(kept: bool, variables: Iterable[str]) -> str:
    """What became of the ranks and of what they held."""
    names = sorted(set(variables))
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    if kept:
        return f"The ranks were kept, with their variables ({listed})." if names else ""
    fresh = "Fresh ranks have taken their place"
    return f"{fresh}; lost with the old ones: {listed}." if names else f"{fresh}."
