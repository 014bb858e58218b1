"""The programs that the ranks run: one cell, the same for every tool.

Nothing imports this. Its source is run as a notebook's cell (tools.py), so that its
functions are a notebook's own, as a learner's are.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

FOLDER = Path(os.environ["LABKIT_BENCH_FOLDER"])


def mark(name: str) -> None:
    """Leave the time in a file that the benchmark reads."""
    path = FOLDER / f"{name}-{dist.get_rank()}"
    path.with_suffix(".part").write_text(repr(time.time()))
    path.with_suffix(".part").rename(path)


def nothing() -> None:
    """What a run costs by itself."""


def one_all_reduce() -> float:
    """The smallest useful program: the sum is the number of ranks."""
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size()] * 4
    return x[0].item()


def clocked() -> tuple[float, float]:
    """When this rank began and ended one all-reduce."""
    began_s = time.perf_counter()
    one_all_reduce()
    return began_s, time.perf_counter()


def raises() -> None:
    """Rank 2 raises while the others are in a collective."""
    if dist.get_rank() == 2:
        time.sleep(0.2)
        mark("raised")
        raise ValueError("on purpose")
    dist.all_reduce(torch.ones(4))


def blocks() -> None:
    """Rank 0 computes for ever, and the others wait for it in a collective."""
    mark("blocked")
    if dist.get_rank() == 0:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))


def blocks_with_company() -> None:
    """The same, with two data-loader workers a rank and a child in its own session."""
    batches = iter(DataLoader(range(1000), num_workers=2))  # type: ignore[arg-type]
    next(batches)
    if dist.get_rank() == 3:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    blocks()


def mismatch() -> None:
    """Rank 0 broadcasts while the others all-reduce."""
    mark("called")
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


def absent() -> None:
    """Rank 3 returns while the others all-reduce."""
    if dist.get_rank() != 3:
        mark("called")
        dist.all_reduce(torch.ones(4))


def circle() -> None:
    """Each rank receives from the next, and none has sent."""
    mark("called")
    dist.recv(torch.ones(4), (dist.get_rank() + 1) % dist.get_world_size())
