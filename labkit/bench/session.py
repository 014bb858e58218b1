"""One tool's ranks, warm, on a kernel of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from labkit.bench import processes
from labkit.bench.kernel import Kernel
from labkit.bench.tools import PROGRAMS, Tool
from labkit.errors import RunError

T = TypeVar("T")
MARK_LIMIT_S = 10.0
RUN_LIMIT_S = 5.0


def say(text: str) -> None:
    """Tell what is being measured; the figures come minutes later."""
    sys.stderr.write(f"ranks: {text}\n")


class Session:
    """A kernel and a tool that has started its ranks there.

    Attributes:
        kernel: The kernel; another one after a hang.
        cold_s: How long it took from starting the ranks to a first all-reduce's result.
        num_hung: How often a run did not come to where it should, and a fresh kernel
            got another try. Only tools with `tries` above 1 get one.
    """

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self.folder = folder
        self.num_hung = 0
        self.cold_s = 0.0
        self.kernel = Kernel(folder)
        try:
            self._retried(self._start)
        except BaseException:
            self.kernel.close()
            raise

    def _start(self) -> None:
        self.kernel.run(PROGRAMS)
        self.kernel.run(self.tool.prepare)
        self.cold_s = self.kernel.run(self.tool.start).seconds
        self.kernel.descendants()

    def _retried(self, attempt: Callable[[], T]) -> T:
        for _ in range(self.tool.tries - 1):
            try:
                return attempt()
            except RunError as error:
                say(f"{self.tool.name} hung; once more on a fresh kernel ({error})")
                self._renew()
                if attempt != self._start:
                    self._start()
        return attempt()

    def _renew(self) -> None:
        self.num_hung += 1
        self.kernel.close()
        self.kernel = Kernel(self.folder)

    def above_empty(self, code: str) -> float:
        """How much longer a cell takes than an empty one just before it."""
        return self._retried(lambda: self._above_empty(code))

    def _above_empty(self, code: str) -> float:
        empty_s = self.kernel.run("pass", RUN_LIMIT_S).seconds
        return self.kernel.run(code, RUN_LIMIT_S).seconds - empty_s

    def reach(self, program: str, mark: str, number: int) -> list[float]:
        """Begin a program and wait until `number` ranks have left a mark: the times."""
        return self._retried(lambda: self._reach(program, mark, number))

    def _reach(self, program: str, mark: str, number: int) -> list[float]:
        for path in self.folder.glob(f"{mark}-?"):
            path.unlink()
        self.kernel.begin(self.tool.calling(program))
        deadline_s = time.monotonic() + MARK_LIMIT_S
        while len(paths := list(self.folder.glob(f"{mark}-?"))) < number:
            ended = self.kernel.finish(processes.POLL_S)
            if ended is not None or time.monotonic() > deadline_s:
                raise RunError(
                    f"{number} ranks of {self.tool.name} must come to {mark!r} within "
                    f"{MARK_LIMIT_S:g} s; {len(paths)} did. The cell said: "
                    f"{ended or 'nothing'}. Try a machine that is less busy."
                )
        return [float(path.read_text()) for path in paths]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kernel.close()
