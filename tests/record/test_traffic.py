"""What leaves a rank: formulas against simulations of each algorithm, exact counting.

That gloo really does what its formulas say, tests/comm/test_loopback.py holds.
"""

from __future__ import annotations

from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.events import CommStart, Kind
from labkit.record.program import Traffic
from labkit.record.traffic import (
    Backend,
    Counters,
    Share,
    item_bytes,
    wire_bytes,
)

MIB = 1024 * 1024
ROOTED: tuple[Kind, ...] = ("broadcast", "reduce", "gather", "scatter")


def sent(
    kind: Kind, payload: int, size: int, backend: Backend = "gloo", **more: Any
) -> list[int]:
    """What each rank of a group sends."""
    return [
        wire_bytes(kind, Share(payload, size, at, **more), backend)
        for at in range(size)
    ]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("payload", [0, 4, 12, 1000, 4 * MIB + 20])
def test_what_a_group_sends_in_all(backend: Backend, size: int, payload: int) -> None:
    others = size - 1
    totals = {
        "broadcast": others * payload,
        "gather": others * payload,
        "scatter": others * payload,
        "all_gather": others * size * payload,
        "all_reduce": 2 * others * payload,
        "barrier": 0,
        "new_group": 0,
        "recv": 0,
    }
    for kind, total in totals.items():
        assert sum(sent(kind, payload, size, backend, item_bytes=4)) == total, kind
    if backend == "nccl":
        assert sum(sent("reduce", payload, size, backend)) == others * payload
        assert sum(sent("reduce_scatter", payload, size, backend)) == others * payload
    else:
        whole = sent("all_reduce", payload, size, item_bytes=4)
        assert sent("reduce_scatter", payload, size, item_bytes=4) == whole


def ring_of_segments(payload: int, size: int, rank: int, *, skips: int) -> int:
    """gloo's ring, segment by segment, as the source reads; all sizes divide."""
    segment = min(MIB, payload // (2 * size))
    count = payload // segment
    first = (rank + 1) * (count // size)
    sends = [(first + i) % count for i in range(count - skips)]
    return segment * len(sends)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("payload", [8 * 1024, 4 * MIB, 32 * MIB])
def test_gloo_reduces_in_segments_and_sends_all_but_two(
    payload: int, size: int
) -> None:
    expected = [
        ring_of_segments(payload, size, rank, skips=2)
        + (0 if rank == 1 else payload // size)
        for rank in range(size)
    ]
    assert sent("reduce", payload, size, root=1, item_bytes=4) == expected


def test_gloo_reduces_a_large_tensor_with_more_than_a_ring_needs() -> None:
    ring = 16 * MIB * (2 - 1) + 8 * MIB
    assert sum(sent("reduce", 16 * MIB, 2, item_bytes=4)) == 36 * MIB > ring
    assert sum(sent("reduce", 4 * MIB, 2, item_bytes=4)) == 6 * MIB


def test_gloo_reduces_a_tensor_smaller_than_the_group() -> None:
    """Segments of one element: ranks 1 to 3 have empty chunks, and send no chunk."""
    each = sent("reduce", 8, 4, root=3, item_bytes=4)
    assert each == [0 + 8, 8, 8, 8]
    assert sent("all_reduce", 8, 4, item_bytes=4) == [8, 8, 16, 16]


@pytest.mark.parametrize("root", [0, 2])
def test_gloo_broadcasts_down_a_tree(root: int) -> None:
    children = {1: [0], 2: [1, 0], 3: [2, 0, 0], 5: [3, 1, 0, 0, 0]}
    children[8] = [3, 2, 1, 1, 0, 0, 0, 0]
    for size, expected in children.items():
        if root < size:
            each = sent("broadcast", 10, size, root=root)
            assert each[root:] + each[:root] == [10 * count for count in expected]


def test_nccls_rings() -> None:
    assert sent("broadcast", 10, 4, "nccl", root=1) == [0, 10, 10, 10]
    assert sent("reduce", 10, 4, "nccl", root=1) == [10, 0, 10, 10]
    assert sent("all_reduce", 12, 4, "nccl") == [18] * 4
    assert sent("reduce_scatter", 12, 4, "nccl") == [9] * 4


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_an_uneven_all_to_all_keeps_its_own_part(backend: Backend) -> None:
    assert sent("all_to_all", 12, 4, backend) == [9] * 4
    assert sent("all_to_all", 12, 4, backend, own_bytes=12) == [0] * 4
    assert sent("all_to_all", 12, 4, backend, own_bytes=0) == [12] * 4


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (Share(8, 4, 4), "from 0 to 3; all_reduce got place 4"),
        (Share(8, 4, 0, root=-1), "root -1"),
        (Share(-1, 4, 0), "got -1 and 1"),
        (Share(8, 4, 0, item_bytes=0), "got 8 and 0"),
        (Share(8, 0, 0), "group of 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(share: Share, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        wire_bytes("all_reduce", share)


def test_the_size_of_an_element_is_in_its_types_name() -> None:
    names = {
        "float32": 4, "bfloat16": 2, "int64": 8, "uint8": 1, "bool": 1,
        "complex64": 8, "float8_e4m3fn": 1, "float4_e2m1fn_x2": 1, "": 1,
    }  # fmt: skip
    assert {name: item_bytes(name) for name in names} == names


def call(kind: Kind, payload: int, **more: Any) -> CommStart:
    start = CommStart(
        0, kind, "world", 0, None, 0, 0, (), "float32", payload, None, None, None, 0,
        None, 0.0,
    )  # fmt: skip
    return start._replace(**more)


def test_counts_are_kept_by_kind_group_and_peer() -> None:
    counters, ranks = Counters(rank=5), (7, 5, 9)
    for event in (
        call("send", 100, peer=7),
        call("send", 10, peer=7),
        call("send", 1, peer=9),
        call("recv", 50, peer=7),
        call("broadcast", 30, peer=5),
        call("broadcast", 30, peer=9, group="other"),
        call("all_reduce", 24),
        call("all_to_all", 24, send_splits=(1, 2, 3)),
        call("barrier", 0),
    ):
        counters.add(event, ranks)
    assert counters.rows() == (
        Traffic(5, "send", "world", 7, 2, 110, 110),
        Traffic(5, "send", "world", 9, 1, 1, 1),
        Traffic(5, "recv", "world", 7, 1, 50, 0),
        Traffic(5, "broadcast", "world", 5, 1, 30, 60),
        Traffic(5, "broadcast", "other", 9, 1, 30, 0),
        Traffic(5, "all_reduce", "world", None, 1, 24, 32),
        Traffic(5, "all_to_all", "world", None, 1, 24, 16),
        Traffic(5, "barrier", "world", None, 1, 0, 0),
    )
    counters.clear()
    assert counters.rows() == ()


def test_another_backend_counts_by_its_own_algorithm() -> None:
    wire = {}
    backends: tuple[Backend, ...] = ("gloo", "nccl")
    for backend in backends:
        counters = Counters(rank=1, backend=backend)
        counters.add(call("reduce_scatter", 32), (0, 1, 2, 3))
        (row,) = counters.rows()
        wire[backend] = row.wire_bytes
    assert wire == {"gloo": 48, "nccl": 24}
