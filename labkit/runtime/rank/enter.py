"""The first steps of a rank's process: its channel, its output, then its life."""

from __future__ import annotations

import os
import socket
import sys

from labkit.runtime.rank.messages import RankSpec
from labkit.runtime.rank.wire import Channel


def enter(spec: RankSpec, fds: list[int]) -> None:
    """In the rank's own process: take the channel and the output files, then serve."""
    channel_fd, out_fd, err_fd = fds
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    os.close(out_fd)
    os.close(err_fd)
    text = {"buffering": 1, "encoding": "utf-8", "errors": "replace"}
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, **text)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, **text)  # noqa: SIM115
    channel_socket = socket.socket(fileno=channel_fd)
    if spec.backend == "threads":
        from labkit.runtime.rank.host import serve
    else:
        from labkit.runtime.rank.serve import serve
    serve(spec, Channel(channel_socket))
