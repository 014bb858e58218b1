"""Frames on a stream socket: a kind, a rank, and a payload of bytes.

Kernel and ranks speak nothing else, over a socket pair on one machine or TCP between
machines. A frame is a 13-byte header (kind, rank, length) and its payload.
"""

from __future__ import annotations

import enum
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

_HEADER = struct.Struct("!BIQ")
CHUNK_BYTES = 1 << 20
SMALL_BYTES = 1 << 16


class FrameKind(enum.IntEnum):
    """What a frame carries, and who sends it."""

    JOB = 1  # kernel: run this
    STOP = 2  # kernel: interrupt what runs
    PING = 3  # kernel: say what you are doing
    BYE = 4  # kernel: the notebook needs this rank no more
    HELLO = 10  # rank: who it is, after the handshake
    READY = 11  # rank: its process group stands
    EVENTS = 12  # rank: recorded events
    OUTPUT = 13  # rank: text that a rank which is a thread printed
    DONE = 14  # rank: the job's result
    FAILED = 15  # rank: the job raised
    PONG = 16  # rank: what it is doing
    STARTED = 21  # guard: a rank's process id
    EXITED = 22  # guard: a rank's process ended


class Frame(NamedTuple):
    """One message."""

    kind: FrameKind
    rank: int
    payload: bytes

    def load(self) -> Any:
        """The payload as a Python object: control messages only, never a result."""
        return pickle.loads(self.payload)


def encode(kind: FrameKind, rank: int, payload: bytes) -> bytes:
    """The header of a frame, to be followed by its payload."""
    return _HEADER.pack(kind, rank, len(payload))


class FrameParser:
    """Turns a stream of bytes, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is complete once `data` has come in."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            payload = bytes(memoryview(self._buffer)[start + _HEADER.size : end])
            yield Frame(FrameKind(kind), rank, payload)
            start = end
        del self._buffer[:start]


class Channel:
    """The rank's end of a socket: blocking, and safe to send on from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._parser = FrameParser()

    def send(self, kind: FrameKind, rank: int, payload: bytes) -> None:
        """Send one frame; blocks while the other end does not read."""
        header = encode(kind, rank, payload)
        pieces = [header + payload] if len(payload) < SMALL_BYTES else [header, payload]
        with self._lock:
            for piece in pieces:
                self.sock.sendall(piece)

    def send_object(self, kind: FrameKind, rank: int, value: Any) -> None:
        """Send one frame with a pickled control message."""
        self.send(kind, rank, pickle.dumps(value, protocol=5))

    def receive(self) -> list[Frame]:
        """The frames of the next piece of data. Raises EOFError at the end."""
        data = self.sock.recv(CHUNK_BYTES)
        if not data:
            raise EOFError("the other end closed the channel")
        return list(self._parser.feed(data))
