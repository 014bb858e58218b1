r"""A rank on another node: started by torchrun or srun, it dials back to the notebook.

    LABKIT_TOKEN=... torchrun --nnodes 2 --nproc-per-node 8 ... \
        -m labkit.runtime.rank.join HOST:PORT

torchrun and Slurm are the engines: they place the processes, and restart them if asked
to. Needs torch, numpy, cloudpickle and this package on the node; nothing of Jupyter.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.errors import StartError, UsageError
from labkit.runtime.rank.enter import output_stream
from labkit.runtime.rank.handshake import dial
from labkit.runtime.rank.messages import Hello, RankSpec
from labkit.runtime.rank.serve import serve
from labkit.runtime.rank.wire import Channel, FrameKind

TOKEN_VARIABLE = "LABKIT_TOKEN"
DRAIN_S = 0.5


@dataclass(frozen=True)
class Seat:
    """Which rank of how many this process is, and which of how many on its node."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Seat:
        """Read torchrun's variables, or Slurm's. Raises StartError without either."""
        for names in (
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
        ):
            if all(name in env for name in names[:3]):
                rank, world_size, local_rank = (int(env[name]) for name in names[:3])
                local_size = int(env.get(names[3], "1"))
                return cls(rank, world_size, local_rank, local_size)
        raise StartError(
            "a joining rank must know its number; found neither RANK, WORLD_SIZE and "
            "LOCAL_RANK nor SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID. Start it "
            "with torchrun or srun, as the notebook's message shows"
        )


def main(address: str) -> None:
    """Join the notebook at HOST:PORT and serve it until it is gone."""
    host, _, port = address.rpartition(":")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not host or not port.isdecimal() or not token:
        raise UsageError(
            f"joining takes HOST:PORT and a token in {TOKEN_VARIABLE}; got {address!r} "
            f"and {'a' if token else 'no'} token. Copy the command that the notebook "
            "shows"
        )
    seat = Seat.from_environment(os.environ)
    channel = Channel(dial(host, int(port), token))
    spec = _spec(seat)
    hello = Hello(
        seat.rank, seat.world_size, socket.gethostname(), spec.backend, spec.device
    )
    channel.send_object(FrameKind.HELLO, seat.rank, hello)
    _lead_own_group()
    pipes = [
        OutputPipe(fd, stream, seat.rank, channel)
        for fd, stream in ((1, "stdout"), (2, "stderr"))
    ]
    sys.stdout, sys.stderr = output_stream(1), output_stream(2)

    def drain() -> None:
        for pipe in pipes:
            pipe.drain()

    serve(spec, channel, _store(seat), drain)


def _spec(seat: Seat) -> RankSpec:
    on_gpu = torch.cuda.device_count() > seat.local_rank
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return RankSpec(
        rank=seat.rank,
        world_size=seat.world_size,
        backend="nccl" if on_gpu else "gloo",
        device=f"cuda:{seat.local_rank}" if on_gpu else "cpu",
        num_threads=max(1, cores // max(1, seat.local_size)),
        rendezvous=False,
        meeting_folder=None,
        sys_path=tuple(sys.path),
        folder=str(Path.cwd()),
    )


def _store(seat: Seat) -> dist.Store:
    """The engine's store: torchrun's, or the one at MASTER_ADDR and MASTER_PORT."""
    store, _, _ = next(
        dist.rendezvous("env://", seat.rank, seat.world_size)  # type: ignore[attr-defined]
    )
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


def _lead_own_group() -> None:
    """So that what this rank starts can be ended with it."""
    try:
        os.setpgid(0, 0)
    except OSError:
        return


class OutputPipe:
    """Sends what is written to a file, children's text too, to the notebook."""

    def __init__(self, fd: int, stream: str, rank: int, channel: Channel) -> None:
        self._read, write = os.pipe()
        os.dup2(write, fd)
        os.close(write)
        self._stream, self._rank, self._channel = stream, rank, channel
        self._sending = threading.Lock()
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self) -> None:
        while True:
            select.select([self._read], [], [])
            with self._sending:
                data = os.read(self._read, 1 << 16)
                text = (self._stream, data)
                self._channel.send_object(FrameKind.OUTPUT, self._rank, text)

    def drain(self) -> None:
        """Wait until what has been written is sent; what prints for ever is cut off."""
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s:
            with self._sending:
                if not select.select([self._read], [], [], 0)[0]:
                    return
            time.sleep(0.001)


def _run(argv: list[str]) -> None:
    if len(argv) != 2:
        raise UsageError("usage: python -m labkit.runtime.rank.join HOST:PORT")
    main(argv[1])


if __name__ == "__main__":
    _run(sys.argv)
