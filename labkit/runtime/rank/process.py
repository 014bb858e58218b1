"""What Linux lets a parent do about its children: die with it, adopt, be swept.

[Note: who ends whom] The kernel holds a socket to each guard; a guard holds the ranks.
- The kernel ends, however: the guard reads end-of-file, or sees the process gone where
  a child of the kernel still holds the socket, and kills all that it started.
- A guard ends: its ranks get SIGKILL from the operating system (PR_SET_PDEATHSIG).
- A rank ends: its children, and theirs, are adopted by the guard, which kills them.
Process ids are signalled only by their own parent, before it reaps them, so that an id
can never have passed to somebody else's process. Other systems lack both calls: there,
a rank's link thread sees the end of the socket, and ends its process group.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent ends; end now if it has ended already.

    Only for a process whose parent has one thread: the signal comes when the *thread*
    that forked it ends.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_of(pid: int) -> list[int]:
    """A file that becomes readable when process `pid` ends: one, or none off Linux."""
    if not hasattr(os, "pidfd_open"):
        return []
    try:
        return [os.pidfd_open(pid)]
    except OSError:
        return []


def has_ended(end: list[int]) -> bool:
    """Whether the process behind `end_of` is known to have ended."""
    return bool(end) and bool(select.select(end, [], [], 0)[0])


def child_pids() -> list[int]:
    """The calling process's children (made by its only thread); none off Linux."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in path.read_text().split()]
    except OSError:
        return []


def kill_group(pid: int) -> None:
    """SIGKILL the process group that an unreaped child leads, if it leads one."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        kill(pid)


def kill(pid: int) -> None:
    """SIGKILL an unreaped child."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
