"""Runs for the newest of what it is given; what came before that is dropped.

A slider tells of every position that it passes. Drawing takes longer than passing, so
each position waits a moment, and only the newest one is drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

PAUSE_S = 0.005  # Long enough for what has already come to be read.


class Latest(Generic[Value]):
    """`give` values; `run` is called with the newest, never twice for one."""

    def __init__(
        self,
        run: Callable[[Value], object],
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Make one that runs `run` a moment later.

        Args:
            run: What is done with the newest value.
            later: Calls a function a moment later; by default the running event loop
                does, and where there is none, nothing waits.
        """
        self._run = run
        self._later = later or _soon
        self._waiting: list[Value] = []

    def give(self, value: Value) -> None:
        """Hand over a value; it replaces one that is still waiting."""
        is_first = not self._waiting
        self._waiting[:] = [value]
        if is_first:
            self._later(self._take)

    def _take(self) -> None:
        value = self._waiting.pop()
        self._run(value)


def _soon(call: Callable[[], None]) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        call()
    else:
        loop.call_later(PAUSE_S, call)
