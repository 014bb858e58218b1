"""Ranks from a notebook: started, run again, failing, interrupted, ended.

Every tool gets three fresh kernels, since most of what is measured here breaks ranks
that only a new kernel brings back:

    1  cold start, memory, a rank that raises
    2  cold start, memory, an interrupt
    3  cold start, warm runs of all tools in turn, the ways to be stuck, a kernel killed
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.bench import processes
from labkit.bench.extra import Extra, in_turn
from labkit.bench.figures import Figure
from labkit.bench.pairs import MIN_PAIRS
from labkit.bench.session import Session, say
from labkit.bench.taken import PATIENCE_S, Killed, Taken, compare, repeated
from labkit.bench.tools import LABKIT, PROGRAMS, Tool, rivals
from labkit.errors import RunError

NUM_RANKS = 4
# Ranks that have marked their last line are in the collective this much later.
SETTLE_S = 0.3


@dataclass(frozen=True)
class Effort:
    """How often each thing is measured."""

    pairs: int = MIN_PAIRS
    repeats: int = 5


def figures() -> list[Figure]:
    """Measure labkit beside the other tools that are installed."""
    return measure([LABKIT, *rivals()], Effort())


def measure(tools: Sequence[Tool], effort: Effort) -> list[Figure]:
    """Measure the first tool, labkit, beside each other one. Leaves nothing behind."""
    taken = [Taken(tool) for tool in tools]
    with TemporaryDirectory(prefix="labkit-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        for each in taken:
            for break_ranks in (measure_raise, measure_interrupt):
                with started(each, folder) as session:
                    note_memory(session, each)
                    break_ranks(session, each, effort)
                    each.num_hung += session.num_hung
        sessions = [stack.enter_context(started(each, folder)) for each in taken]
        found = warm_runs(sessions, effort)
        found += threads(sessions[0], effort)
        found += stuck(sessions[0], effort)
        for session, each in zip(sessions, taken, strict=True):
            each.killed = kill(session)
            each.num_hung += session.num_hung
    return [*compare(taken[0], taken[1:]), *found]


def started(taken: Taken, folder: Path) -> Session:
    """A fresh kernel with warm ranks; the cold start is noted."""
    say(f"cold start, {taken.tool.name}")
    session = Session(taken.tool, folder)
    taken.cold_s.append(session.cold_s)
    return session


def note_memory(session: Session, taken: Taken) -> None:
    """What the tool holds, idle, besides the kernel."""
    if session.tool.keeps_ranks:
        held = processes.memory_bytes(session.kernel.descendants())
        taken.memory_bytes.append(held)


def measure_raise(session: Session, taken: Taken, effort: Effort) -> None:
    """Rank 2 raises while the others wait: when the cell says so, and what."""
    say(f"a rank raises, {session.tool.name}")
    for _ in range(effort.repeats):
        [raised_at_s] = session.reach("raises", "raised", 1)
        reply = session.kernel.finish(PATIENCE_S)
        if reply is None or reply.error_at_s is None:
            return
        taken.raised_s.append(reply.error_at_s - raised_at_s)
        taken.unnamed += not names_the_line(f"{reply.text}\n{reply.error}")


_LINES = PROGRAMS.splitlines()
RAISING_LINE = 1 + next(k for k, line in enumerate(_LINES) if "on purpose" in line)


def names_the_line(text: str) -> bool:
    """Whether a failure's report names rank 2 and the line that raised there."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rank = re.search(r"\b(rank|engine)\W{0,12}2\b", plain, re.IGNORECASE)
    line = re.search(rf"(line |:|-> ){RAISING_LINE}\b", plain)
    return rank is not None and line is not None


def measure_interrupt(session: Session, taken: Taken, effort: Effort) -> None:
    """The stop button while ranks are in a collective: the prompt, the next run."""
    say(f"interrupt, {session.tool.name}")
    for _ in range(effort.repeats):
        session.reach("blocks", "blocked", NUM_RANKS)
        time.sleep(SETTLE_S)
        pressed_s = time.monotonic()
        session.kernel.interrupt()
        if session.kernel.finish(PATIENCE_S) is None:
            return
        taken.prompt_s.append(time.monotonic() - pressed_s)
        session.kernel.begin(session.tool.calling("one_all_reduce"))
        reply = session.kernel.finish(PATIENCE_S)
        if reply is None or reply.error:
            return
        taken.again_s.append(time.monotonic() - pressed_s)


def warm_runs(sessions: Sequence[Session], effort: Effort) -> list[Figure]:
    """A cell on warm ranks above an empty cell, all tools in the same rounds."""
    found: list[Figure] = []
    for program, words in (
        ("nothing", "an empty function"),
        ("one_all_reduce", "one small all-reduce"),
    ):
        say(f"warm runs, {words}")
        measures = [
            partial(session.above_empty, session.tool.calling(program))
            for session in sessions
        ]
        name = f"warm run of {words}, above an empty cell"
        names = [session.tool.name for session in sessions[1:]]
        found += beside(name, measures, names, effort)
    return found


def beside(
    name: str,
    measures: Sequence[Callable[[], float]],
    names: Sequence[str],
    effort: Effort,
) -> list[Figure]:
    """Measure the first beside each of the others, those twice a round."""
    for warm_up in measures:
        warm_up()
    ours_s, *rest = in_turn([*measures, *measures[1:]], effort.pairs)
    if not rest:
        return [repeated(name, ours_s)]
    once, again = rest[: len(names)], rest[len(names) :]
    return [
        Extra(ours_s, theirs_s, again_s).figure(name, against=against)
        for theirs_s, again_s, against in zip(once, again, names, strict=True)
    ]


def threads(session: Session, effort: Effort) -> list[Figure]:
    """Ranks as threads beside ranks as processes, both labkit's."""
    say("ranks as threads, labkit")
    session.kernel.run("threaded = Cluster(4, backend='threads', quiet=True)")
    cells = ("threaded.run(one_all_reduce)", "cluster.run(one_all_reduce)")
    measures = [partial(session.above_empty, cell) for cell in cells]
    name, against = "ranks as threads: warm run of one all-reduce", "labkit, processes"
    found = beside(name, measures, [against], effort)
    session.kernel.run(f"num_runs = {effort.pairs}")
    timed = json.loads(session.kernel.run(PROGRAM_ALONE).text)
    extra = Extra(*(tuple(timed[each]) for each in ("threads", "once", "again")))
    name = "ranks as threads: first rank's begin to last rank's end"
    return [*found, extra.figure(name, against=against)]


# Both by the ranks' own clocks, which on one machine are the same clock.
PROGRAM_ALONE = """
import json

def seconds_of(ranks):
    began_s, ended_s = zip(*ranks.run(clocked).results)
    return max(ended_s) - min(began_s)

timed = {"threads": threaded, "once": cluster, "again": cluster}
taken = {name: [] for name in timed}
for number in range(num_runs + 3):
    for name, ranks in timed.items():
        taken[name].append(seconds_of(ranks))
print(json.dumps({name: each[3:] for name, each in taken.items()}))
"""


def stuck(session: Session, effort: Effort) -> list[Figure]:
    """From the first call of a program that cannot go on to the cell's error."""
    found: list[Figure] = []
    for program, num_marks, error, words in (
        ("mismatch", NUM_RANKS, "MismatchError", "mismatched collective"),
        ("absent", NUM_RANKS - 1, "AbsentRankError", "absent rank"),
        ("circle", NUM_RANKS, "CyclicWaitError", "cyclic receive"),
    ):
        say(f"{words}, {session.tool.name}")
        told_s: list[float] = []
        for _ in range(effort.repeats):
            session.kernel.run(session.tool.calling("one_all_reduce"))
            told_s.append(seconds_to_tell(session, program, num_marks, error))
        found.append(repeated(f"{words}, first call to the cell's error", told_s))
    return found


def seconds_to_tell(
    session: Session, program: str, num_marks: int, error: str
) -> float:
    """How long from the first rank's call to the right error.

    Raises:
        RunError: Another error came, or none.
    """
    called_s = session.reach(program, "called", num_marks)
    reply = session.kernel.finish(PATIENCE_S)
    if reply is None or reply.error_at_s is None or error not in reply.error:
        raise RunError(
            f"{program} must end in {error} within {PATIENCE_S:g} s; the cell ended "
            f"in: {reply}. Try it in a notebook."
        )
    return reply.error_at_s - min(called_s)


def kill(session: Session) -> Killed:
    """SIGKILL a kernel whose ranks are in a collective and have children."""
    say(f"kernel killed, {session.tool.name}")
    session.reach("blocks_with_company", "blocked", NUM_RANKS)
    time.sleep(SETTLE_S)
    everything = session.kernel.kill()
    gone_s = processes.seconds_until_gone(everything, PATIENCE_S)
    return Killed(gone_s, len(everything), len(processes.alive(everything)))
