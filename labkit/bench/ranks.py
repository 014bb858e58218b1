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
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.bench import processes
from labkit.bench.extra import Extra, in_turn
from labkit.bench.figures import Figure
from labkit.bench.kernel import Kernel, Reply
from labkit.bench.pairs import MIN_PAIRS
from labkit.bench.taken import PATIENCE_S, Killed, Taken, compare, repeated
from labkit.bench.tools import LABKIT, NUM_RANKS, PROGRAMS, Tool, rivals
from labkit.errors import RunError

MARK_LIMIT_S = 30.0
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
    """Measure the first tool beside each of the others. Leaves nothing behind."""
    with TemporaryDirectory(prefix="labkit-bench-") as folder:
        bench = Bench(Path(folder), effort)
        taken = [bench.take_apart(tool) for tool in tools]
        with ExitStack() as stack:
            warm = [stack.enter_context(bench.started(each)) for each in taken]
            found = bench.warm_runs(taken, warm)
            found += bench.threads(warm[0])
            found += bench.stuck(warm[0], tools[0])
            for kernel, each in zip(warm, taken, strict=True):
                say(f"SIGKILL of the kernel, {each.tool.name}")
                each.killed = bench.kill(kernel, each.tool)
    return [*compare(taken[0], taken[1:]), *found]


def say(text: str) -> None:
    """Tell what is being measured; the figures come minutes later."""
    sys.stderr.write(f"ranks: {text}\n")


class Bench:
    """Runs the programs on kernels; keeps their files in one folder."""

    def __init__(self, folder: Path, effort: Effort) -> None:
        self.folder = folder
        self.effort = effort

    @contextmanager
    def started(self, taken: Taken) -> Generator[Kernel]:
        """A fresh kernel with warm ranks; the cold start is timed."""
        say(f"cold start, {taken.tool.name}")
        with Kernel(self.folder) as kernel:
            kernel.run(PROGRAMS)
            kernel.run(taken.tool.prepare)
            taken.cold_s.append(kernel.run(taken.tool.start).seconds)
            kernel.descendants()
            yield kernel

    def take_apart(self, tool: Tool) -> Taken:
        """Measure what a tool's kernel does not survive, or not well."""
        taken = Taken(tool)
        for measurement in (self.raises, self.interrupt):
            with self.started(taken) as kernel:
                if tool.keeps_ranks:
                    held = processes.memory_bytes(kernel.descendants())
                    taken.memory_bytes.append(held)
                say(f"{measurement.__name__}, {tool.name}")
                measurement(kernel, taken)
        return taken

    def raises(self, kernel: Kernel, taken: Taken) -> None:
        """Rank 2 raises while the others wait: when the cell says so, and what."""
        for _ in range(self.effort.repeats):
            reply = self._run(kernel, taken.tool, "raises", "raised", num_marks=1)
            if reply is None or reply.error_at_s is None:
                return
            [raised_at_s] = self._marks("raised", 1)
            taken.raised_s.append(reply.error_at_s - raised_at_s)
            taken.unnamed += not names_the_line(f"{reply.text}\n{reply.error}")

    def interrupt(self, kernel: Kernel, taken: Taken) -> None:
        """The stop button while ranks are in a collective: the prompt, the next run."""
        for _ in range(self.effort.repeats):
            self._clear("blocked")
            kernel.begin(taken.tool.calling("blocks"))
            self._marks("blocked", NUM_RANKS)
            time.sleep(SETTLE_S)
            pressed_s = time.monotonic()
            kernel.interrupt()
            if kernel.finish(PATIENCE_S) is None:
                return
            taken.prompt_s.append(time.monotonic() - pressed_s)
            kernel.begin(taken.tool.calling("one_all_reduce"))
            reply = kernel.finish(PATIENCE_S)
            if reply is None or reply.error:
                return
            taken.again_s.append(time.monotonic() - pressed_s)

    def warm_runs(
        self, taken: Sequence[Taken], kernels: Sequence[Kernel]
    ) -> list[Figure]:
        """A cell on warm ranks above an empty cell, all tools in the same rounds."""
        found = []
        for program, words in (
            ("nothing", "an empty function"),
            ("one_all_reduce", "one small all-reduce"),
        ):
            say(f"warm runs, {words}")
            measures = [
                partial(above_empty, kernel, each.tool.calling(program))
                for each, kernel in zip(taken, kernels, strict=True)
            ]
            name = f"warm run of {words}, above an empty cell"
            found += self._beside(name, measures, [t.tool.name for t in taken])
        return found

    def _beside(
        self, name: str, measures: list[Callable[[], float]], names: list[str]
    ) -> list[Figure]:
        """Measure the first beside each of the others, those twice a round."""
        for each in measures:
            each()
        ours_s, *rest = in_turn([*measures, *measures[1:]], self.effort.pairs)
        if not rest:
            return [repeated(name, list(ours_s))]
        half = len(rest) // 2
        return [
            Extra(ours_s, theirs_s, again_s).figure(name, against=against)
            for theirs_s, again_s, against in zip(
                rest[:half], rest[half:], names[1:], strict=True
            )
        ]

    def threads(self, kernel: Kernel) -> list[Figure]:
        """Ranks as threads beside ranks as processes; labkit's own kernel."""
        say("threads, labkit")
        kernel.run("threaded = Cluster(4, backend='threads', quiet=True)")
        cells = ("threaded.run(one_all_reduce)", "cluster.run(one_all_reduce)")
        measures = [partial(above_empty, kernel, cell) for cell in cells]
        against = ["", "labkit, processes"]
        name = "ranks as threads: warm run of one small all-reduce"
        found = self._beside(name, list(measures), against)
        kernel.run(f"num_runs = {self.effort.pairs}")
        timed = json.loads(kernel.run(PROGRAM_ALONE).text)
        extra = Extra(*(tuple(timed[each]) for each in ("threads", "once", "again")))
        name = "ranks as threads: the 4-rank program alone"
        return [*found, extra.figure(name, against="labkit, processes")]

    def stuck(self, kernel: Kernel, tool: Tool) -> list[Figure]:
        """From the first call of a program that cannot go on to the cell's error."""
        found = []
        for program, num_marks, words in (
            ("mismatch", NUM_RANKS, "mismatched collective"),
            ("absent", NUM_RANKS - 1, "absent rank"),
            ("circle", NUM_RANKS, "cyclic receive"),
        ):
            say(f"{words}, {tool.name}")
            measure = partial(self._told_s, kernel, tool, program, num_marks)
            told_s = [measure() for _ in range(self.effort.repeats)]
            found.append(repeated(f"{words}, first call to the cell's error", told_s))
        return found

    def _told_s(
        self, kernel: Kernel, tool: Tool, program: str, num_marks: int
    ) -> float:
        kernel.run(tool.calling("one_all_reduce"))
        reply = self._run(kernel, tool, program, "called", num_marks)
        if reply is None or reply.error_at_s is None:
            raise RunError(
                f"{program} must be told; no error came within {PATIENCE_S:g} s. Try "
                "it in a notebook."
            )
        return reply.error_at_s - min(self._marks("called", num_marks))

    def kill(self, kernel: Kernel, tool: Tool) -> Killed:
        """SIGKILL a kernel whose ranks are in a collective, with children of theirs."""
        self._clear("blocked")
        kernel.begin(tool.calling("blocks_with_company"))
        self._marks("blocked", NUM_RANKS)
        time.sleep(SETTLE_S)
        everything = kernel.kill()
        gone_s = processes.seconds_until_gone(everything, PATIENCE_S)
        return Killed(gone_s, len(everything), len(processes.alive(everything)))

    def _run(
        self, kernel: Kernel, tool: Tool, program: str, mark: str, num_marks: int
    ) -> Reply | None:
        """Run a program that leaves marks; None if the cell did not end."""
        self._clear(mark)
        kernel.begin(tool.calling(program))
        self._marks(mark, num_marks)
        return kernel.finish(PATIENCE_S)

    def _clear(self, name: str) -> None:
        for path in self.folder.glob(f"{name}-?"):
            path.unlink()

    def _marks(self, name: str, number: int) -> list[float]:
        """The times that ranks have left under a name, once there are so many."""
        deadline_s = time.monotonic() + MARK_LIMIT_S
        while len(paths := list(self.folder.glob(f"{name}-?"))) < number:
            if time.monotonic() > deadline_s:
                raise RunError(
                    f"{number} ranks must come to {name!r}; {len(paths)} did within "
                    f"{MARK_LIMIT_S:g} s. Try the benchmark on a machine less busy."
                )
            time.sleep(processes.POLL_S)
        return [float(path.read_text()) for path in paths]


# On the processes, from the first rank's beginning to the last rank's end.
PROGRAM_ALONE = """
import json
from labkit.comm.groups.threads import run_threads
from labkit.record.recorder import Recorder

def on_threads():
    recorders = [Recorder() for rank in range(4)]
    began_s = time.perf_counter()
    outcomes = run_threads(4, lambda rank: one_all_reduce(), recorders=recorders)
    assert [outcome.value for outcome in outcomes] == [4.0] * 4
    return time.perf_counter() - began_s

def on_processes():
    began_s, ended_s = zip(*cluster.run(clocked).results)
    return max(ended_s) - min(began_s)

timed = {"threads": on_threads, "once": on_processes, "again": on_processes}
taken = {name: [] for name in timed}
for number in range(num_runs + 3):
    for name, measure in timed.items():
        taken[name].append(measure())
print(json.dumps({name: each[3:] for name, each in taken.items()}))
"""


def above_empty(kernel: Kernel, code: str) -> float:
    """How much longer a cell takes than an empty one just before it."""
    empty_s = kernel.run("pass").seconds
    return kernel.run(code).seconds - empty_s


_LINES = PROGRAMS.splitlines()
RAISING_LINE = 1 + next(k for k, line in enumerate(_LINES) if "on purpose" in line)


def names_the_line(text: str) -> bool:
    """Whether a failure's report names rank 2 and the line that raised there."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rank = re.search(r"\b(rank|engine)\W{0,12}2\b", plain, re.IGNORECASE)
    line = re.search(rf"(line |:|-> ){RAISING_LINE}\b", plain)
    return rank is not None and line is not None
