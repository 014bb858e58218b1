"""When each transfer begins and ends, of the times at which its ranks come.

Two of them give the same times. `FreeNetwork` serves where no transfer can be slowed
down by another: the end of each is known as soon as all its ranks have come, so nothing
has to be done in the order of time. `SharedNetwork` goes through time, since who shares
a link with whom depends on it.

    ranks come ── last one: arrived ── latency ── bytes move ── ended
                  once the queue is free              on links that others share
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from labkit.replay.links import Links
from labkit.replay.transfers import Process, Transfer

# What happens at one moment, in this order: transfers end; their bytes begin to move;
# those begin whose turn it is, of all that have come by then.
END, MOVE, TURN = range(3)


class FreeNetwork:
    """No transfer slows another down, and every queue has a fixed order."""

    def __init__(self) -> None:
        self.awake: deque[Process] = deque()

    def arrive(self, transfer: Transfer, at_s: float) -> None:
        """One of a transfer's ranks has come."""
        transfer.ready_s = max(transfer.ready_s, at_s)
        transfer.missing -= 1
        if transfer.missing:
            return
        queue = transfer.queue
        if queue is None:
            self._end(transfer, transfer.ready_s)
            return
        while (head := queue.next()) is not None:
            queue.free_s = self._end(head, max(head.ready_s, queue.free_s))

    def _end(self, transfer: Transfer, arrived_s: float) -> float:
        transfer.arrived_s = arrived_s
        ended_s = arrived_s + transfer.latency_s + transfer.moving_s
        transfer.ended_s = ended_s
        self.awake.extend(transfer.waiters)
        transfer.waiters.clear()
        return ended_s

    def run(self) -> None:
        """Go on until nobody can."""
        while self.awake:
            self.awake.popleft().run()


class SharedNetwork:
    """Transfers that move at the same time share links. Time only goes forward.

    Of what happens at one moment, transfers go in the order of their indices: by rank
    and seq.
    """

    def __init__(self, transfers: list[Transfer], links: Links) -> None:
        self.awake: deque[Process] = deque()
        self._transfers = transfers
        self._links = links
        self._heap: list[tuple[float, int, int, int]] = []

    def arrive(self, transfer: Transfer, at_s: float) -> None:
        """One of a transfer's ranks comes at a time that is not past."""
        transfer.ready_s = max(transfer.ready_s, at_s)
        transfer.missing -= 1
        if not transfer.missing:
            heappush(self._heap, (transfer.ready_s, TURN, transfer.index, 0))

    def run(self) -> None:
        """Go on until nothing more happens."""
        self._wake()
        heap = self._heap
        while heap:
            now_s = heap[0][0]
            while heap and heap[0][0] <= now_s:
                _, what, index, version = heappop(heap)
                self._happen(self._transfers[index], what, version, now_s)
                self._wake()
            for transfer in self._links.refill(now_s):
                self._foresee(transfer)

    def _wake(self) -> None:
        while self.awake:
            self.awake.popleft().run()

    def _happen(
        self, transfer: Transfer, what: int, version: int, now_s: float
    ) -> None:
        if what == TURN:
            self._take_turn(transfer, now_s)
        elif what == MOVE:
            self._move(transfer, now_s)
        elif version == transfer.version:
            self._end(transfer, now_s)

    def _take_turn(self, transfer: Transfer, now_s: float) -> None:
        """All have come, now or before: it begins unless its queue has it wait."""
        queue = transfer.queue
        if queue is None:
            self._begin(transfer, now_s)
            return
        queue.come(transfer)
        head = None if queue.is_busy else queue.first()
        if head is not None:
            queue.take(head)
            self._begin(head, now_s)

    def _begin(self, transfer: Transfer, now_s: float) -> None:
        transfer.arrived_s = now_s
        moves_at_s = now_s + transfer.latency_s
        heappush(self._heap, (moves_at_s, MOVE, transfer.index, 0))

    def _move(self, transfer: Transfer, now_s: float) -> None:
        if transfer.links:
            self._links.add(transfer, now_s)
        else:
            end_s = now_s + transfer.moving_s
            heappush(self._heap, (end_s, END, transfer.index, transfer.version))

    def _foresee(self, transfer: Transfer) -> None:
        """When it ends at the rate that it has now."""
        transfer.version += 1
        if transfer.is_full_rate:
            left_s = transfer.left * transfer.moving_s
        else:
            left_s = transfer.left / transfer.rate
        end_s = transfer.since_s + left_s
        heappush(self._heap, (end_s, END, transfer.index, transfer.version))

    def _end(self, transfer: Transfer, now_s: float) -> None:
        transfer.ended_s = now_s
        self.awake.extend(transfer.waiters)
        transfer.waiters.clear()
        if transfer.links:
            self._links.remove(transfer)
        if transfer.queue is not None:
            transfer.queue.is_busy = False
            head = transfer.queue.first()
            if head is not None:
                heappush(self._heap, (now_s, TURN, head.index, 0))
