"""Says who waits for whom where a replay cannot go on.

On the machine that recorded it the program ended. On another it may not: where waits
hold up streams instead of the host, two ranks may wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from labkit.errors import UsageError
from labkit.record.program import Comm
from labkit.replay.lanes import Lane
from labkit.replay.streams import GIVEN, NOT_YET, Point, Rank, Stream
from labkit.replay.transfers import Transfer, describe

Waiter: TypeAlias = Lane | Stream
MAX_NAMED = 8


def refuse_circle(lanes: Sequence[Lane], machine_name: str) -> NoReturn:
    """Name the circle in which lanes and streams wait.

    Args:
        lanes: All lanes; some have not come to their end, or their streams have not.
        machine_name: What the program was replayed on.

    Raises:
        UsageError: Always.
    """
    told = _Circle(lanes).told()
    more = [f"and {len(told) - MAX_NAMED} more"] if len(told) > MAX_NAMED else []
    raise UsageError(
        f"no rank may wait for itself in a circle; on {machine_name!r} these do: "
        + "; ".join([*told[:MAX_NAMED], *more])
        + ". Issue transfers in the same order on every rank, or those of both "
        "directions together: dist.batch_isend_irecv"
    )


class _Circle:
    """Follows from one who waits to whom it waits for, until one comes again."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._ranks = {lane.rank.number: lane.rank for lane in lanes}

    def told(self) -> list[str]:
        """One phrase for each member of the circle."""
        seen: dict[int, str] = {}
        waiter = self._first()
        while waiter is not None and id(waiter) not in seen:
            rank, phrase, following = self._follow(waiter)
            seen[id(waiter)] = f"rank {rank} waits for {phrase}"
            waiter = following
        keys = list(seen)
        begins = keys.index(id(waiter)) if waiter is not None else 0
        return [seen[key] for key in keys[begins:]]

    def _first(self) -> Waiter | None:
        for lane in self._lanes:
            if lane.at < len(lane.positions):
                return lane
        for rank in self._ranks.values():
            for stream in rank.streams.values():
                if stream.holder is not None:
                    return stream
        return None

    def _follow(self, waiter: Waiter) -> tuple[int, str, Waiter | None]:
        """The waiter's rank, what it waits for, and who must come before that."""
        rank = waiter.rank
        holder = waiter.holder
        if isinstance(holder, Transfer):
            return rank.number, *self._transfer(rank, holder)
        if isinstance(holder, Point):
            position = rank.events.index(holder.mark)
            return rank.number, f"mark {holder.mark.id}", self._at(rank, position)
        if isinstance(holder, Stream):
            return rank.number, f"its stream {holder.number}", holder
        position = waiter.next if isinstance(waiter, Stream) else None
        if position is None:
            return rank.number, "nothing", None
        return rank.number, "an earlier event of its stream", self._at(rank, position)

    def _transfer(self, rank: Rank, transfer: Transfer) -> tuple[str, Waiter | None]:
        own = next(part for part in transfer.parts if part.rank == rank.number)
        stuck = transfer
        while not stuck.missing and stuck.queue is not None:
            # All have come: it is its queue that waits.
            stuck = stuck.queue.order[stuck.queue.at]
        for part in stuck.parts:
            found = self._blocked(part)
            if found is not None:
                return f"{describe(own)}, which rank {part.rank} has not reached", found
        return describe(own), None

    def _blocked(self, part: Comm) -> Waiter | None:
        """What keeps a rank from coming to a transfer; None if it has come."""
        rank = self._ranks[part.rank]
        position = rank.events.index(part)
        if rank.end_s[position] != NOT_YET:
            return None
        return self._at(rank, position)

    def _at(self, rank: Rank, position: int) -> Waiter:
        """Who has yet to do an event: the lane, or the stream that it gave it to."""
        lane = next(
            lane
            for lane in self._lanes
            if lane.rank is rank and position in lane.positions
        )
        event = rank.events[position]
        if lane.at == len(lane.positions) or lane.positions[lane.at] > position:
            assert isinstance(event, GIVEN)
            return rank.stream(lane.number, event.stream)
        return lane
