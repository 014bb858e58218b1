"""The doctor: says what this machine can run, what will run where, and what to fix.

It never hangs (each question has a time limit), never needs the network, and never
raises because something is missing: what does not answer is a line of its report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.runtime.checkup import Check, Status, every_check
from labkit.runtime.devices import look
from labkit.view.table import Cell, Table, Tone, table

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
LIMIT_S = 5.0
_STATUSES: tuple[Status, ...] = ("ok", "warn", "fail")
_TONES: dict[Status, Tone] = {"ok": "plain", "warn": "warn", "fail": "bad"}
_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_SIGNS: dict[Status, str] = {"ok": "\u2713", "warn": "!", "fail": "\u2717"}


@dataclass(frozen=True, repr=False)
class Doctor:
    """What was found: shows itself as a table, in a notebook and in a terminal."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        """The worst of all lines."""
        found: list[Status] = ["ok", *(check.status for check in self.checks)]
        return max(found, key=_STATUSES.index)

    @property
    def verdict(self) -> str:
        """The report in one sentence."""
        broken = [check.name for check in self.checks if check.status == "fail"]
        doubtful = [check.name for check in self.checks if check.status == "warn"]
        parts: list[str] = []
        if broken:
            parts.append(f"To fix before a lesson can run: {', '.join(broken)}.")
        if doubtful:
            parts.append(f"Worth a look: {', '.join(doubtful)}.")
        return " ".join(parts) or "Everything that a lesson needs is here."

    def table(self) -> Table:
        """The report as a table; a column of fixes only where there is one."""
        with_fixes = any(check.fix for check in self.checks)
        columns = ["what", "found", "what to do"] if with_fixes else ["what", "found"]
        rows = [
            [check.name, Cell(check.value, _TONES[check.status]), Cell(check.fix)]
            for check in self.checks
        ]
        return table(columns, [row[: len(columns)] for row in rows], self.verdict)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table().html()


def report(*, limit_s: float = LIMIT_S) -> Doctor:
    """Look at everything; what is silent for `limit_s` becomes a line that says so."""
    machine = _ask({"machine": look}, limit_s)["machine"]
    silent: list[Check] = []
    if isinstance(machine, _Silent):
        fix = "its driver may be stuck: try nvidia-smi, and restart the machine"
        silent.append(Check("GPU driver", machine.reason, "warn", fix))
        machine = look(ask_driver=False)
    answers = _ask(every_check(machine), limit_s)
    checks = [_line(name, answer) for name, answer in answers.items()]
    return Doctor((*silent, *checks))


@dataclass(frozen=True)
class _Silent:
    """A question that got no answer."""

    reason: str


def _line(name: str, answer: Check | _Silent) -> Check:
    if isinstance(answer, Check):
        return answer
    return Check(name, answer.reason, "warn", "try again; then look at it by hand")


def _ask(
    questions: Mapping[str, Callable[[], T]], limit_s: float
) -> dict[str, T | _Silent]:
    """Ask all at once, each in a thread of its own, and wait no longer than the limit.

    A question can hang where no time limit reaches: in a name server, a network drive,
    a driver. Its thread is left behind; as a daemon it holds up nobody's exit.
    """
    answers: dict[str, T | _Silent] = {}

    def ask(name: str, question: Callable[[], T]) -> None:
        try:
            answers[name] = question()
        except Exception as error:
            answers[name] = _Silent(f"not told ({type(error).__name__}: {error})")

    threads = [
        threading.Thread(target=ask, args=item, daemon=True)
        for item in questions.items()
    ]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    silent = _Silent(f"no answer within {limit_s:g} s")
    return {name: answers.get(name, silent) for name in questions}


def print_report(console: Console | None = None) -> Doctor:
    """Print the report in colour, and return it."""
    from rich.console import Console
    from rich.text import Text

    found = report()
    out = console or Console()
    out.print(_rich_table(found))
    out.print(Text(found.verdict, style=_STYLES[found.status]))
    return found


def _rich_table(found: Doctor) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        shown.add_column(name, overflow="fold")
    for check in found.checks:
        style = _STYLES[check.status]
        sign = Text(_SIGNS[check.status], style=style)
        # Text, not str: rich would read brackets in a path as its markup.
        shown.add_row(sign, Text(check.name), Text(check.value), Text(check.fix))
    return shown
