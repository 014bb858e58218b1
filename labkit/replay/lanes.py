"""Follows the host threads of a rank through their events, as far as times are known.

    lane      launch, launch, issue, .... host read ........ | go on
    stream          work......, work..., wait for transfer...
    network                                transfer .......

A lane stands still where it needs a time that is not known yet, and is run again when
it is. See `labkit.replay.streams` for what it gives its streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from labkit.record.program import Alloc, Comm, Free, HostRead, Mark, Wait, Work
from labkit.replay.streams import GIVEN, NOT_YET, Point, Rank, Stream
from labkit.replay.transfers import Transfer

# These have no lane.
_STORED = (Alloc, Free)


def lanes_of(rank: Rank) -> list[Lane]:
    """The lanes of a rank, which all begin at 0. An Alloc is the last lane's before."""
    numbers = {event.lane for event in rank.events if not isinstance(event, _STORED)}
    lane = min(numbers, default=0)
    if len(numbers) <= 1:
        return [Lane(rank, lane, range(len(rank.events)))]
    positions: defaultdict[int, list[int]] = defaultdict(list)
    for position, event in enumerate(rank.events):
        if not isinstance(event, _STORED):
            lane = event.lane
        positions[lane].append(position)
    if not rank.is_cpu:
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

    def __init__(self, rank: Rank, number: int, positions: Sequence[int]) -> None:
        self.rank = rank
        self.number = number
        self.positions = positions
        self.at = 0
        self.now_s = 0.0
        self.holder: Transfer | Point | Stream | None = None
        self._streams: dict[int, Stream] = {}
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
        found = self._streams.get(event.stream)
        if found is None:
            found = self.rank.stream(self.number, event.stream)
            self._streams[event.stream] = found
        return found

    def _compute(self, position: int) -> bool:
        """Work, and all that follows it on the same stream.

        Done at once by a stream that is idle; a GPU's that is not gets it for later.
        """
        rank, positions, stream = self.rank, self.positions, self._stream(position)
        is_cpu, is_idle = rank.is_cpu, stream.is_idle
        if stream.has_turns or (is_cpu and not (is_idle and self._is_new(position))):
            return self._compute_later(position, stream)
        events, costs, give = rank.events, rank.costs, stream.given.append
        host_times, start_times, end_times = rank.host_s, rank.start_s, rank.end_s
        now_s, ready_s, at = self.now_s, stream.ready_s, self.at
        while at < len(positions):
            position = positions[at]
            event = events[position]
            if type(event) is not Work or event.stream != stream.number:
                break
            host_s, device_s = costs[position]
            begin_s, now_s = now_s, now_s + host_s
            host_times[position] = now_s
            if device_s is None:
                start_times[position], end_times[position] = begin_s, now_s
            elif is_idle:
                begin_s = now_s if now_s > ready_s else ready_s
                ready_s = begin_s + device_s
                start_times[position], end_times[position] = begin_s, ready_s
                if is_cpu:
                    now_s = host_times[position] = ready_s
            else:
                give(position)
            at += 1
        self.at, self.now_s, stream.ready_s = at - 1, now_s, ready_s
        return True

    def _is_new(self, position: int) -> bool:
        """Whether the lane has not given the event to a stream before."""
        return self.rank.host_s[position] == NOT_YET

    def _compute_later(self, position: int, stream: Stream) -> bool:
        """One Work, for a stream that has others to do before."""
        rank = self.rank
        host_s, device_s = rank.costs[position]
        if device_s is None:
            rank.start_s[position] = self.now_s
            self.now_s += host_s
            rank.end_s[position] = rank.host_s[position] = self.now_s
            return True
        if self._is_new(position):
            self._give(position, host_s)
        return not rank.is_cpu or self._stand(position, stream)

    def _read(self, position: int) -> bool:
        if self._is_new(position):
            self._give(position)
        return self._stand(position, self._stream(position))

    def _give(self, position: int, host_s: float = 0.0) -> bool:
        """Give a stream an event, which takes the lane so long."""
        self.now_s += host_s
        self.rank.host_s[position] = self.now_s
        self._stream(position).give(position)
        return True

    def _stand(self, position: int, stream: Stream) -> bool:
        """Stand still until a stream has done an event."""
        end_s = self.rank.end_s[position]
        if end_s == NOT_YET:
            stream.readers[position] = self
            self.holder = stream
            return False
        self.now_s = self.rank.host_s[position] = max(self.now_s, end_s)
        return True

    def _issue(self, position: int) -> bool:
        rank = self.rank
        comm = rank.events[position]
        assert isinstance(comm, Comm)
        if comm.kind != "new_group":
            return self._give(position, rank.comm_launch_s)
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
            return self._give(position)
        target = rank.target(wait)
        if target.ended_s is None:
            self.holder = target
            target.waiters.append(self)
            return False
        rank.start_s[position] = self.now_s
        self.now_s = max(self.now_s, target.ended_s)
        rank.end_s[position] = rank.host_s[position] = self.now_s
        return True
