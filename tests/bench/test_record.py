"""`labkit bench record` on two ranks, at a small size."""

from __future__ import annotations

import pytest

from labkit.bench.recorded_steps import StepSize, timed_steps
from labkit.record.program import Comm, Span
from labkit.runtime.cluster import Cluster

TINY = StepSize("3 tiny buckets", num_layers=3, dim=8, batch=2, bucket_mb=0.0001)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_only_the_recorded_steps_leave_a_record() -> None:
    with Cluster(2, device="cpu", quiet=True) as cluster:
        run = cluster.run(timed_steps, TINY, 4, warm_up=1)
        twice = cluster.run(timed_steps, TINY, 4, warm_up=1)
    for timed in (*run.results, *twice.results):
        assert [len(found) for found in timed] == [4, 4, 4]
        assert all(seconds > 0 for found in timed for seconds in found)
    for rank in (0, 1):
        events = run.record.of(rank)
        spans = [e for e in events if isinstance(e, Span) and e.name == "step"]
        sums = [e for e in events if isinstance(e, Comm) and e.kind == "all_reduce"]
        assert len(spans) == 5
        # DDP's first step reduces all in one bucket.
        assert len(sums) == 1 + 3 * 4
