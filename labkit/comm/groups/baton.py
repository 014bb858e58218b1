"""One rank runs at a time: the baton that ranks in one process hand to each other.

A rank keeps the baton while it computes and gives it up only inside communication: when
it must wait for a transfer, or to let the others catch up. The next rank in the circle
that can go on takes it, so the order depends on the program alone and never on the
clock. Because every rank's state is known, a deadlock is exact: nobody can go on.

    rank 0  ██ wait(a) ················ a done ██ leave
    rank 1             ██ wait(b) ··· b done       ██ leave
    rank 2                        ██ ends a and b      ██ leave
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from labkit.record.recorder import Abandoned

# A rank that asks "is it done?" this often, while nobody else can do anything about it,
# will never be told yes.
MAX_VAIN_POLLS = 200_000
CHECK_SIGNALS_EVERY_S = 0.1


class Stalled(Abandoned):
    """No rank can go on: what this rank waits for will never happen."""


class Waitable(Protocol):
    """Something that a rank can wait for."""

    @property
    def done(self) -> bool:
        """Whether it has ended; never goes back to False."""
        ...


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def _leave_alone(giver: int | None, taker: int | None) -> None:
    """A switch that changes nothing."""


@dataclass
class _Seat:
    """Where one rank stands. A rank waits at its gate for the baton."""

    gate: threading.Lock = field(default_factory=_closed_gate)
    thread_id: int = 0
    alive: bool = False
    awaits: Waitable | None = None
    polls: bool = False
    vain_polls: int = 0
    stalled: bool = False

    @property
    def can_go_on(self) -> bool:
        return self.alive and (self.awaits is None or self.awaits.done)


class Baton:
    """Hands the right to run from rank to rank.

    Args:
        world_size: How many ranks there are.
        switch: Called as `switch(giver, taker)` whenever another rank takes over, to
            exchange what the process has only one of. None stands for no rank.
    """

    def __init__(
        self,
        world_size: int,
        switch: Callable[[int | None, int | None], None],
    ) -> None:
        self._seats = [_Seat() for _ in range(world_size)]
        self._circle = [
            tuple((rank + step) % world_size for step in range(1, world_size + 1))
            for rank in range(world_size)
        ]
        self._switch = switch
        self._all_left = _closed_gate()
        self.stalled = False

    def run(self, ranks: Sequence[int]) -> None:
        """Let `ranks`, whose threads wait in `take`, run until each has left."""
        for rank in ranks:
            self._seats[rank].alive = True
            self._seats[rank].stalled = False
        try:
            self._switch(None, ranks[0])
            self._seats[ranks[0]].gate.release()
            # In turns: Python sees no signal that came just before it began to wait.
            while not self._all_left.acquire(timeout=CHECK_SIGNALS_EVERY_S):
                pass
        except BaseException:
            self._stop()
            raise

    def take(self, rank: int) -> None:
        """Wait until the baton comes to this rank for the first time in a run."""
        seat = self._seats[rank]
        seat.thread_id = threading.get_ident()
        seat.gate.acquire()

    def leave(self, rank: int) -> None:
        """This rank has finished; the baton goes on."""
        self._seats[rank].alive = False
        taker = self._next(rank)
        self._switch(rank, taker)
        if taker is None:
            self._all_left.release()
        else:
            self._seats[taker].gate.release()

    def dismiss(self, rank: int) -> None:
        """Wake a thread that waits in `take`, outside any run."""
        self._seats[rank].gate.release()

    def has_stalled(self, rank: int) -> bool:
        """Whether a wait of this rank was given up."""
        return self._seats[rank].stalled

    def wait(self, rank: int, target: Waitable) -> None:
        """Stand still until `target` is done. Raises Stalled if it never will be."""
        if target.done:
            return
        self._hand_over(rank, target, polls=False)
        if not target.done or self._seats[rank].stalled:
            self._give_up(rank)

    def poll(self, rank: int, target: Waitable) -> bool:
        """Let the others run until `target` is done or none of them can go on."""
        if target.done:
            return True
        seat = self._seats[rank]
        self._hand_over(rank, target, polls=True)
        seat.vain_polls = 0 if target.done else seat.vain_polls + 1
        if seat.vain_polls > MAX_VAIN_POLLS:
            self._give_up(rank)
        return target.done

    def give_way(self, rank: int) -> None:
        """Let every other rank that can go on have its turn."""
        self._hand_over(rank, None, polls=False)

    def acted(self, rank: int) -> None:
        """Called when a rank issues a transfer, from its own thread only."""
        seat = self._seats[rank]
        seat.vain_polls = 0
        self._check_thread(seat, rank)

    def _check_thread(self, seat: _Seat, rank: int) -> None:
        if seat.thread_id != threading.get_ident():
            raise RuntimeError(
                f"a rank that is a thread communicates from that thread alone; rank "
                f"{rank} did so from thread {threading.current_thread().name!r}. Call "
                "it from the function itself, or run the ranks as processes"
            )

    def _hand_over(self, rank: int, target: Waitable | None, *, polls: bool) -> None:
        seat = self._seats[rank]
        self._check_thread(seat, rank)
        if self.stalled:
            return
        seat.awaits, seat.polls = target, polls
        taker = self._next(rank)
        assert taker is not None, "the rank that asks is alive itself"
        if taker != rank:
            self._switch(rank, taker)
            self._seats[taker].gate.release()
            seat.gate.acquire()
        seat.awaits, seat.polls = None, False

    def _next(self, rank: int) -> int | None:
        """Who runs after `rank`: the next that can, itself last; None if all left."""
        seats, circle = self._seats, self._circle[rank]
        for other in circle:
            if seats[other].can_go_on:
                return other
        for other in circle:
            if seats[other].alive and seats[other].polls and not self.stalled:
                return other
        return self._next_after_stall(circle)

    def _next_after_stall(self, circle: Sequence[int]) -> int | None:
        """Nobody can go on: each that is left is woken in turn, to give up."""
        left = [other for other in circle if self._seats[other].alive]
        if not left:
            return None
        self.stalled = True
        for other in left:
            self._seats[other].stalled = True
        return left[0]

    def _give_up(self, rank: int) -> None:
        self.stalled = self._seats[rank].stalled = True
        raise Stalled(
            "a transfer ends when its other ranks take part; every rank that is left "
            f"waits, rank {rank} among them. Compare the calls of the ranks: one is "
            "missing, or they wait for each other in a circle"
        )

    def _stop(self) -> None:
        """The run was interrupted from outside: every wait from now on is given up."""
        self.stalled = True
        # The process belongs to its main thread again, while ranks still unwind.
        self._switch = _leave_alone
