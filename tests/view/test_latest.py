"""Only the newest of what waits is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from labkit.view.latest import Latest


def test_what_is_stale_is_dropped() -> None:
    ran: list[int] = []
    waiting: list[Callable[[], None]] = []
    newest = Latest(ran.append, waiting.append)
    for value in range(60):
        newest.give(value)
    assert (ran, len(waiting)) == ([], 1)
    waiting.pop()()
    assert ran == [59]
    newest.give(60)
    waiting.pop()()
    assert ran == [59, 60]


def test_what_comes_while_it_runs_is_next() -> None:
    ran: list[int] = []
    waiting: list[Callable[[], None]] = []

    def slow(value: int) -> None:
        ran.append(value)
        if value == 1:
            newest.give(2)
            newest.give(3)

    newest = Latest(slow, waiting.append)
    newest.give(1)
    while waiting:
        waiting.pop()()
    assert ran == [1, 3]


def test_in_an_event_loop_it_lets_others_go_first() -> None:
    ran: list[int] = []

    async def turn() -> None:
        newest = Latest(ran.append)
        for value in range(5):
            newest.give(value)
            await asyncio.sleep(0)
        assert ran == []
        await asyncio.sleep(0.05)

    asyncio.run(turn())
    assert ran == [4]


def test_without_a_loop_nothing_waits() -> None:
    ran: list[int] = []
    Latest(ran.append).give(7)
    assert ran == [7]
