"""Groups that are a part of the world: a place in them is not a rank.

The odd ranks of twice as many as the group has. What was played there is told by place,
so that it is judged as any other case is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from labkit.checks.exercise import Played
from labkit.checks.verdict import Fault
from labkit.record.events import CommStart, Event


def world_size(size: int) -> int:
    """How many ranks there are around a group of `size`."""
    return 2 * size


def members(world_size: int) -> range:
    """The ranks of the group: place n is rank 2 n + 1."""
    return range(1, world_size, 2)


def body(body: Callable[..., Any], *args: Any) -> Any:
    """What each rank of the world runs: all make the group, its members the body."""
    ranks = members(dist.get_world_size())
    group = dist.new_group(list(ranks))
    return body(group, *args) if dist.get_rank() in ranks else None


def of(played: Played) -> Played:
    """What the members did, by place."""
    ranks = members(len(played.record))
    results = [played.results[rank] for rank in ranks] if played.results else ()
    record = [_by_place(played.record[rank], ranks) for rank in ranks]
    return replace(played, results=results, record=record)


def _by_place(events: Sequence[Event], ranks: range) -> list[Event]:
    """A rank's events without the making of the group, and peers as places."""
    making = {
        e.id for e in events if isinstance(e, CommStart) and e.kind == "new_group"
    }
    places: dict[int | None, int] = {rank: place for place, rank in enumerate(ranks)}
    told: list[Event] = []
    for event in events:
        if isinstance(event, CommStart):
            if event.id not in making:
                told.append(event._replace(peer=places.get(event.peer)))
        elif getattr(event, "target", None) not in making:
            told.append(event)
    return told


def explained(fault: Fault, size: int) -> Fault:
    """A fault that was seen in such a group, with what is special about it."""
    ranks = members(world_size(size))
    note = (
        f"here the group is ranks {', '.join(map(str, ranks))} of "
        f"{world_size(size)}: `dst=` and `src=` name ranks of the whole world, "
        "`group_dst=` and `group_src=` places in the group"
    )
    return replace(fault, message=f"{fault.message}; {note}")
