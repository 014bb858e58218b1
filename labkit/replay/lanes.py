"""Follows the host threads of a rank through their events, as far as times are known.

    lane      launch, launch, issue, .... host read ........ | go on
    stream          work......, work..., wait for transfer...
    network                                transfer .......

A lane stands still where it needs a time that is not known yet, and is run again when
it is. See `labkit.replay.streams` for what it gives its streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from labkit.record.program import Alloc, Comm, Free, HostRead, Mark, Wait, Work
from labkit.replay.streams import GIVEN, NOT_YET, Point, Rank, Stream
from labkit.replay.transfers import Transfer


def lanes_of(rank: Rank) -> list[Lane]:
    """The lanes of a rank, which all begin at 0. An Alloc is the last lane's before."""
    positions: defaultdict[int, list[int]] = defaultdict(list)
    lane = 0
    for position, event in enumerate(rank.events):
        if not isinstance(event, Alloc | Free):
            lane = event.lane
        positions[lane].append(position)
    if len(positions) > 1 and not rank.is_cpu:
        _set_turns(rank)
    return [Lane(rank, number, positions[number]) for number in sorted(positions)]


def _set_turns(rank: Rank) -> None:
    """Where several lanes give a stream events, it does them in the order of `seq`."""
    given: defaultdict[int, list[int]] = defaultdict(list)
    lanes: defaultdict[int, set[int]] = defaultdict(set)
    for position, event in enumerate(rank.events):
        if isinstance(event, GIVEN) and rank.goes_to_stream(position):
            given[event.stream].append(position)
            lanes[event.stream].add(event.lane)
    for number, positions in given.items():
        if len(lanes[number]) > 1:
            rank.stream(0, number).expect(positions)


class Lane:
    """A host thread of a rank.

    Attributes:
        rank: The rank.
        number: The lane.
        positions: Where its events are among the rank's.
        at: How many of them it has done.
        now_s: Its time.
        holder: What it waits for now.
    """

    def __init__(self, rank: Rank, number: int, positions: list[int]) -> None:
        self.rank = rank
        self.number = number
        self.positions = positions
        self.at = 0
        self.now_s = 0.0
        self.holder: Transfer | Point | Stream | None = None
        self._steps: dict[type, Callable[[int], bool]] = {
            Work: self._compute,
            Comm: self._issue,
            Wait: self._wait,
            Mark: self._give,
            HostRead: self._read,
        }

    def run(self) -> None:
        """Take events until one needs a time that is not known yet."""
        self.holder = None
        events, positions = self.rank.events, self.positions
        while self.at < len(positions):
            position = positions[self.at]
            step = self._steps.get(type(events[position]))
            if step is None:
                self.rank.host_s[position] = self.now_s
            elif not step(position):
                return
            self.at += 1

    def _stream(self, position: int) -> Stream:
        event = self.rank.events[position]
        assert isinstance(event, GIVEN)
        return self.rank.stream(self.number, event.stream)

    def _compute(self, position: int) -> bool:
        """Work, and all that follows it on the same stream."""
        stream = self._stream(position)
        was_given = self.rank.host_s[position] != NOT_YET
        if was_given or not stream.is_idle:
            return self._compute_later(position, stream)
        rank, positions, number = self.rank, self.positions, stream.number
        events, costs, is_cpu = rank.events, rank.costs, rank.is_cpu
        now_s, ready_s, at = self.now_s, stream.ready_s, self.at
        while at < len(positions):
            position = positions[at]
            event = events[position]
            if type(event) is not Work or event.stream != number:
                break
            host_s, device_s = costs[position]
            begin_s, now_s = now_s, now_s + host_s
            if device_s is None:
                end_s = now_s
            else:
                begin_s = now_s if now_s > ready_s else ready_s
                ready_s = end_s = begin_s + device_s
                now_s = end_s if is_cpu else now_s
            rank.host_s[position] = now_s
            rank.start_s[position] = begin_s
            rank.end_s[position] = end_s
            at += 1
        self.at, self.now_s, stream.ready_s = at - 1, now_s, ready_s
        return True

    def _compute_later(self, position: int, stream: Stream) -> bool:
        """One Work, for a stream that has others to do before."""
        host_s, device_s = self.rank.costs[position]
        if device_s is None:
            self.rank.start_s[position] = self.now_s
            self.now_s += host_s
            self.rank.end_s[position] = self.rank.host_s[position] = self.now_s
            return True
        return self._hand(position, host_s, waits=self.rank.is_cpu)

    def _hand(self, position: int, host_s: float = 0.0, *, waits: bool = False) -> bool:
        """Give a stream an event, once, and wait until it is done if asked to."""
        rank = self.rank
        stream = self._stream(position)
        if rank.host_s[position] == NOT_YET:
            self.now_s += host_s
            rank.host_s[position] = self.now_s
            stream.give(position, self.now_s)
        if not waits:
            return True
        end_s = rank.end_s[position]
        if end_s == NOT_YET:
            stream.readers[position] = self
            self.holder = stream
            return False
        self.now_s = max(self.now_s, end_s)
        rank.host_s[position] = self.now_s
        return True

    def _give(self, position: int) -> bool:
        return self._hand(position)

    def _read(self, position: int) -> bool:
        return self._hand(position, waits=True)

    def _issue(self, position: int) -> bool:
        rank = self.rank
        comm = rank.events[position]
        assert isinstance(comm, Comm)
        if comm.kind != "new_group":
            return self._hand(position, rank.comm_launch_s)
        self.now_s += rank.comm_launch_s
        rank.host_s[position] = self.now_s
        rank.start_s[position] = rank.end_s[position] = self.now_s
        rank.arrive(comm, self.now_s)
        return True

    def _wait(self, position: int) -> bool:
        rank = self.rank
        wait = rank.events[position]
        assert isinstance(wait, Wait)
        if not rank.holds_lane(wait):
            return self._hand(position)
        target = rank.target(wait)
        if target.ended_s is None:
            self.holder = target
            target.waiters.append(self)
            return False
        rank.start_s[position] = self.now_s
        self.now_s = max(self.now_s, target.ended_s)
        rank.end_s[position] = rank.host_s[position] = self.now_s
        return True
