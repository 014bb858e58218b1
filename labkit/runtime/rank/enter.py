"""The first steps of a rank's process: its channel, its output, then its life."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TextIO

from labkit.runtime.rank.messages import RankSpec
from labkit.runtime.rank.wire import Channel


def output_stream(fd: int) -> TextIO:
    """A stream that sends each line on as it ends, and prints whatever it is given."""
    return os.fdopen(
        fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
    )


def enter(spec: RankSpec, fds: list[int]) -> None:
    """In the rank's own process: take the channel and the output files, then serve."""
    channel_fd, out_fd, err_fd = fds
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    os.close(out_fd)
    os.close(err_fd)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = output_stream(1), output_stream(2)
    channel_socket = socket.socket(fileno=channel_fd)
    if spec.backend == "threads":
        from labkit.runtime.rank.host import serve
    else:
        from labkit.runtime.rank.serve import serve
    serve(spec, Channel(channel_socket))
