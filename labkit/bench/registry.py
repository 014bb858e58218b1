"""The benchmarks by name. A benchmark is `figures()` in `labkit/bench/NAME.py`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from labkit.bench.figures import Figure
from labkit.errors import UsageError


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's name, which is also its module's, and one line on what it does."""

    name: str
    description: str

    def run(self) -> list[Figure]:
        """Load the module, measure, and return its figures."""
        module = import_module(f"labkit.bench.{self.name}")
        return list(module.figures())


BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "ranks",
        "start, re-run, fail, interrupt and end ranks, beside ipyparallel and "
        "accelerate's notebook_launcher",
    ),
    Benchmark("record", "what recording costs: a DDP step with and without it, a span"),
    Benchmark(
        "live",
        "the live timeline in a browser: frames a second, how late, the kernel's cost",
    ),
    Benchmark(
        "comm",
        "how fast ranks of this machine exchange data, for replay; each collective's "
        "alpha and beta; our ring all-reduce beside the backend's own",
    ),
    Benchmark("compute", "how fast one rank of this machine computes, for replay"),
    Benchmark("engine", "how long replay takes: 100,000 events and more, 64 ranks"),
)


def find(name: str) -> Benchmark:
    """The benchmark of this name.

    Raises:
        UsageError: There is none.
    """
    for benchmark in BENCHMARKS:
        if benchmark.name == name:
            return benchmark
    names = ", ".join(benchmark.name for benchmark in BENCHMARKS)
    raise UsageError(
        f"A benchmark must be one of: {names}; {name!r} was asked for. "
        "Try `labkit bench`, which lists them."
    )
