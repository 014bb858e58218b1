"""Processes as the system sees them: which there are, and whether they have ended.

Only descendants of a process that a test started are ever looked at, and none is found
by its name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

LIMIT_S = 20.0
FOLDERS = (Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp")))


def below(pid: int | None = None) -> list[psutil.Process]:
    """Every descendant of a process; of this one by default."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def known(pids: Iterable[int]) -> list[psutil.Process]:
    """Processes by id, taken while they live: a later process cannot pass for one."""
    return [psutil.Process(pid) for pid in pids]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; an ended process that nobody has reaped yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [process for process in processes if is_alive(process)]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; fail, naming it, if it does not come."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"still not after {LIMIT_S} s: {what}"
        time.sleep(0.02)


def wait_gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until all of these have ended."""
    listed = list(processes)
    wait_until(lambda: not alive(listed), f"end of {alive(listed)}")


def wait_for_files(folder: Path, count: int) -> None:
    """Wait until so many files are there, one for each rank that has come so far."""
    wait_until(lambda: len(list(folder.iterdir())) == count, f"{count} files")


def folders_of(pid: int) -> list[Path]:
    """What a notebook with this process id has left in shared memory or on disk."""
    return [
        path for folder in FOLDERS if folder.exists()
        for path in folder.glob(f"labkit-{pid}-*")
    ]  # fmt: skip


def shared_memory() -> set[str]:
    """The names of the files that torch and multiprocessing keep in shared memory."""
    folder = Path("/dev/shm")
    paths = folder.iterdir() if folder.exists() else ()
    return {p.name for p in paths if p.name.startswith(("torch_", "psm_", "sem."))}
