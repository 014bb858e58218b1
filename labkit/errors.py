"""Every error that labkit raises, in one tree.

    LabkitError
    ├── UsageError          (ValueError)    a call was asked for something impossible
    ├── TravelError         (TypeError)     an object cannot be sent to or from a rank
    ├── StartError          (RuntimeError)  ranks could not be started
    ├── ClusterClosed       (RuntimeError)  the cluster was closed before this call
    ├── RunError            (RuntimeError)  a run did not end well on every rank
    │   ├── RankFailed          a rank raised
    │   ├── RankDied            a rank's process ended
    │   └── StuckError          the ranks' calls do not fit together
    │       ├── MismatchError       the k-th calls on a group differ
    │       ├── AbsentRankError     a rank never makes a call that others wait for
    │       ├── CyclicWaitError     ranks wait for each other in a circle
    │       └── GroupOrderError     ranks use two groups in different orders
    ├── InjectedFailure     (RuntimeError)  raised on a rank by `cluster.fail`
    └── CheckFailed         (AssertionError)  an exercise's check found a fault

    KeyboardInterrupt
    └── RunInterrupted      the learner interrupted a run

A message has three parts: what must hold; what was seen, with both numbers and the
rank; what to try.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

_WIDTH = 100  # A notebook's page is about as wide, and breaks longer lines mid-word.


def _page(text: str) -> list[str]:
    """A message as IPython is to show it: no frames, its long lines folded."""
    return [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    ]


class LabkitError(Exception):
    """Base of every error that labkit raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the message alone: the frames would be labkit's own."""
        return _page(f"{type(self).__name__}: {self}")


class UsageError(LabkitError, ValueError):
    """A call was asked for something that cannot be done."""


class TravelError(LabkitError, TypeError):
    """An object cannot be sent to a rank, or back from one."""


class StartError(LabkitError, RuntimeError):
    """Ranks could not be started."""


class ClusterClosed(LabkitError, RuntimeError):
    """The cluster was closed before this call."""


class RunError(LabkitError, RuntimeError):
    """A run did not end well on every rank.

    `events` are what each rank had recorded by then.
    """

    events: Sequence[Sequence[Any]] = ()


class RankFailed(RunError):
    """A rank raised: its traceback comes first.

    `rank` is the rank that raised first; `exception` what it raised, if that could
    travel.
    """

    def __init__(
        self, message: str, *, rank: int, exception: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.exception = exception

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the message and the rank: for copies, and other processes."""
        return partial(type(self), rank=self.rank, exception=self.exception), self.args


class RankDied(RunError):
    """A rank's process ended before it had finished."""


class StuckError(RunError):
    """The ranks' communication calls do not fit together.

    `finding` holds the calls of each rank; `details` lists each rank's last ten.
    """

    def __init__(
        self, message: str, *, finding: object = None, details: str = ""
    ) -> None:
        super().__init__(message)
        self.finding = finding
        self.details = details


class MismatchError(StuckError):
    """The k-th calls on a group differ between ranks."""


class AbsentRankError(StuckError):
    """A rank ended, or was never asked to run, while others wait for its call."""


class CyclicWaitError(StuckError):
    """Ranks wait for each other in a circle."""


class GroupOrderError(StuckError):
    """Ranks use two groups in different orders and wait for each other."""


class InjectedFailure(LabkitError, RuntimeError):
    """Raised on a rank because `cluster.fail` asked for it."""


class CheckFailed(LabkitError, AssertionError):
    """An exercise's check found a fault.

    `shown` says that a table above tells it all: the page need not say it twice.
    """

    def __init__(self, message: str, *, shown: bool = False) -> None:
        super().__init__(message)
        self.shown = shown

    def _render_traceback_(self) -> list[str]:
        """The headline alone where the rest stands in a table."""
        if not self.shown:
            return super()._render_traceback_()
        headline = str(self).partition("\n")[0]
        return _page(f"{type(self).__name__}: {headline}: see the table above")


class RunInterrupted(KeyboardInterrupt):
    """The learner interrupted a run; the message says what each rank was doing."""

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the message alone."""
        return _page(f"Interrupted: {self}")
