"""Dry runs from the notebook: which ranks to run, and one record of them all.

Up to eight ranks all run. Of a larger world eight tell: the first, the middle and the
last. If their records are the same but for who is who, the others are copies. If they
differ, as pipeline stages do, or use groups of their own, every rank runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.errors import RankFailed, UsageError
from labkit.record.events import P2P, CommStart, Event
from labkit.record.program import Comm, Header, without_times
from labkit.record.reduce import RankLog, reduce
from labkit.runtime.rank.dry import DryRefused, record_ranks

MAX_WORLD, MAX_TOTAL_EVENTS, NUM_TELLING = 16384, 4_000_000, 8


@dataclass(frozen=True)
class DryRun:
    """The telemetry of all ranks, and which of them ran."""

    logs: tuple[RankLog, ...]
    header: Header
    ran: tuple[int, ...]
    seconds: float


def run(cluster: Any, body: bytes, world_size: int) -> DryRun:
    """Record a pickled call on every rank of a world.

    Args:
        cluster: Its ranks run the dry ranks, each some of them.
        body: The pickled call.
        world_size: Ranks of the world that is recorded.

    Raises:
        UsageError: The function needs values, or the record would be too large.
    """
    began_s = time.monotonic()
    first = _told_by(world_size)
    logs = _record(cluster, body, world_size, first)
    rest = [rank for rank in range(world_size) if rank not in logs]
    ran = first
    _check_size(world_size, max(len(log.events) for log in logs.values()))
    if rest and _alike([logs[rank] for rank in first], world_size):
        logs.update({rank: _copied(logs[0], rank, world_size) for rank in rest})
    elif rest:
        logs.update(_record(cluster, body, world_size, rest))
        ran = list(range(world_size))
    header = Header(
        world_size=world_size, ranks=(), backend="fake", torch=torch.__version__,
        level="work", source="dry", hardware="no hardware",
    )  # fmt: skip
    ordered = tuple(logs[rank] for rank in range(world_size))
    return DryRun(ordered, header, tuple(ran), time.monotonic() - began_s)


def num_workers() -> int:
    """How many processes run dry ranks: three at most say whether ranks are alike."""
    return max(1, min(3, os.cpu_count() or 1))


def check_world_size(world_size: Any) -> None:
    """Raise UsageError for what is no size of a world."""
    is_int = isinstance(world_size, int) and not isinstance(world_size, bool)
    if not is_int or not 1 <= world_size <= MAX_WORLD:
        raise UsageError(
            f"a dry run has from 1 to {MAX_WORLD} ranks; got {world_size!r}. Say how "
            "many: cluster.dry(step, world_size=8)"
        )


def _record(
    cluster: Any, body: bytes, world_size: int, ranks: Sequence[int]
) -> dict[int, RankLog]:
    """Run these ranks, dealt out among the cluster's."""
    workers = range(min(cluster.world_size, len(ranks)))
    dealt = [list(ranks[worker :: len(workers)]) for worker in workers]
    try:
        run = cluster.run(_record_mine, body, world_size, dealt, ranks=workers)
    except RankFailed as error:
        if isinstance(error.exception, DryRefused):
            raise error.exception from None
        raise
    return {log.rank: log for logs in run.results for log in logs}


def _record_mine(
    body: bytes, world_size: int, dealt: Sequence[Sequence[int]]
) -> list[RankLog]:
    """On a rank of the cluster: its share of the dry ranks."""
    import torch.distributed as dist

    return record_ranks(body, world_size, dealt[dist.get_rank()])


def _told_by(world_size: int) -> list[int]:
    """The ranks by which others are told: who is special is at an end or half way."""
    if world_size <= NUM_TELLING:
        return list(range(world_size))
    half, end = world_size // 2, world_size
    return sorted({0, 1, 2, half - 1, half, half + 1, end - 2, end - 1})


def _check_size(world_size: int, num_events: int) -> None:
    if world_size * num_events > MAX_TOTAL_EVENTS:
        raise UsageError(
            f"a dry record holds at most {MAX_TOTAL_EVENTS:,} events; this one would "
            f"hold {world_size} ranks x {num_events:,}. Record fewer steps, fewer "
            "layers or a smaller world"
        )


def _alike(logs: Sequence[RankLog], world_size: int) -> bool:
    """Whether ranks do the same, each seen from itself."""
    seen = [_from_itself(log, world_size) for log in logs]
    everybody = tuple(range(world_size))
    uses_the_world_alone = all(
        log.groups[event.group] == everybody
        for log in logs
        for event in log.events
        if isinstance(event, CommStart)
    )
    return uses_the_world_alone and all(other == seen[0] for other in seen[1:])


def _from_itself(log: RankLog, world_size: int) -> list[Any]:
    """A rank's events, with peers as distances from it."""
    program = reduce([log], Header(world_size=world_size, ranks=(), level="work"))
    (events,) = without_times(program)
    plain: list[Any] = []
    for event in events:
        changes: dict[str, Any] = {"rank": 0}
        if isinstance(event, Comm) and event.is_p2p and event.peer is not None:
            changes["peer"] = (event.peer - log.rank) % world_size
        plain.append(event._replace(**changes))
    return plain


def _copied(log: RankLog, rank: int, world_size: int) -> RankLog:
    """Another rank's log, made from one that does the same."""
    shift = rank - log.rank
    events = [_shifted(event, shift, world_size) for event in log.events]
    traffic = tuple(
        row._replace(
            rank=rank,
            peer=(row.peer + shift) % world_size
            if row.kind in P2P and row.peer is not None
            else row.peer,
        )
        for row in log.traffic
    )
    return replace(log, rank=rank, events=events, traffic=traffic)


def _shifted(event: Event, shift: int, world_size: int) -> Event:
    if not isinstance(event, CommStart) or event.kind not in P2P:
        return event
    peer = None if event.peer is None else (event.peer + shift) % world_size
    return event._replace(peer=peer)
