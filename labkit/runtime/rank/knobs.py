"""Make a rank slow or make it fail, at its own transfers: cluster.slow, cluster.fail.

A rank of factor 2 takes twice as long for what it computes between two transfers: it
sleeps before the next one for as long as it had worked since the last.
"""

from __future__ import annotations

import time
from collections import Counter

from labkit.errors import InjectedFailure
from labkit.record.events import Kind
from labkit.runtime.rank.messages import Knobs


class KnobHooks:
    """The hooks of one rank's recording groups."""

    def __init__(self) -> None:
        self._knobs = Knobs()
        self._count: Counter[str] = Counter()
        self._worked_since_s = time.monotonic()

    def start(self, knobs: Knobs) -> None:
        """A job begins under these knobs."""
        self._knobs = knobs
        self._count.clear()
        self._worked_since_s = time.monotonic()

    def before_issue(self, kind: Kind) -> None:
        """Called before each transfer: be slow, or fail."""
        self.be_slow()
        self._count[kind] += 1
        if (kind, self._count[kind]) == (self._knobs.fail_kind, self._knobs.fail_at):
            raise InjectedFailure(
                f"this rank was told to fail at {kind}#{self._knobs.fail_at}, by "
                "cluster.fail; cluster.heal() takes that back"
            )

    def be_slow(self) -> None:
        """Sleep in proportion to the work done since the last transfer."""
        if self._knobs.slow_factor > 1:
            worked_s = time.monotonic() - self._worked_since_s
            time.sleep(worked_s * (self._knobs.slow_factor - 1))
        self._worked_since_s = time.monotonic()

    def after_wait(self) -> None:
        """Called when a wait is over: work begins."""
        self._worked_since_s = time.monotonic()
