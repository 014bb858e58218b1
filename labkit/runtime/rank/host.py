"""One process that hosts every rank as a thread: cheap, deterministic, disposable.

The ranks take turns under a baton (labkit.comm.groups.threads). Each keeps its
variables from job to job, unpickles its own copy of the function, and prints under its
own tag.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

from labkit.comm.groups.recording import Hooks
from labkit.comm.groups.threads import ThreadRanks
from labkit.record import recorder as recording
from labkit.runtime.rank import job as jobs
from labkit.runtime.rank import namespace, travel
from labkit.runtime.rank.failure import describe
from labkit.runtime.rank.knobs import KnobHooks
from labkit.runtime.rank.link import Link, own_line
from labkit.runtime.rank.messages import Done, Failure, Job, Knobs, RankSpec
from labkit.runtime.rank.serve import settle
from labkit.runtime.rank.wire import Channel, FrameKind


def serve(spec: RankSpec, channel: Channel) -> None:
    """Host all ranks until the kernel closes the channel."""
    settle(spec)
    Host(spec, channel).loop()


class Host:
    """The ranks of one process."""

    def __init__(self, spec: RankSpec, channel: Channel) -> None:
        ranks = range(spec.world_size)
        recorders = [recording.Recorder(rank) for rank in ranks]
        self._spaces = [namespace.create(rank, spec.world_size) for rank in ranks]
        self._knobs = [KnobHooks() for _ in ranks]
        self._thread_ids: dict[int, int] = {}
        self._link = Link(channel, dict(enumerate(recorders)), self._where)
        for name in ("stdout", "stderr"):
            setattr(sys, name, TaggedStream(getattr(sys, name), name, self._link))
        self._threads = ThreadRanks(
            spec.world_size,
            recorders=recorders,
            hooks=[
                Hooks(knobs.before_issue, knobs.after_wait) for knobs in self._knobs
            ],
            rendezvous=spec.rendezvous,
        )

    def loop(self) -> None:
        """Run jobs for ever; the kernel ends the process when it has had enough."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._link.start()
        for rank in range(len(self._spaces)):
            self._link.finish(FrameKind.READY, rank, os.getpid())
        while True:
            job = self._link.jobs.get()
            self._threads.run(partial(self._run_on, job), job.ranks)
            self._link.running = None

    def _run_on(self, job: Job, rank: int) -> None:
        """In the rank's own thread: run the job, and tell the kernel how it ended.

        A rank that stalled tells nothing: to the kernel it is still in its call.
        """
        self._thread_ids[rank] = threading.get_ident()
        namespace.enter(self._spaces[rank])
        TaggedStream.thread.rank = rank
        kind, message = self._outcome(job, rank)
        if not self._threads.has_stalled(rank):
            self._link.finish(kind, rank, message)

    def _outcome(self, job: Job, rank: int) -> tuple[FrameKind, Done | Failure]:
        try:
            jobs.prepare(job)
            data = travel.dumps_result(self._result(job, rank))
            done = Done(
                job.id, data, namespace.variables(), time.monotonic(), jobs.told()
            )
        except BaseException as error:
            return FrameKind.FAILED, describe(error, job)
        return FrameKind.DONE, done

    def _result(self, job: Job, rank: int) -> Any:
        knobs = self._knobs[rank]
        knobs.start(job.knobs.get(rank, Knobs()))
        result = jobs.run(job)
        knobs.be_slow()
        return result

    def _where(self, rank: int) -> str | None:
        return own_line(self._thread_ids.get(rank, 0))


class TaggedStream(io.TextIOBase):
    """Sends what a rank's thread prints as that rank's; other threads print plainly."""

    thread = threading.local()

    def __init__(self, plain: Any, name: str, link: Link) -> None:
        super().__init__()
        self._plain = plain
        self._name = name
        self._link = link

    def write(self, text: str) -> int:
        """Send text under the tag of the calling thread's rank."""
        rank = getattr(self.thread, "rank", None)
        if rank is None:
            return self._plain.write(text)
        data = text.encode(errors="replace")
        self._link.channel.send_object(FrameKind.OUTPUT, rank, (self._name, data))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""
        self._plain.flush()

    def fileno(self) -> int:
        """The process's own stream, which all ranks share."""
        return self._plain.fileno()

    def isatty(self) -> bool:
        """Never a terminal."""
        return False
