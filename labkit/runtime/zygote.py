"""The zygote: a process with torch imported, from which guards are forked.

One for each kernel. It has one thread, has run no operation, and has never touched
CUDA, so that forking it is safe; the kernel itself, with its threads and its GPU, never
forks. It leaves the kernel's process group: Jupyter interrupts that whole group.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys

from labkit.runtime import fdpass, guard
from labkit.runtime.rank import process


class Zygote:
    """Forks a guard for each request, until the kernel's end of the socket closes."""

    def __init__(self, kernel: socket.socket, kernel_pid: int) -> None:
        self._kernel = kernel
        self._kernel_pid = kernel_pid
        self._guards: set[int] = set()

    def run(self) -> None:
        """Serve until the kernel is gone; its guards see that by themselves."""
        kernel_end = process.end_of(self._kernel_pid)
        try:
            while not process.has_ended(kernel_end):
                self._reap()
                ready, _, _ = select.select([self._kernel, *kernel_end], [], [], 1.0)
                if self._kernel in ready:
                    folder, fds = fdpass.receive(self._kernel)
                    self._fork_guard(folder, fds[0])
        except (EOFError, OSError):
            return

    def _fork_guard(self, folder: str, guard_fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            guard.become(lambda: self._be_guard(folder, guard_fd))
        os.close(guard_fd)
        self._guards.add(pid)

    def _be_guard(self, folder: str, guard_fd: int) -> None:
        os.setsid()
        self._kernel.close()
        guard.main(guard_fd, folder, self._kernel_pid)
        os._exit(0)

    def _reap(self) -> None:
        """Reap guards, and end the orphans of one that was killed."""
        while (ended := guard.ended_child()) is not None:
            os.waitpid(ended, 0)
            self._guards.discard(ended)
        for pid in process.child_pids():
            if pid not in self._guards:
                process.kill_group(pid)


def import_torch() -> None:
    """Everything that a rank needs, imported once for all of them."""
    import torch

    for name in ("host", "serve"):
        importlib.import_module(f"labkit.runtime.rank.{name}")
    assert not torch.cuda.is_initialized(), "a zygote that holds CUDA cannot be forked"
    # It all lives as long as a rank does. To look through it takes the collector of
    # cycles 0.1 s, and writes to every page that ranks share.
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.adopt_orphans()
    import_torch()
    Zygote(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
    os._exit(0)
