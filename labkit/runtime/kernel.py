"""The kernel's hold on its zygote: started on first need, again if it is gone."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import labkit
from labkit.errors import StartError
from labkit.runtime import fdpass

_PACKAGE_PARENT = str(Path(labkit.__file__).resolve().parent.parent)


def environment() -> dict[str, str]:
    """The environment of a zygote or a guard: this kernel's, with labkit in reach."""
    paths = [_PACKAGE_PARENT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **{name: os.environ.get(name, "1") for name in THREAD_VARIABLES},
    }


# Read when torch is imported. Ranks set their own number of threads after the fork.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def command(module: str, *arguments: object) -> list[str]:
    """The command that runs one of labkit's modules in a fresh interpreter.

    -P keeps a file of the learner's, random.py say, from hiding a standard module.
    """
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


DYING_S = 1.0


class ZygoteHandle:
    """The kernel's end of one zygote."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                command("labkit.runtime.zygote", fd, os.getpid()),
                pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=self._log,
                stderr=self._log, start_new_session=True, env=environment(),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can take a request from this process."""
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def request(self, folder: str, guard_fd: int) -> None:
        """Have a guard forked, which will listen on `guard_fd`."""
        try:
            fdpass.send(self._socket, folder, (guard_fd,))
        except OSError as error:
            raise StartError(self.obituary()) from error

    def close(self) -> None:
        """Let go of it; its guards live on for as long as their own sockets do."""
        self._socket.close()
        self._log.close()
        if self.owner_pid == os.getpid():
            self._process.kill()
            self._process.wait()

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so now: its sockets close a moment before."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def obituary(self) -> str:
        """That it ended, and what it said last."""
        return (
            "the process that starts ranks must stay alive; it ended with: "
            f"{self._last_words()}. Run the cell again; `labkit doctor` tells more"
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


_zygote: ZygoteHandle | None = None


def the_zygote() -> ZygoteHandle:
    """This kernel's zygote, started now if there is none."""
    global _zygote
    if _zygote is None or not _zygote.is_alive():
        _let_go()
        _zygote = ZygoteHandle()
    return _zygote


def obituary() -> str:
    """Why ranks never started: the zygote's end, or that of a guard of its own."""
    if _zygote is not None and _zygote.ends_within(DYING_S):
        return _zygote.obituary()
    return (
        "the process that starts ranks must stay alive; it ended before any rank had "
        "started. Run the cell again; `labkit doctor` tells more"
    )


@atexit.register
def _let_go() -> None:
    """Leave no zygote behind that this process has no use for."""
    if _zygote is not None and _zygote.owner_pid == os.getpid():
        _zygote.close()
