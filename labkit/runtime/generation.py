"""One set of ranks on this machine: started together, ended together."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psutil

from labkit.errors import StartError
from labkit.runtime import fdpass
from labkit.runtime.channels import Channels, close_after_fork
from labkit.runtime.devices import Placement
from labkit.runtime.guard import StartRank, is_held
from labkit.runtime.kernel import command, environment, the_zygote
from labkit.runtime.rank.messages import RankSpec
from labkit.runtime.rank.wire import CHUNK_BYTES

END_LIMIT_S = 3.0
# A folder may be so old before the guard that is on its way holds it.
YOUNG_S = 60.0
# What the ranks' meeting place and notice board take of the folder, for each rank.
SHARED_BYTES = 1 << 17


class Generation:
    """`world_size` ranks of this machine, under one guard."""

    def __init__(
        self, placement: Placement, world_size: int, *, rendezvous: bool
    ) -> None:
        """Ask for the ranks; pump `channels` until each has sent READY."""
        self.channels = Channels()
        self._world_size = world_size
        self._folder = make_folder(world_size * SHARED_BYTES)
        self._popen: subprocess.Popen[bytes] | None = None
        self._guard, theirs = socket.socketpair()
        try:
            with theirs:
                self._start_guard(placement, theirs.fileno())
            for spec in self._specs(placement, rendezvous):
                self._start(spec, spawn=placement.start == "spawn")
        except BaseException:
            self.end(wait=True)
            raise
        # Until now it went at the guard's pace; from now on nobody waits for it.
        self.channels.watch(self._guard, "guard")
        close_after_fork(self.channels)

    def _start_guard(self, placement: Placement, fd: int) -> None:
        if placement.start == "fork":
            the_zygote().request(self._folder, fd)
        else:
            self._popen = self._spawn_guard(fd)

    def _spawn_guard(self, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command("labkit.runtime.guard", fd, self._folder, os.getpid()),
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        )

    def _specs(self, placement: Placement, rendezvous: bool) -> list[RankSpec]:
        hosts = 1 if placement.backend == "threads" else self._world_size
        return [
            RankSpec(
                rank=rank,
                world_size=self._world_size,
                backend=placement.backend,
                device=placement.device_of[rank],
                num_threads=placement.threads_per_rank,
                rendezvous=rendezvous,
                meeting_folder=self._folder,
                sys_path=tuple(sys.path),
                folder=_working_folder(),
                env={**environment(), **placement.env},
            )
            for rank in range(hosts)
        ]

    def _start(self, spec: RankSpec, *, spawn: bool) -> None:
        """Hand the guard one rank to start, with its ends of channel and pipes."""
        rank = None if spec.backend == "threads" else spec.rank
        try:
            with ExitStack() as theirs:
                ours, channel = socket.socketpair()
                fds = [theirs.enter_context(channel).fileno()]
                self.channels.add_rank(spec.rank, ours)
                for stream in ("stdout", "stderr"):
                    read, write = os.pipe()
                    theirs.callback(os.close, write)
                    fds.append(write)
                    file = os.fdopen(read, "rb", buffering=0)
                    self.channels.watch(file, stream, rank)
                fdpass.send(self._guard, StartRank(spec, spawn), tuple(fds))
        except OSError as error:
            raise StartError(_why_not(spec.rank, error)) from error

    def crash_text(self, rank: int) -> str:
        """The Python stack that a rank wrote as native code crashed it; else empty."""
        try:
            return (Path(self._folder) / f"crash-{rank}").read_text()
        except OSError:
            return ""

    def end(self, *, wait: bool) -> None:
        """Have every rank killed; with `wait`, return once the guard is done."""
        self.channels.close(keep=self._guard)
        guard_was_killed = self._guard.fileno() < 0
        if not guard_was_killed:
            self._hang_up(wait)
        if self._popen is not None:
            _ending.append(self._popen)
        if self._popen is not None and wait:
            self._popen.wait(END_LIMIT_S)
        _ending[:] = [guard for guard in _ending if guard.poll() is None]
        if wait or guard_was_killed:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _hang_up(self, wait: bool) -> None:
        """Close our half of the guard's socket; it closes its own once all are gone."""
        try:
            self._guard.shutdown(socket.SHUT_WR)
            self._guard.settimeout(END_LIMIT_S)
            while wait and self._guard.recv(CHUNK_BYTES):
                pass
        except OSError:
            pass
        self._guard.close()


# Spawned guards that were told to end, kept until they have been reaped.
_ending: list[subprocess.Popen[bytes]] = []


def _why_not(rank: int, error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"each rank needs 3 open files of the notebook's {limit}; there was none "
            f"left for rank {rank}. Use fewer ranks, close other clusters, or raise "
            "the limit (ulimit -n) before JupyterLab starts"
        )
    return (
        f"rank {rank} could not be started: the process that starts ranks is gone "
        f"({error}). Make a new Cluster; `labkit doctor` tells more"
    )


def _working_folder() -> str:
    """Where the notebook works; empty if that folder has been removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def make_folder(num_bytes: int) -> str:
    """A private folder with room for so much, in memory where there is room for it."""
    sweep_folders()
    tried: list[str] = []
    for parent in _parents():
        folder = None
        try:
            folder = tempfile.mkdtemp(prefix=f"labkit-{os.getpid()}-", dir=parent)
            probe = Path(folder) / "probe"
            probe.write_bytes(b"\0" * num_bytes)
            probe.unlink()
            return folder
        except OSError as error:
            tried.append(f"{parent}: {error.strerror or error}")
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
    raise StartError(
        "ranks meet through a small file, and no folder could take it "
        f"({'; '.join(tried)}). Free some space there, or set TMPDIR to another folder"
    )


def _parents() -> tuple[str, str]:
    return "/dev/shm", tempfile.gettempdir()


@cache
def sweep_folders() -> None:
    """Once a kernel: remove folders of this user's kernels that were killed outright.

    A guard removes its folder when it ends; one that was killed together with its
    kernel could not.
    """
    for parent in _parents():
        for folder in Path(parent).glob("labkit-*-*"):
            match = re.fullmatch(r"labkit-(\d+)-\w+", folder.name)
            if match is None or psutil.pid_exists(int(match.group(1))):
                continue
            if _age_s(folder) > YOUNG_S and not is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0
