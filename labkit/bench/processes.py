"""Processes as the system sees them: below a kernel, alive or not, how large.

Only descendants of a kernel that the benchmark started are looked at. They are taken
while they live, so that a later process with the same id cannot pass for one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

POLL_S = 0.005
END_LIMIT_S = 10.0


def below(pid: int) -> list[psutil.Process]:
    """Every descendant of a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; an ended process that nobody has reaped yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [process for process in processes if is_alive(process)]


def seconds_until_gone(
    processes: Iterable[psutil.Process], limit_s: float
) -> float | None:
    """How long until none of them runs; None if some do at the limit."""
    began_s = time.monotonic()
    left = alive(processes)
    while left:
        if time.monotonic() - began_s > limit_s:
            return None
        time.sleep(POLL_S)
        left = alive(left)
    return time.monotonic() - began_s


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill these and what is below them, and wait until they are gone."""
    listed = list(processes)
    every = {*listed, *(child for each in listed for child in below(each.pid))}
    for process in alive(every):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    seconds_until_gone(every, END_LIMIT_S)


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """What they hold together; a page that several share counts once among them.

    On Linux that is PSS. Elsewhere only what each has for itself is known.
    """
    infos = [process.memory_full_info() for process in processes]
    return sum(getattr(info, "pss", info.uss) for info in infos)
