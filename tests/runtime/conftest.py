"""Ranks and kernels for the tests of the runtime, and a hard limit on each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from labkit import Cluster
from tests.runtime.notebook import Notebook
from tests.runtime.processes import alive, below, folders_of, wait_until

HERE = Path(__file__).parent
LIMIT_S = 150
MakeCluster = Callable[..., Cluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here ends by itself: a hang is a failure, never a wait."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="module")
def shared_cluster4() -> Iterator[Cluster]:
    """Four warm ranks for the tests of one file."""
    with Cluster(4, quiet=True) as cluster:
        yield cluster


@pytest.fixture
def cluster4(shared_cluster4: Cluster) -> Iterator[Cluster]:
    """The file's four ranks, found in order before the test, without knobs after it."""
    assert shared_cluster4.run(dist.get_rank).results == [0, 1, 2, 3]
    yield shared_cluster4
    shared_cluster4.heal()


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Make clusters that are closed when the test ends."""
    made: list[Cluster] = []

    def make(world_size: int = 2, **options: object) -> Cluster:
        made.append(Cluster(world_size, quiet=True, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves a process or a folder behind. Ask for it first."""
    processes, folders = set(below()), set(folders_of(os.getpid()))
    yield
    wait_until(
        lambda: not _new(processes), f"end of what was started: {_new(processes)}"
    )
    wait_until(
        lambda: set(folders_of(os.getpid())) <= folders,
        f"removal of folders: {folders_of(os.getpid())}",
    )


def _new(before: set[psutil.Process]) -> list[psutil.Process]:
    """Processes that were not there before. The zygote may be: it outlives clusters."""
    from labkit.runtime.kernel import the_zygote

    zygote = the_zygote().pid
    return [p for p in alive(below()) if p not in before and p.pid != zygote]


@pytest.fixture(scope="module")
def shared_notebook() -> Iterator[Notebook]:
    """One kernel with `cluster = Cluster(4)` for the tests of one file."""
    notebook = Notebook(world_size=4)
    yield notebook
    notebook.close()


@pytest.fixture
def notebook(shared_notebook: Notebook) -> Notebook:
    """The file's kernel, restarted if the last test has left it unusable."""
    shared_notebook.heal()
    return shared_notebook
