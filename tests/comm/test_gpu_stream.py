"""Logical streams on a real GPU: `make test-gpu` runs these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.comm.stream import Stream, current
from labkit.record.program import Mark, Wait, without_times
from tests.comm.stream_programs import PROGRAMS, SIZE, expected

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
Body = Callable[..., list[float]]
# Cycles of a GPU's clock: some tens of milliseconds, so that a missing wait shows.
LONG_CYCLES = 100_000_000


@pytest.mark.parametrize("world_size", [1, 2])
def test_values_are_right_and_records_equal(world_size: int) -> None:
    with Cluster(world_size, quiet=True) as cluster:
        for program in PROGRAMS:
            first, second = (cluster.run(program) for _ in range(2))
            assert first.results == cluster.run(expected, program).results
            assert without_times(first.record) == without_times(second.record)
            assert any(isinstance(event, Mark) for event in first.record)


def late_copy() -> list[float]:
    """Compute, a side stream, compute again: each long, and each reads the last."""
    x = torch.zeros(SIZE, device="cuda")
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    compute, side = current(), Stream()
    torch.cuda._sleep(LONG_CYCLES)
    x.fill_(1)
    side.wait(compute.mark())
    with side:
        torch.cuda._sleep(LONG_CYCLES)
        y.copy_(x)
        side.keep(x, y)
    compute.wait(side.mark())
    z.copy_(y)
    return [z.sum().item()]


def transfer_behind_compute() -> list[float]:
    """A transfer reads what a long kernel writes; what follows it comes after it."""
    x = torch.zeros(SIZE, device="cuda")
    compute, side, after = current(), Stream(), Stream()
    torch.cuda._sleep(LONG_CYCLES)
    x.fill_(1)
    side.wait(compute.mark())
    with side:
        work = dist.all_reduce(x, async_op=True)
        side.keep(x)
    after.wait(work)
    after.run(x.mul_, 2)
    after.keep(x)
    compute.wait(after.mark())
    return [x.sum().item()]


def test_streams_wait_for_long_kernels() -> None:
    with Cluster(1, quiet=True) as cluster:
        assert cluster.run(late_copy).results == [[SIZE]]
        assert cluster.run(transfer_behind_compute).results == [[2 * SIZE]]


def test_the_host_does_not_stand_still_for_what_a_stream_waits_for() -> None:
    with Cluster(1, quiet=True) as cluster:
        record = cluster.run(transfer_behind_compute).record
    waits = [event for event in record if isinstance(event, Wait)]
    assert {(event.who, event.cause) for event in waits} == {
        ("stream", "event"), ("stream", "wait"),
    }  # fmt: skip
