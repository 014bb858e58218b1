"""Sockets to a set of ranks: bytes moved both ways, never waiting for one of them.

It has no thread of its own: whoever drives a run calls `pump`.
"""

from __future__ import annotations

import os
import selectors
import socket
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from labkit.runtime.rank.messages import Exited
from labkit.runtime.rank.wire import CHUNK_BYTES, Frame, FrameKind, FrameParser, encode

Role = Literal["guard", "rank", "stdout", "stderr"]


@dataclass(frozen=True)
class Output:
    """Bytes that a rank wrote; `rank` is None for a process that hosts all of them."""

    rank: int | None
    stream: str
    data: bytes


@dataclass(frozen=True)
class Gone:
    """A rank's channel closed: its process ended or is ending."""

    rank: int


@dataclass(frozen=True)
class GuardGone:
    """The guard ended: every rank that it watched over ends too."""


Happening = Frame | Output | Gone | GuardGone


@dataclass(frozen=True)
class _Watched:
    """What a file is to us; a stream of frames has a parser."""

    role: Role
    rank: int | None
    parser: FrameParser | None


class Channels:
    """Every socket and pipe of one generation of ranks."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.exited: dict[int, Exited] = {}
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._sockets: dict[int, socket.socket] = {}
        self._outboxes: dict[int, deque[memoryview]] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a channel."""
        return tuple(self._sockets)

    def add_rank(self, rank: int, channel: socket.socket) -> None:
        """Speak with a rank over `channel`."""
        self._sockets[rank] = channel
        self._outboxes[rank] = deque()
        self.watch(channel, "rank", rank)

    def watch(self, file: Any, role: Role, rank: int | None = None) -> None:
        """Read from a socket or pipe whenever there is something."""
        os.set_blocking(file.fileno(), False)
        parser = FrameParser() if role in ("rank", "guard") else None
        watched = _Watched(role, rank, parser)
        self._selector.register(file, selectors.EVENT_READ, watched)

    def send(self, kind: FrameKind, rank: int, payload: bytes) -> None:
        """Queue a frame for one rank's process; `pump` writes what does not fit now."""
        channel = self._sockets[rank]
        if channel.fileno() < 0:
            return
        box = self._outboxes[rank]
        box.append(memoryview(encode(kind, rank, payload)))
        if payload:
            box.append(memoryview(payload))
        self._write(rank)

    def _write(self, rank: int) -> None:
        channel, box = self._sockets[rank], self._outboxes[rank]
        try:
            while box:
                sent = channel.send(box[0][:CHUNK_BYTES])
                box[0] = box[0][sent:]
                if not box[0]:
                    box.popleft()
        except BlockingIOError:
            pass
        except OSError:
            box.clear()
        key = self._selector.get_map().get(channel)
        if key is not None:
            more = selectors.EVENT_WRITE if box else 0
            self._selector.modify(channel, selectors.EVENT_READ | more, key.data)

    def pump(self, timeout_s: float) -> list[Happening]:
        """Move bytes for at most `timeout_s`, and return what arrived."""
        happenings: list[Happening] = []
        for key, ready in self._selector.select(timeout_s):
            if ready & selectors.EVENT_WRITE:
                self._write(key.data.rank)
            if ready & selectors.EVENT_READ:
                happenings += self._read(key.fileobj, key.data)
        return happenings

    def _read(self, file: Any, watched: _Watched) -> list[Happening]:
        try:
            data = os.read(file.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(file)
            file.close()
            return _end_of(watched)
        if watched.parser is None:
            return [Output(watched.rank, watched.role, data)]
        return [frame for frame in watched.parser.feed(data) if not self._noted(frame)]

    def _noted(self, frame: Frame) -> bool:
        """Keep what a guard tells of its ranks."""
        if frame.kind is FrameKind.STARTED:
            self.pids[frame.rank] = frame.load()
        elif frame.kind is FrameKind.EXITED:
            self.exited[frame.rank] = frame.load()
        else:
            return False
        return True

    def close(self, keep: socket.socket | None = None) -> None:
        """Close this process's end of everything but `keep`; more than once is fine."""
        if self._closed:
            return
        self._closed = True
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not keep:
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


_living: weakref.WeakSet[Channels] = weakref.WeakSet()


def close_after_fork(channels: Channels) -> None:
    """See to it that a forked child of the kernel does not keep these open."""
    _living.add(channels)


def _close_all() -> None:
    for channels in list(_living):
        channels.close()


os.register_at_fork(after_in_child=_close_all)


def _end_of(watched: _Watched) -> list[Happening]:
    if watched.role == "guard":
        return [GuardGone()]
    if watched.role == "rank" and watched.rank is not None:
        return [Gone(watched.rank)]
    return []
