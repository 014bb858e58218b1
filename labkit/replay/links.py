"""Shares links between the transfers that move at the same time: max-min fairly.

A transfer that moves at rate r does r of itself a second: 1 / moving_s at most, and it
takes r * bytes of every link that it lists. Before: transfers that move. After: each
one's rate, so that no link carries more than it can, and no transfer could be faster
unless one that is no faster were slowed down.

[Note: what is fair] "Fast" is measured in bytes a second on the transfer's tightest
link, the one that it would take longest to cross alone. Two transfers that are squeezed
through one NIC get half of it each, however many bytes they have elsewhere:

    level   rises from 0, the same for all
    rate    level * weight, weight = 1 / bytes on the tightest link
    stop    a transfer at its full rate; those on a link that is full

That is weighted max-min fairness by progressive filling (Bertsekas and Gallager, Data
Networks, section 6.5.2). Links on which only one transfer moves cannot be the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from labkit.replay.machine import Link
from labkit.replay.transfers import Queue, Transfer

# A link is taken for overloaded only beyond rounding.
ROUNDING = 1e-9
Loads: TypeAlias = tuple[tuple[Link, float], ...]


def keep_contended(
    loads: Iterable[tuple[Transfer, Loads]], capacity: Callable[[Link], float]
) -> dict[int, float]:
    """Leave each transfer only the links on which it may be slowed down.

    What one queue runs, runs one at a time. A link that carries the heaviest of every
    queue at full rate slows down none.

    Args:
        loads: Each transfer with the bytes that it puts on links; `moving_s` is set.
        capacity: Bytes per second of a link.

    Returns:
        The capacity of each contended link, by its number.
    """
    listed = [(transfer, links) for transfer, links in loads if links]
    most: dict[Link, dict[Queue | Transfer, float]] = {}
    for transfer, links in listed:
        for link, num_bytes in links:
            full = num_bytes / transfer.moving_s
            of_queue = most.setdefault(link, {})
            queue = transfer.queue or transfer
            of_queue[queue] = max(of_queue.get(queue, 0.0), full)
    contended = sorted(
        link
        for link, of_queue in most.items()
        if sum(sorted(of_queue.values())) > capacity(link) * (1 + ROUNDING)
    )
    number = {link: k for k, link in enumerate(contended)}
    capacities = {k: capacity(link) for link, k in number.items()}
    for transfer, links in listed:
        transfer.links = tuple((number[k], n) for k, n in links if k in number)
        transfer.weight = _weight(links, capacity)
    return capacities


def _weight(links: Loads, capacity: Callable[[Link], float]) -> float:
    """1 / bytes on the tightest link, contended or not. See [Note: what is fair]."""
    _, num_bytes = max((n / capacity(k), n) for k, n in links)
    return 1 / num_bytes


class Links:
    """The links that transfers share, and who moves on them now."""

    def __init__(self, capacities: dict[int, float]) -> None:
        """`capacities` are bytes per second by link."""
        self._capacities = capacities
        self._movers: dict[int, dict[int, Transfer]] = {k: {} for k in capacities}
        self._changed: dict[int, None] = {}

    def add(self, transfer: Transfer, now_s: float) -> None:
        """A transfer begins to move; `refill` gives it a rate."""
        transfer.since_s = now_s
        for link, _ in transfer.links:
            self._movers[link][transfer.index] = transfer
            self._changed[link] = None

    def remove(self, transfer: Transfer) -> None:
        """A transfer has moved all its bytes."""
        for link, _ in transfer.links:
            del self._movers[link][transfer.index]
            self._changed[link] = None

    def on(self, link: int) -> tuple[Transfer, ...]:
        """Who moves on a link now."""
        return tuple(self._movers[link].values())

    def refill(self, now_s: float) -> list[Transfer]:
        """Set the rates anew where somebody came or went; those that have changed."""
        if not self._changed:
            return []
        movers = self._touched()
        self._changed.clear()
        changed: list[Transfer] = []
        for transfer, rate, is_full in _fill(movers, self._capacities):
            if rate != transfer.rate:
                transfer.left -= (now_s - transfer.since_s) * transfer.rate
                transfer.left = max(transfer.left, 0.0)
                transfer.since_s, transfer.rate = now_s, rate
                transfer.is_full_rate = is_full
                changed.append(transfer)
        return changed

    def _touched(self) -> list[Transfer]:
        """All whom a change can reach through shared links, in their order."""
        found: dict[int, Transfer] = {}
        seen, todo = set(self._changed), list(self._changed)
        while todo:
            for transfer in self.on(todo.pop()):
                if transfer.index not in found:
                    found[transfer.index] = transfer
                    new = [link for link, _ in transfer.links if link not in seen]
                    seen.update(new)
                    todo += new
        return [found[index] for index in sorted(found)]


def _fill(
    movers: list[Transfer], capacities: dict[int, float]
) -> list[tuple[Transfer, float, bool]]:
    """Each transfer with its fair rate, and whether that is its full rate."""
    links = _Filling(movers, capacities)
    # Who reaches full rate at the lowest level comes last, and is popped first.
    waiting = sorted(
        ((1 / (t.moving_s * t.weight), t.index, t) for t in movers), reverse=True
    )
    rates: dict[int, tuple[float, bool]] = {}
    while waiting:
        level, link = links.tightest()
        is_full = link is None or waiting[-1][0] <= level
        stopped = [waiting.pop()[1]] if is_full else list(links.on[link or 0])
        for index in stopped:
            if index not in rates:
                transfer = links.movers[index]
                rate = 1 / transfer.moving_s if is_full else level * transfer.weight
                rates[index] = rate, is_full
                links.stop(transfer, rate)
    return [(transfer, *rates[transfer.index]) for transfer in movers]


class _Filling:
    """The links of one filling: what they have left, and whose level still rises."""

    def __init__(self, movers: list[Transfer], capacities: dict[int, float]) -> None:
        self.movers = {transfer.index: transfer for transfer in movers}
        # By link and transfer: the bytes a second that one level more costs.
        self.on: dict[int, dict[int, float]] = {}
        for transfer in movers:
            for link, num_bytes in transfer.links:
                load = num_bytes * transfer.weight
                self.on.setdefault(link, {})[transfer.index] = load
        self.on = {k: loads for k, loads in sorted(self.on.items()) if len(loads) > 1}
        self._room = {link: capacities[link] for link in self.on}
        self._full_at = {
            link: self._room[link] / sum(loads.values())
            for link, loads in self.on.items()
        }
        self._level = 0.0

    def tightest(self) -> tuple[float, int | None]:
        """The level at which the next link is full, and which link."""
        if not self._full_at:
            return 0.0, None
        level, link = min(zip(self._full_at.values(), self._full_at, strict=True))
        # It never falls, but for rounding.
        self._level = max(self._level, level)
        return self._level, link

    def stop(self, transfer: Transfer, rate: float) -> None:
        """A transfer keeps this rate from now on."""
        for link, num_bytes in transfer.links:
            loads = self.on.get(link)
            if loads is None:
                continue
            del loads[transfer.index]
            if loads:
                self._room[link] = max(0.0, self._room[link] - rate * num_bytes)
                self._full_at[link] = self._room[link] / sum(loads.values())
            else:
                del self.on[link], self._room[link], self._full_at[link]
