"""What the time of a replayed Program consists of: its critical path, part by part.

[Note: the critical path] Of each moment it is known what it waited for last: the lane
that issued, what the stream did before, the last rank that came, the transfer before
it on the queue. Followed back from the last moment of all, that is a chain of causes
without a gap, and nothing else decides how long the Program takes:

    lane     launch launch issue
    stream          matmul ....... (waits) ............... optimizer
    network                        alpha, bytes .........
    path     launch matmul ....... latency, moving bytes . computing

Of two causes that end at one moment the stream's is taken, not the lane's; of several
ranks that come at one moment the lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

from labkit.errors import UsageError
from labkit.record.program import Comm, HostRead, Program, Wait, Work
from labkit.replay.engine import Settled, settle
from labkit.replay.machine import Machine
from labkit.replay.streams import GIVEN, Point, Rank
from labkit.replay.transfers import Transfer

Part: TypeAlias = Literal["launches", "latency", "moving bytes", "computing", "fixed"]
_PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Shares:
    """Shares of the critical path; they add up to 1, or are all 0 where it has no time.

    Attributes:
        whole_s: The path's length: how long the Program takes.
        launches: The host issues operations and transfers.
        latency: The fixed part of transfers, in which no byte moves.
        moving_bytes: Their bytes move, slowed down by others or not.
        computing: The device computes or reads and writes memory; stretches of compute
            that were kept as measured.
        fixed: Host time that no hardware changes.
    """

    whole_s: float
    launches: float
    latency: float
    moving_bytes: float
    computing: float
    fixed: float

    @property
    def is_launch_bound(self) -> bool:
        """Whether launches and latency are more than half."""
        return self.launches + self.latency > 0.5


def shares(replayed: Program, machine: Machine) -> Shares:
    """What the critical path consists of. See [Note: the critical path].

    Args:
        replayed: What replay made for the machine.
        machine: The same one.

    Raises:
        UsageError: The Program has not the times of this machine.
    """
    header = replayed.header
    if header.source != "replayed" or header.hardware != machine.name:
        raise UsageError(
            f"shares are those of a Program that was replayed on {machine.name!r}; "
            f"this one is {header.source}, with the times of {header.hardware!r}. "
            "Replay it there first"
        )
    # Replayed once more it gets the same times, and with them what led to each.
    spent = _Walk(settle(replayed, machine, compute="as measured")).spent()
    whole_s = sum(spent.values())
    share = {part: spent_s / (whole_s or 1.0) for part, spent_s in spent.items()}
    return Shares(
        whole_s=whole_s,
        launches=share["launches"],
        latency=share["latency"],
        moving_bytes=share["moving bytes"],
        computing=share["computing"],
        fixed=share["fixed"],
    )


# Goes from a moment to the one that it waited for; None is where the Program begins.
_Step: TypeAlias = Callable[[], "_Step | None"]


class _Order(NamedTuple):
    """What is before each of a rank's events; by position."""

    on_lane: dict[int, int]
    on_stream: dict[int, int]
    of_transfer: dict[int, int]


class _Walk:
    """Goes back along the critical path, and adds up what it consists of."""

    def __init__(self, settled: Settled) -> None:
        self._settled = settled
        self._spent: dict[Part, float] = dict.fromkeys(_PARTS, 0.0)
        self._orders: dict[int, _Order] = {}

    def spent(self) -> dict[Part, float]:
        """Seconds of each part."""
        step = self._last()
        while step is not None:
            step = step()
        return self._spent

    def _last(self) -> _Step | None:
        """The last moment of all: the first one found of several."""
        found: list[tuple[float, _Step]] = []
        for _, rank in sorted(self._settled.ranks.items()):
            positions = range(len(rank.events))
            for times, step in ((rank.host_s, self._issued), (rank.end_s, self._done)):
                last = max(positions, key=times.__getitem__, default=None)
                if last is not None:
                    found.append((times[last], partial(step, rank, last)))
        for transfer in self._settled.transfers:
            found.append((transfer.ended_s or 0.0, partial(self._ended, transfer)))
        return max(found, key=lambda each: each[0])[1] if found else None

    def _issued(self, rank: Rank, position: int) -> _Step | None:
        """The lane goes on after an event."""
        event = rank.events[position]
        match event:
            case Wait() if rank.holds_lane(event):
                target = rank.target(event)
                if (target.ended_s or 0.0) > self._given_s(rank, position):
                    return self._target(rank, target)
            case HostRead():
                return partial(self._done, rank, position)
            case Work() if rank.is_cpu and rank.costs[position][1] is not None:
                return partial(self._done, rank, position)
            case _:
                pass
        return self._given(rank, position)

    def _given(self, rank: Rank, position: int) -> _Step | None:
        """The lane gives a stream an event, which takes the lane some time."""
        event = rank.events[position]
        if type(event) is Work and rank.costs[position][1] is None:
            part: Part = "computing" if event.fixed_s is None else "fixed"
        else:
            part = "launches"
        self._spent[part] += _issue_s(rank, position)
        before = self._order(rank).on_lane.get(position)
        return None if before is None else partial(self._issued, rank, before)

    def _given_s(self, rank: Rank, position: int) -> float:
        """When the lane has given a stream an event."""
        before = self._order(rank).on_lane.get(position)
        since_s = 0.0 if before is None else rank.host_s[before]
        return since_s + _issue_s(rank, position)

    def _begun(self, rank: Rank, position: int) -> _Step | None:
        """A stream comes to an event, or the lane to one that needs no stream."""
        before = self._order(rank).on_stream.get(position)
        given_s = self._given_s(rank, position)
        if before is not None and rank.end_s[before] >= given_s:
            return partial(self._done, rank, before)
        return self._given(rank, position)

    def _done(self, rank: Rank, position: int) -> _Step | None:
        """A stream has done an event, or the lane has by itself."""
        if not rank.goes_to_stream(position):
            return self._issued(rank, position)
        event = rank.events[position]
        if isinstance(event, Work):
            self._spent["computing"] += rank.costs[position][1] or 0.0
        elif isinstance(event, Wait):
            target = rank.target(event)
            if (target.ended_s or 0.0) > rank.start_s[position]:
                return self._target(rank, target)
        return self._begun(rank, position)

    def _target(self, rank: Rank, target: Transfer | Point) -> _Step:
        if isinstance(target, Transfer):
            return partial(self._ended, target)
        return partial(self._begun, rank, rank.events.index(target.mark))

    def _ended(self, transfer: Transfer) -> _Step | None:
        """A transfer ends: before that its bytes move, and before that nothing does."""
        arrived_s, ended_s = transfer.arrived_s or 0.0, transfer.ended_s or 0.0
        self._spent["latency"] += transfer.latency_s
        self._spent["moving bytes"] += ended_s - arrived_s - transfer.latency_s
        if transfer.after is not None and arrived_s > transfer.ready_s:
            return partial(self._ended, transfer.after)
        came = [self._came(part) for part in transfer.parts]
        _, rank, position = max(came, key=lambda each: (each[0], -each[1].number))
        return self._begun(rank, position)

    def _came(self, comm: Comm) -> tuple[float, Rank, int]:
        """When a rank comes to a transfer, and with which: all of a batch, or one."""
        rank = self._settled.ranks[comm.rank]
        places = [self._order(rank).of_transfer[each.id] for each in rank.batch(comm)]
        last = max(places, key=rank.start_s.__getitem__)
        return rank.start_s[last], rank, last

    def _order(self, rank: Rank) -> _Order:
        found = self._orders.get(rank.number)
        if found is None:
            found = _order(rank, self._settled)
            self._orders[rank.number] = found
        return found


def _issue_s(rank: Rank, position: int) -> float:
    """How long an event takes the lane that issues it."""
    is_comm = isinstance(rank.events[position], Comm)
    return rank.comm_launch_s if is_comm else rank.costs[position][0]


def _order(rank: Rank, settled: Settled) -> _Order:
    on_lane: dict[int, int] = {}
    on_stream: dict[int, int] = {}
    of_transfer: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    for lane in settled.lanes[rank.number]:
        on_lane.update(zip(lane.positions[1:], lane.positions, strict=False))
    for position in range(len(rank.events)):
        event = rank.events[position]
        if isinstance(event, Comm):
            of_transfer[event.id] = position
        if rank.goes_to_stream(position):
            assert isinstance(event, GIVEN)
            key = (event.lane if rank.is_cpu else 0, event.stream)
            if key in last:
                on_stream[position] = last[key]
            last[key] = position
    return _Order(on_lane, on_stream, of_transfer)
