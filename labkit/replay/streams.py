"""One rank while it is replayed: what is known of its events, and what its streams do.

A stream does in order what lanes give it. It stands still where it needs a time that is
not known yet, and is run again when it is. What is computed is only maxima and sums of
known times, so the order in which streams are run changes nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from math import inf
from typing import Protocol

from labkit.errors import UsageError
from labkit.record.program import Comm, Event, HostRead, Mark, Wait, Work
from labkit.replay.prices import Cost, Prices
from labkit.replay.transfers import HOST_SIDE, Process, Transfer

NOT_YET = -1.0
# What lanes give to streams.
GIVEN = (Work, Comm, Wait, Mark, HostRead)


class Network(Protocol):
    """What streams hand transfers to; `awake` are those that can go on."""

    @property
    def awake(self) -> deque[Process]:
        """Who is to be run next."""
        ...

    def arrive(self, transfer: Transfer, at_s: float) -> None:
        """One of a transfer's ranks has come."""
        ...


class Point:
    """A Mark: when its stream came to it (None until then), and who waits for that."""

    __slots__ = ("ended_s", "mark", "waiters")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.ended_s: float | None = None
        self.waiters: list[Process] = []


class Rank:
    """What is known of one rank's events.

    `host_s`, `start_s` and `end_s` are, event by event, the time of the lane when it
    goes on, and when that which the event does or waits for begins and ends; NOT_YET
    (inf for `start_s`) before they are known, or where there is no such time. `others`
    are the positions of all events but Work.
    """

    def __init__(
        self,
        number: int,
        events: tuple[Event, ...],
        transfers: dict[int, Transfer],
        prices: Prices,
        network: Network,
    ) -> None:
        self.number = number
        self.events = events
        self.transfers = transfers
        self.network = network
        self.is_cpu = prices.is_cpu
        self.comm_launch_s = prices.comm_launch_s
        self.costs: list[Cost] = prices.works(events)
        self.host_s = [NOT_YET] * len(events)
        self.start_s = [inf] * len(events)
        self.end_s = [NOT_YET] * len(events)
        self.others = [k for k, e in enumerate(events) if type(e) is not Work]
        self.points: dict[int, Point] = {}
        self.streams: dict[tuple[int, int], Stream] = {}
        self._batches: defaultdict[int, list[Comm]] = defaultdict(list)
        for position in self.others:
            event = events[position]
            if type(event) is Mark:
                self.points[event.id] = Point(event)
            elif type(event) is Comm and event.batch is not None:
                self._batches[event.batch].append(event)
        self._batch_times: defaultdict[int, list[float]] = defaultdict(list)

    def stream(self, lane: int, number: int) -> Stream:
        """The stream that a lane means.

        On a CPU the lane computes. What a stream was given before means there: by the
        same lane, since each computes by itself.
        """
        key = (lane if self.is_cpu else 0, number)
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = Stream(self, number)
        return found

    def target(self, wait: Wait) -> Transfer | Point:
        """What a wait waits for.

        Raises:
            UsageError: It is not in the record.
        """
        is_mark = wait.cause == "event"
        found = (self.points if is_mark else self.transfers).get(wait.target)
        if found is None:
            what = "mark" if is_mark else "transfer"
            raise UsageError(
                f"a wait must be for something in the record; rank {self.number} waits "
                f"for {what} {wait.target} (event {wait.seq}), which is not there. "
                "Record again"
            )
        return found

    def holds_lane(self, wait: Wait) -> bool:
        """Whether a wait holds up its lane, or only its stream.

        See [Note: streams] in `labkit.record.program`.
        """
        if wait.who == "stream":
            return False
        target = self.target(wait)
        is_host_side = isinstance(target, Point) or target.kind in HOST_SIDE
        return self.is_cpu or is_host_side

    def goes_to_stream(self, position: int) -> bool:
        """Whether a stream does this event; else the lane does by itself."""
        event = self.events[position]
        match event:
            case Work():
                return self.costs[position][1] is not None
            case Comm():
                return event.kind != "new_group"
            case Wait():
                return not self.holds_lane(event)
            case _:
                return isinstance(event, Mark | HostRead)

    def batch(self, comm: Comm) -> list[Comm]:
        """What the rank issued as one with a transfer, which may be alone."""
        return [comm] if comm.batch is None else self._batches[comm.batch]

    def arrive(self, comm: Comm, at_s: float) -> None:
        """The rank comes to a transfer: with all of its batch, if it has one."""
        if comm.batch is None:
            self.network.arrive(self.transfers[comm.id], at_s)
            return
        batch, times = self.batch(comm), self._batch_times[comm.batch]
        times.append(at_s)
        if len(times) == len(batch):
            for each in batch:
                self.network.arrive(self.transfers[each.id], max(times))


class Stream:
    """Does what it was given, in order. `ready_s` is when it has done the last of it.

    Attributes:
        holder: What it waits for now.
        readers: Who waits until the stream has done an event, by the event's position.
    """

    __slots__ = (
        "_early", "_turns", "given", "holder", "is_idle", "number", "rank", "readers",
        "ready_s",
    )  # fmt: skip

    def __init__(self, rank: Rank, number: int) -> None:
        self.rank = rank
        self.number = number
        self.ready_s = 0.0
        self.holder: Transfer | Point | None = None
        self.readers: dict[int, Process] = {}
        # Whether what a lane gives is done at once.
        self.is_idle = True
        # What it has yet to do, by position.
        self.given: deque[int] = deque()
        self._turns: deque[int] | None = None
        self._early: set[int] = set()

    def expect(self, turns: Iterable[int]) -> None:
        """Several lanes will give it these events: it does them in this order."""
        self._turns = deque(turns)
        self.is_idle = False

    @property
    def has_turns(self) -> bool:
        """Whether several lanes give it events."""
        return self._turns is not None

    def give(self, position: int) -> None:
        """A lane gives it an event, at the `host_s` of that."""
        if self.is_idle and self._do(position):
            return
        if self._turns is None:
            self.given.append(position)
            self.is_idle = False
        else:
            self._early.add(position)
            while self._turns and self._turns[0] in self._early:
                self.given.append(self._turns.popleft())
            if self.holder is None:
                self.run()

    @property
    def next(self) -> int | None:
        """The position of the event that it waits for a lane to give it; else None."""
        return self._turns[0] if self._turns else None

    def run(self) -> None:
        """Do what was given as far as times are known."""
        self.holder = None
        while self.given:
            position = self.given[0]
            if not self._do(position):
                return
            self.given.popleft()
            if position in self.readers:
                self.rank.network.awake.append(self.readers.pop(position))
        self.is_idle = self._turns is None

    def _do(self, position: int) -> bool:
        """Do one event; False where it must wait for a time."""
        rank, event = self.rank, self.rank.events[position]
        at_s = rank.host_s[position]
        begin_s = end_s = at_s if at_s > self.ready_s else self.ready_s
        if type(event) is Work:
            end_s += rank.costs[position][1] or 0.0
        elif type(event) is Comm:
            rank.arrive(event, begin_s)
        elif type(event) is Wait:
            target = rank.target(event)
            if target.ended_s is None:
                self.holder = target
                target.waiters.append(self)
                return False
            end_s = max(begin_s, target.ended_s)
        elif type(event) is Mark:
            point = rank.points[event.id]
            point.ended_s = begin_s
            rank.network.awake.extend(point.waiters)
            point.waiters.clear()
        rank.start_s[position], rank.end_s[position] = begin_s, end_s
        self.ready_s = end_s
        return True
