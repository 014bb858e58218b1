"""What recording costs: a DDP step with and without it, a span, the level "work"."""

from __future__ import annotations

from statistics import median

from labkit.bench.figures import Figure
from labkit.bench.pairs import MIN_PAIRS, bootstrap
from labkit.bench.recorded_steps import (
    StepSize,
    timed_span_seconds,
    timed_step,
    timed_steps,
)
from labkit.runtime.cluster import Cluster

NUM_RANKS = 2
# So many that the interval is narrower than what is measured, a few in a hundred.
NUM_ROUNDS = 8 * MIN_PAIRS
NUM_TURNS, WARM_UP = 5, 3
# Small is what DDP takes for its first bucket, 1 MB; the others have 25 MB by default.
SIZES = (
    StepSize("18 small buckets", num_layers=18, dim=512, batch=512, bucket_mb=0.9),
    StepSize("5 M parameters", num_layers=5, dim=1024, batch=256, bucket_mb=8),
    StepSize("18 tiny buckets", num_layers=18, dim=128, batch=64, bucket_mb=0.05),
)


def figures() -> list[Figure]:
    """Measure on two gloo ranks."""
    with Cluster(NUM_RANKS, device="cpu", quiet=True) as cluster:
        found = [_comm(cluster, size) for size in SIZES]
        found.append(_span(cluster))
        found += [_work(cluster, size) for size in SIZES]
    return found


def _comm(cluster: Cluster, size: StepSize) -> Figure:
    """A recorded step beside a bare one, in turn in the same processes."""
    timed = cluster.run(timed_steps, size, NUM_ROUNDS).results[0]
    return Figure(
        name=f"DDP step, {size.name}: level comm",
        unit="s",
        ours=median(timed.recorded_s),
        theirs=median(timed.bare_s),
        interval=bootstrap(timed.recorded_s, timed.bare_s, seed=0),
        aa_interval=bootstrap(timed.bare_again_s, timed.bare_s, seed=0),
        against="no recording",
    )


def _span(cluster: Cluster) -> Figure:
    taken_s = cluster.run(timed_span_seconds, 500, 100, ranks=0).results[0]
    return Figure(name="one span", unit="s", ours=median(taken_s))


def _work(cluster: Cluster, size: StepSize) -> Figure:
    """The same steps at both levels, run in turn."""
    work: list[float] = []
    comm: list[float] = []
    for _ in range(NUM_TURNS):
        work += cluster.run(timed_step, size, 10, record="work").results[0][WARM_UP:]
        comm += cluster.run(timed_step, size, 10).results[0][WARM_UP:]
    return Figure(
        name=f"DDP step, {size.name}: level work",
        unit="s",
        ours=median(work),
        theirs=median(comm),
        against="level comm",
    )
