"""What has been heard of one rank: its calls, its open waits, events lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from labkit.record.events import CommStart, WaitStart
from labkit.runtime.diagnosis.findings import State
from labkit.runtime.diagnosis.matching import Group

NUM_LAST_CALLS = 10
# Nobody is seen to wait for DDP's transfers: keep this many, to name a late wait.
MAX_LIVE = 4096


@dataclass(slots=True)
class Heard:
    """One rank, as far as its events have come in."""

    state: State = State.IDLE
    groups: dict[str, Group] = field(default_factory=dict)
    last: deque[CommStart] = field(default_factory=lambda: deque(maxlen=NUM_LAST_CALLS))
    live: dict[int, CommStart] = field(default_factory=dict)
    waits: dict[int, list[WaitStart]] = field(default_factory=dict)
    lanes: set[int] = field(default_factory=set)
    next_id: int = 0
    lost: set[int] = field(default_factory=set)
    wait_raised: bool = False

    def begin_run(self, state: State) -> None:
        """Start a new history."""
        self.state = state
        self.last.clear()
        self.lanes.clear()

    def call(self, comm: CommStart) -> None:
        """The rank made a call."""
        if comm.id == self.next_id:
            self.next_id += 1
        else:
            self._out_of_turn(comm.id)
        self.last.append(comm)
        self.lanes.add(comm.lane)
        self.live[comm.id] = comm
        if len(self.live) > MAX_LIVE:
            del self.live[next(iter(self.live))]

    def _out_of_turn(self, comm_id: int) -> None:
        """Notice transfers whose event was lost, and those that threads swapped."""
        if comm_id < self.next_id:
            self.lost.discard(comm_id)
            return
        # One lost event is enough to go blind: a long gap need not be told in full.
        self.lost.update(range(self.next_id, min(comm_id, self.next_id + MAX_LIVE)))
        self.next_id = comm_id + 1

    def wait_ends(self, comm_id: int) -> None:
        """The wait for a transfer is over, in whichever thread it was."""
        for waits in self.waits.values():
            for wait in reversed(waits):
                if wait.target == comm_id:
                    waits.remove(wait)
                    return

    def wait(self) -> WaitStart | None:
        """The wait in which the rank's own thread stands."""
        waits = self.waits.get(0)
        return waits[-1] if waits else None

    def has_free_lane(self) -> bool:
        """Whether another of its threads made calls in this run, and waits for none."""
        return any(lane != 0 and not self.waits.get(lane) for lane in self.lanes)
