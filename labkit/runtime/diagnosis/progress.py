"""Who can still move: a least fixpoint over who needs whom.

A rank moves if it stands still for nobody, or if each rank that it needs has made its
call already or may yet move. A rank that has ended, or never ran, moves no more.

[Note: late views] What is known of a rank is a prefix of its story. If a set of ranks
cannot move by these prefixes, it cannot in truth: the first of them to go on would need
a call of another one of the set, which must have gone on before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from labkit.record.events import P2P, CommStart
from labkit.runtime.diagnosis.findings import Fault
from labkit.runtime.diagnosis.needs import Need


def movers(
    running: Collection[int], needs: Mapping[int, Need], *, soft: bool
) -> set[int]:
    """The running ranks that may still move; `soft` counts on no buffer."""
    moving = {rank for rank in running if rank not in needs}
    while True:
        freed = {
            rank
            for rank, need in needs.items()
            if rank not in moving and not never_come(need, moving, soft=soft)
        }
        if not freed:
            return moving
        moving |= freed


def never_come(need: Need, moving: Collection[int], *, soft: bool) -> tuple[int, ...]:
    """The ranks that hold a transfer for ever, if only `moving` may yet make a call."""
    required = need.sure + need.maybe if soft else need.sure
    gone = tuple(rank for rank in required if rank not in moving)
    if any(rank in moving for rank in need.any_of):
        return gone
    return gone + need.any_of


def circle(waits_for: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks of which each waits for the next, and the last for the first.

    Every rank waits for at least one that waits itself, so there is such a circle.
    """
    path: list[int] = []
    rank = min(waits_for)
    while rank not in path:
        path.append(rank)
        rank = waits_for[rank][0]
    return tuple(path[path.index(rank) :])


def circle_fault(calls: Collection[CommStart]) -> Fault:
    """What kind of circle the calls of its ranks make."""
    if all(comm.kind in P2P for comm in calls):
        return Fault.CYCLIC
    resources = {(comm.group, comm.kind in P2P) for comm in calls}
    return Fault.GROUP_ORDER if len(resources) > 1 else Fault.STUCK
