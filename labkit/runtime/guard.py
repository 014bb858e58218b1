"""The guard: one small process that starts the ranks of one generation, and ends them.

It has one thread, runs no torch operation, and so may fork at any time. It is forked
from the zygote (torch is imported already), or started afresh where ranks are spawned.
It tells the kernel how each rank ended, and leaves nothing behind: see [Note: who ends
whom].
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from labkit.runtime import fdpass
from labkit.runtime.kernel import command
from labkit.runtime.rank import process
from labkit.runtime.rank.enter import enter
from labkit.runtime.rank.messages import Exited, RankSpec
from labkit.runtime.rank.wire import Channel, FrameKind

SWEEP_LIMIT_S = 2.0


@dataclass(frozen=True)
class StartRank:
    """Kernel to guard: start this rank; its channel, stdout and stderr come along."""

    spec: RankSpec
    spawn: bool


def hold(folder: str) -> int:
    """Lock a folder for as long as this process, or one that it forks, lives."""
    fd = os.open(Path(folder) / "held", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_held(folder: Path) -> bool:
    """Whether a guard holds it, in another container even; or it is not ours to ask."""
    try:
        fd = os.open(folder / "held", os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class Guard:
    """Starts ranks, reports their ends, and kills all when told or left alone."""

    def __init__(self, kernel: socket.socket, folder: str, kernel_pid: int) -> None:
        self._kernel = kernel
        self._channel = Channel(kernel)
        self._folder = folder
        self._kernel_pid = kernel_pid
        hold(folder)
        self._rank_of: dict[int, int] = {}

    def run(self) -> None:
        """Serve the kernel until its end of the socket closes; then end everything."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.set_wakeup_fd(woken.fileno())
        kernel_end = process.end_of(self._kernel_pid)
        watched = [self._kernel, wake, *kernel_end]
        try:
            while not process.has_ended(kernel_end):
                ready, _, _ = select.select(watched, [], [], 1.0)
                if wake in ready:
                    wake.recv(4096)
                if self._kernel in ready:
                    self._handle(*fdpass.receive(self._kernel))
                self._reap()
        except (EOFError, OSError):
            signal.set_wakeup_fd(-1)
        finally:
            self.end_all()

    def _handle(self, message: StartRank, fds: list[int]) -> None:
        start = _spawn if message.spawn else self._fork
        pid = start(message.spec, fds)
        for fd in fds:
            os.close(fd)
        self._rank_of[pid] = message.spec.rank
        self._channel.send_object(FrameKind.STARTED, message.spec.rank, pid)

    def _fork(self, spec: RankSpec, fds: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(lambda: self._start_rank(parent, spec, fds))
        return pid

    def _start_rank(self, parent: int, spec: RankSpec, fds: list[int]) -> None:
        os.setpgid(0, 0)
        process.die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._kernel.close()
        enter(spec, fds)

    def _reap(self) -> None:
        """Report each rank that has ended, and end what it left behind."""
        while (ended := ended_child()) is not None:
            process.kill_group(ended)
            _, status, usage = os.wait4(ended, 0)
            rank = self._rank_of.pop(ended, None)
            if rank is None:
                continue
            self._sweep()
            exited = _exited(rank, ended, status, usage.ru_maxrss)
            self._channel.send_object(FrameKind.EXITED, rank, exited)

    def _sweep(self) -> None:
        """Kill adopted orphans: children that are not ranks."""
        for pid in process.child_pids():
            if pid not in self._rank_of:
                process.kill_group(pid)

    def end_all(self) -> None:
        """Kill every rank and every descendant, wait for them, remove the folder."""
        for pid in self._rank_of:
            process.kill_group(pid)
        self._rank_of.clear()
        deadline_s = time.monotonic() + SWEEP_LIMIT_S
        while time.monotonic() < deadline_s:
            self._sweep()
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                time.sleep(0.002)
        shutil.rmtree(self._folder, ignore_errors=True)


def _only_wake(signum: int, frame: FrameType | None) -> None:
    """Nothing more to do: a signal that has a handler writes to the wake-up file."""


def ended_child() -> int | None:
    """A child that has ended and is not reaped yet: its id is still its own."""
    try:
        result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return result.si_pid if result is not None else None


def _exited(rank: int, pid: int, status: int, max_rss: int) -> Exited:
    """How a process ended; ru_maxrss is in KiB on Linux, in bytes on macOS."""
    scale = 1 if sys.platform == "darwin" else 1024
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return Exited(rank, pid, -code, None, max_rss * scale)
    return Exited(rank, pid, None, code, max_rss * scale)


def become(body: Callable[[], None]) -> None:
    """Run `body` in a forked child, which never returns into its parent's code."""
    try:
        body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _spawn(spec: RankSpec, fds: list[int]) -> int:
    """Start a rank in a fresh interpreter: where CUDA or the system forbids forking."""
    child = subprocess.Popen(
        command("labkit.runtime.rank", *fds, os.getpid()),
        pass_fds=fds,
        stdin=subprocess.PIPE,
        start_new_session=False,
        process_group=0,
        env={**os.environ, **spec.env},
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(spec))
    child.stdin.close()
    child.returncode = 0  # the guard reaps by itself
    return child.pid


def main(kernel_fd: int, folder: str, kernel_pid: int) -> None:
    """Be the guard of one generation."""
    process.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Guard(socket.socket(fileno=kernel_fd), folder, kernel_pid).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
