"""Pickled messages over a Unix socket, with open files handed along."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
MAX_FDS = 8


def send(sock: socket.socket, message: Any, fds: tuple[int, ...] = ()) -> None:
    """Send one message; the other process gets its own copies of `fds`."""
    data = pickle.dumps(message, protocol=5)
    socket.send_fds(sock, [_LENGTH.pack(len(data))], list(fds))
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Receive one message and its files. Raises EOFError when the sender is gone."""
    header, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, MAX_FDS)
    while 0 < len(header) < _LENGTH.size:
        header += _read(sock, _LENGTH.size - len(header))
    if not header:
        raise EOFError("the sender closed the socket")
    data = _read(sock, _LENGTH.unpack(header)[0])
    return pickle.loads(data), list(fds)


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        piece = sock.recv(num_bytes - len(data))
        if not piece:
            raise EOFError("the sender closed the socket in mid-message")
        data += piece
    return data
