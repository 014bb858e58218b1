"""The thread of a rank that listens to the kernel while the main thread works.

It hands over jobs, sends recorded events while one runs, says where the main thread
stands, interrupts it, and ends the rank when the kernel is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable

from labkit.record.recorder import Recorder
from labkit.record.site import frame_of, is_library
from labkit.runtime.rank.messages import Job, Pong
from labkit.runtime.rank.wire import Channel, Frame, FrameKind

LOOK_EVERY_S = 0.02
# Each message wakes the kernel, on a core that a rank may want.
FLUSH_EVERY_S = 0.06


class Link(threading.Thread):
    """Listens on the channel of one process, which may host many ranks as threads."""

    def __init__(
        self,
        channel: Channel,
        recorders: dict[int, Recorder],
        where: Callable[[int], str | None],
    ) -> None:
        super().__init__(name="labkit-link", daemon=True)
        self.channel = channel
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.running: Job | None = None
        self._recorders = recorders
        self._where = where
        self._flush_lock = threading.Lock()
        self._flushed_s = 0.0

    def run(self) -> None:
        """Listen until the kernel closes the channel, then end the whole process."""
        try:
            while True:
                timeout_s = LOOK_EVERY_S if self.running is not None else None
                ready, _, _ = select.select([self.channel.sock], [], [], timeout_s)
                for frame in self.channel.receive() if ready else ():
                    self._handle(frame)
                for recorder in self._recorders.values():
                    recorder.look()
                if self._is_due():
                    self.flush()
        except (EOFError, OSError):
            end_process_group()
        except BaseException:
            # A rank that no longer listens would live for ever.
            traceback.print_exc()
            end_process_group()

    def _is_due(self) -> bool:
        """Who begins to stand still may do so for ever: that is told at once."""
        stands_still = any(each.stands_still for each in self._recorders.values())
        return stands_still or time.monotonic() - self._flushed_s >= FLUSH_EVERY_S

    def flush(self) -> None:
        """Send every event recorded so far, in order."""
        with self._flush_lock:
            self._flushed_s = time.monotonic()
            for rank, recorder in self._recorders.items():
                events = recorder.drain()
                if events:
                    self.channel.send_object(FrameKind.EVENTS, rank, events)

    def finish(self, kind: FrameKind, rank: int, message: object) -> None:
        """Send a job's outcome, after every event that came before it."""
        self.flush()
        self.channel.send_object(kind, rank, message)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.JOB:
            job: Job = frame.load()
            self.running = job
            self.jobs.put(job)
        elif frame.kind is FrameKind.STOP:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif frame.kind is FrameKind.BYE:
            leave()
        elif frame.kind is FrameKind.PING:
            running = self.running
            for rank in self._recorders:
                job_id, where = running.id if running else None, self._where(rank)
                pong = Pong(job_id, where, frame.payload, time.monotonic())
                self.channel.send_object(FrameKind.PONG, rank, pong)


def end_process_group() -> None:
    """End this rank and every process that it started in its own process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def leave() -> None:
    """End well, and what this rank started in its own process group by force."""
    own_group = os.getpid()
    if os.getpgrp() == own_group:
        with contextlib.suppress(OSError):
            os.setpgid(0, os.getpgid(os.getppid()))
            os.killpg(own_group, signal.SIGKILL)
    os._exit(0)


def own_line(thread_id: int) -> str | None:
    """The innermost of the learner's lines that a thread stands at."""
    stack = traceback.extract_stack(frame_of(thread_id))
    for summary in reversed(stack):
        if not is_library(summary.filename):
            return f'File "{summary.filename}", line {summary.lineno}: {summary.line}'
    return None
