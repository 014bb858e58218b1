"""The life of a rank that is a process: join the world, then run one job after another.

A rank comes back to its loop after a job, whatever the job did, and keeps its
variables.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
import torch
import torch.distributed as dist

from labkit.comm.groups import backend
from labkit.comm.groups.board import Board
from labkit.comm.groups.recording import Hooks
from labkit.record import recorder as recording
from labkit.runtime.rank import job as jobs
from labkit.runtime.rank import namespace, travel
from labkit.runtime.rank.failure import Stopped, describe
from labkit.runtime.rank.knobs import KnobHooks
from labkit.runtime.rank.link import Link, own_line
from labkit.runtime.rank.messages import Done, Job, Knobs, RankSpec
from labkit.runtime.rank.wire import Channel, FrameKind


def serve(
    spec: RankSpec,
    channel: Channel,
    store: dist.Store | None = None,
    drain: Callable[[], None] = lambda: None,
) -> None:
    """Be rank `spec.rank` until the kernel closes the channel.

    The ranks meet at `store`, or else in the meeting folder of their machine. `drain`
    is called at the end of each job: what it printed must arrive before its result.
    """
    settle(spec)
    module = namespace.create(spec.rank, spec.world_size)
    namespace.enter(module, whole_process=True)
    rank = Rank(spec, channel, drain)
    rank.join(store)
    rank.loop()


def settle(spec: RankSpec) -> None:
    """Set up what is the process's own: folder, threads, random state, crash file."""
    sys.path[:] = spec.sys_path
    jobs.enter_folder(spec.folder)
    if spec.meeting_folder is not None:
        os.environ.clear()
    os.environ.update(spec.env)
    torch.set_num_threads(spec.num_threads)
    torch.seed()
    random.seed()
    np.random.seed()
    faulthandler.enable(file=_crash_file(spec), all_threads=False)
    if spec.device.startswith("cuda"):
        torch.cuda.set_device(spec.device)


def _crash_file(spec: RankSpec) -> TextIO:
    """Where the stack goes when native code crashes; it is never closed."""
    if spec.meeting_folder is None:
        return sys.__stderr__ or sys.stderr
    return (Path(spec.meeting_folder) / f"crash-{spec.rank}").open("w")


def _file_store(spec: RankSpec) -> dist.Store:
    assert spec.meeting_folder is not None
    return dist.FileStore(str(Path(spec.meeting_folder) / "store"), spec.world_size)


def _board(spec: RankSpec) -> Board | None:
    """The board that all ranks of one machine share."""
    if spec.meeting_folder is None:
        return None
    path = Path(spec.meeting_folder) / "board"
    return Board(str(path), spec.rank, spec.world_size)


class Rank:
    """One rank: its recorder, its link to the kernel, its loop."""

    def __init__(
        self, spec: RankSpec, channel: Channel, drain: Callable[[], None]
    ) -> None:
        self.spec = spec
        self._drain = drain
        self._recorder = recording.Recorder(
            spec.rank, backend="nccl" if spec.backend == "nccl" else "gloo"
        )
        recording.install(self._recorder)
        self._knobs = KnobHooks()
        self._running = False
        self._output = sys.stdout, sys.stderr
        self._link = Link(channel, {spec.rank: self._recorder}, self._where)
        signal.signal(signal.SIGINT, self._on_sigint)

    def join(self, store: dist.Store | None) -> None:
        """Make the default process group, with every other rank."""
        self._link.start()
        spec = self.spec
        under = backend.Under(
            name=spec.backend,
            make_inner=backend.nccl if spec.backend == "nccl" else backend.gloo,
            recorder=self._recorder,
            hooks=Hooks(self._knobs.before_issue, self._knobs.after_wait),
            rendezvous=spec.rendezvous,
            board=_board(spec),
            futures_tell=spec.backend == "gloo",
        )
        backend.join_world(
            under, spec.rank, spec.world_size, store or _file_store(spec)
        )
        self._link.finish(FrameKind.READY, spec.rank, os.getpid())

    def loop(self) -> None:
        """Run jobs for ever; the link ends the process when the kernel is gone."""
        while True:
            job = self._link.jobs.get()
            kind, message = self._outcome(job)
            self._restore_output()
            self._link.running = None
            self._link.finish(kind, self.spec.rank, message)

    def _restore_output(self) -> None:
        """Take back sys.stdout and sys.stderr, wherever the job has turned them."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        sys.stdout, sys.stderr = self._output
        self._drain()

    def _outcome(self, job: Job) -> tuple[FrameKind, Any]:
        try:
            jobs.prepare(job)
            self._knobs.start(job.knobs.get(self.spec.rank, Knobs()))
            result = self._run_interruptibly(job)
            data = travel.dumps_result(result)
            done = Done(
                job.id, data, namespace.variables(), time.monotonic(), jobs.told()
            )
        except BaseException as error:
            return FrameKind.FAILED, describe(error, job)
        return FrameKind.DONE, done

    def _run_interruptibly(self, job: Job) -> Any:
        self._running = True
        try:
            result = jobs.run(job)
            self._knobs.be_slow()
            return result
        finally:
            self._running = False

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        if self._running:
            self._running = False
            raise Stopped("stopped by the notebook")

    def _where(self, rank: int) -> str | None:
        return own_line(threading.main_thread().ident or 0) if self._running else None
