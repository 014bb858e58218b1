"""What this process may use of the machine: cores and memory, as containers limit them.

A container on a 64-core machine may be allowed two. Linux says so in its control
groups, for the process's own group and for each group above it; the smallest counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use: at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quota = cgroup_cores(_ROOT, _read(_OWN))
    found = [allowed or os.cpu_count() or 1, math.inf if quota is None else quota]
    return max(1, math.floor(min(found)))


def memory_bytes() -> int:
    """Memory that this process may use, others' share included."""
    total = int(psutil.virtual_memory().total)
    limit = cgroup_memory_bytes(_ROOT, _read(_OWN))
    return total if limit is None else min(total, limit)


def cgroup_cores(root: Path, own: str) -> float | None:
    """The smallest quota of cores on the way up; None where there is no quota.

    `root` is where control groups are mounted, `own` the text of /proc/self/cgroup.
    """
    quotas: list[float] = []
    for folder in _folders(root, own, "cpu"):
        limit, _, period = _read(folder / "cpu.max").partition(" ")
        if not limit:
            limit = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period) > 0 and int(limit) > 0:
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def cgroup_memory_bytes(root: Path, own: str) -> int | None:
    """The smallest limit of memory on the way up; None where there is no limit."""
    limits = [
        int(text)
        for folder in _folders(root, own, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdigit() and int(text) > 0
    ]
    return min(limits, default=None)


def _folders(root: Path, own: str, controller: str) -> Iterator[Path]:
    """The groups of a controller that hold this process: version 2, then version 1.

    In a container the path may name a folder of the host that is not mounted here: what
    is missing reads as no limit, and the mounted root is always looked at.
    """
    for line in own.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and controller not in names.split(","):
            continue
        mounted = root / controller if names else root
        relative = Path(path.lstrip("/"))
        yield mounted / relative
        yield from (mounted / parent for parent in relative.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
