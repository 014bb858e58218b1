"""Transfers and operations as a rank issues them, for tests of machines."""

from __future__ import annotations

from typing import Any

from labkit.record.events import Kind
from labkit.record.program import Comm, Work
from labkit.replay.machine import Demand, Link


def comm(kind: Kind, num_bytes: int, **fields: Any) -> Comm:
    """A transfer of rank 0, unless told otherwise."""
    plain: dict[str, Any] = {
        "rank": 0, "lane": 0, "stream": 0, "seq": 0, "id": 0, "group": "world",
        "group_seq": 0, "peer": None, "tag": 0, "pair_seq": 0, "dtype": "float32",
    }  # fmt: skip
    return Comm(kind=kind, logical_bytes=num_bytes, **{**plain, **fields})


def work(flops: float = 0.0, moved_bytes: float = 0.0, dtype: str = "float32") -> Work:
    """An operation of rank 0."""
    return Work(
        0, 0, 0, 0, "aten.mm", flops, moved_bytes, 1, dtype, None, None, None, None
    )


def alone_s(demand: Demand) -> float:
    """What a transfer takes while it shares no link."""
    return demand.latency_s + demand.moving_s


def bytes_on(demand: Demand) -> dict[Link, float]:
    """The bytes on each link."""
    return dict(demand.links)
