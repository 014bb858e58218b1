"""Proof, before the first pickle is read, that both ends know the same token.

Each end answers the other's random challenge with HMAC-SHA256 under the token, so that
the token itself never crosses the network.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

NONCE_BYTES = 32
LIMIT_S = 5.0
CONNECT_LIMIT_S = 60.0


class Refused(ConnectionError):
    """The other end does not know the token, or does not speak this protocol."""


def _answer(token: str, who: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), who + nonce, hashlib.sha256)


def _read(sock: socket.socket, num_bytes: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < num_bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise Refused("the other end took too long over the handshake")
        sock.settimeout(left_s)
        piece = sock.recv(num_bytes - len(data))
        if not piece:
            raise Refused("the other end hung up during the handshake")
        data += piece
    return data


def welcome(sock: socket.socket, token: str) -> None:
    """The kernel's side. Raises Refused or TimeoutError; leaves the socket blocking."""
    deadline_s = time.monotonic() + LIMIT_S
    sock.settimeout(LIMIT_S)
    nonce = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(nonce)
    answer = _read(sock, NONCE_BYTES, deadline_s)
    theirs = _read(sock, NONCE_BYTES, deadline_s)
    if not hmac.compare_digest(answer, _answer(token, b"rank", nonce)):
        raise Refused("a caller did not know the token")
    sock.sendall(_answer(token, b"kernel", theirs))
    sock.settimeout(None)


def dial(host: str, port: int, token: str) -> socket.socket:
    """The rank's side: connect to the kernel and prove the token, both ways."""
    sock = socket.create_connection((host, port), timeout=CONNECT_LIMIT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline_s = time.monotonic() + CONNECT_LIMIT_S
        theirs = _read(sock, NONCE_BYTES, deadline_s)
        mine = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(_answer(token, b"rank", theirs) + mine)
        proof = _read(sock, NONCE_BYTES, deadline_s)
        if not hmac.compare_digest(proof, _answer(token, b"kernel", mine)):
            raise Refused("the notebook does not know the token: is this its address?")
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return sock
