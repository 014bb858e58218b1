"""One program of each kind of transfer, and what crosses the loopback device for it.

Run as a script, it prints JSON for the world sizes that it is given. Best in a
network namespace of its own (`unshare -rn`), where nothing else is sent.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.record.events import CommStart
from labkit.record.traffic import Backend, Counters

MIB = 1024 * 1024
DEVICES = Path("/proc/self/net/dev")
# Headers of TCP and gloo, acknowledgements.
FRAMING = 0.01
# TCP sends again what a busy receiver has not acknowledged: the least of some tries.
MAX_TRIES = 6
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def floats(num_bytes: int) -> torch.Tensor:
    return torch.ones(num_bytes // 4)


def send_recv() -> None:
    x = floats(16 * MIB)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)


def broadcast() -> None:
    dist.broadcast(floats(8 * MIB), dist.get_world_size() - 1)


def reduce() -> None:
    dist.reduce(floats(4 * MIB), 1)


def reduce_large() -> None:
    """Many segments: see [Note: gloo's reduce] in traffic.py."""
    dist.reduce(floats(24 * MIB), 0)


def all_reduce() -> None:
    dist.all_reduce(floats(8 * MIB))


def all_reduce_bf16() -> None:
    """A size that divides by nothing."""
    dist.all_reduce(torch.ones(4 * MIB + 7, dtype=torch.bfloat16))


def parts() -> list[torch.Tensor]:
    return [floats(4 * MIB) for _ in range(dist.get_world_size())]


def gather() -> None:
    dist.gather(floats(4 * MIB), parts() if dist.get_rank() == 1 else None, 1)


def scatter() -> None:
    dist.scatter(floats(4 * MIB), parts() if dist.get_rank() == 0 else None, 0)


def all_gather() -> None:
    dist.all_gather(parts(), floats(4 * MIB))


def all_gather_single() -> None:
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    single(floats(4 * MIB * dist.get_world_size()), floats(4 * MIB))


def reduce_scatter() -> None:
    dist.reduce_scatter(floats(4 * MIB), parts())


def reduce_scatter_single() -> None:
    single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    single(floats(2 * MIB), floats(2 * MIB * dist.get_world_size()))


def all_to_all() -> None:
    dist.all_to_all(parts(), parts())


def all_to_all_single() -> None:
    size = 4 * MIB * dist.get_world_size()
    dist.all_to_all_single(floats(size), floats(size))


def all_to_all_uneven() -> None:
    """Rank r sends (r + 1) * (d + 1) MiB to rank d."""
    ranks, rank = range(dist.get_world_size()), dist.get_rank()
    row = torch.ones(1, MIB // 4)
    send = [(rank + 1) * (to + 1) for to in ranks]
    recv = [(source + 1) * (rank + 1) for source in ranks]
    out = row.new_empty(sum(recv), MIB // 4)
    dist.all_to_all_single(out, row.repeat(sum(send), 1), recv, send)


def barriers() -> None:
    for _ in range(100):
        dist.barrier()


PROGRAMS: tuple[Callable[[], None], ...] = (
    send_recv, broadcast, reduce, reduce_large, all_reduce, all_reduce_bf16, gather,
    scatter, all_gather, all_gather_single, reduce_scatter, reduce_scatter_single,
    all_to_all, all_to_all_single, all_to_all_uneven, barriers,
)  # fmt: skip


def device_bytes() -> int:
    """Bytes that the loopback device of this network namespace has sent."""
    lines = DEVICES.read_text().splitlines()
    (counts,) = [line.split(":")[1].split() for line in lines if "lo:" in line]
    return int(counts[8])


def bring_up_loopback() -> None:
    """In a new network namespace the loopback device is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(sock, SIOCGIFFLAGS, asked))
        if not flags & IFF_UP:
            up = struct.pack("16sh14x", b"lo", flags | IFF_UP)
            fcntl.ioctl(sock, SIOCSIFFLAGS, up)


def counted_bytes(run: Any, backend: Backend = "gloo") -> int:
    """Wire bytes of all ranks, as labkit counts them."""
    ranks: Sequence[int] = range(len(run.events))
    total = 0
    for rank, events in enumerate(run.events):
        counters = Counters(rank, backend)
        for event in events:
            if isinstance(event, CommStart):
                counters.add(event, ranks)
        total += sum(row.wire_bytes for row in counters.rows())
    return total


def measure(cluster: Cluster, program: Callable[[], None]) -> dict[str, Any]:
    """What the device sent while a program ran, at the least, and what was counted."""
    run = cluster.run(program)  # Connections are made at the first use.
    counted, least = counted_bytes(run), sys.maxsize
    for _ in range(MAX_TRIES):
        before = device_bytes()
        cluster.run(program)
        least = min(least, device_bytes() - before)
        if least - counted <= FRAMING * counted:
            break
    by_rings = counted_bytes(run, "nccl")
    return {"device": least, "counted": counted, "by_rings": by_rings}


def main() -> None:
    bring_up_loopback()
    found: dict[str, Any] = {}
    for world_size in map(int, sys.argv[1:]):
        with Cluster(world_size, quiet=True) as cluster:
            for program in PROGRAMS:
                name = f"{program.__name__} {world_size}"
                found[name] = measure(cluster, program)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
