"""Ranks on other nodes: torchrun or srun starts them, they dial in to the notebook.

When a run spoils them the channels are closed, the ranks end, and an engine told to
restart them (`torchrun --max-restarts`) brings new ones to the same address.
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable

from labkit.errors import RunInterrupted, StartError, UsageError
from labkit.runtime.channels import Channels, close_after_fork
from labkit.runtime.rank.handshake import Refused, welcome
from labkit.runtime.rank.join import TOKEN_VARIABLE
from labkit.runtime.rank.messages import Hello
from labkit.runtime.rank.wire import CHUNK_BYTES, FrameKind, FrameParser

JOIN_LIMIT_S = 600.0
MAX_PORT = 65535
SAY_EVERY_S = 10.0


class Door:
    """The address at which ranks join, and the token that lets them in."""

    def __init__(self, world_size: int, host: str, port: int) -> None:
        if type(world_size) is not int or world_size < 1:
            raise UsageError(
                f"a world size is a whole number, 1 or more; got {world_size!r}. It is "
                "the number of nodes times the ranks on each"
            )
        self.world_size = world_size
        self.token = secrets.token_urlsafe(24)
        try:
            self._listener = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise UsageError(
                f"ranks join at an address of this machine; {host}:{port} cannot be "
                f'listened on ({error.strerror or error}). nodes=":0" takes a free port'
            ) from error
        self._host = host if host not in ("", "0.0.0.0") else _own_address()

    @classmethod
    def at(cls, address: str, world_size: int) -> Door:
        """Listen at HOST:PORT; no host means every interface, port 0 any free port."""
        host, _, port = str(address).rpartition(":")
        if not port.isdecimal() or int(port) > MAX_PORT:
            raise UsageError(
                f'ranks join at HOST:PORT; got nodes={address!r}. nodes=":0" listens '
                "on every interface, at a free port"
            )
        return cls(world_size, host, int(port))

    @property
    def address(self) -> str:
        """HOST:PORT, as the other nodes reach it."""
        return f"{self._host}:{self._listener.getsockname()[1]}"

    def instructions(self) -> str:
        """The command to run on each node."""
        return (
            f"{self.world_size} ranks may join at {self.address}. On each node:\n"
            f"  export {TOKEN_VARIABLE}={self.token}\n"
            "  torchrun --nnodes NODES --nproc-per-node RANKS --rdzv-backend c10d "
            "--rdzv-endpoint FIRST_NODE:29400 --max-restarts 100 "
            f"-m labkit.runtime.rank.join {self.address}\n"
            "or with Slurm, in a job of as many tasks:\n"
            "  export MASTER_ADDR=FIRST_NODE MASTER_PORT=29400\n"
            f"  srun --export=ALL python -m labkit.runtime.rank.join {self.address}"
        )

    def admit_all(
        self, is_interrupted: Callable[[], bool]
    ) -> tuple[dict[int, socket.socket], dict[int, Hello]]:
        """Wait until every rank has joined; say now and then how many have."""
        sockets: dict[int, socket.socket] = {}
        hellos: dict[int, Hello] = {}
        try:
            self._admit_into(sockets, hellos, is_interrupted)
        except BaseException:
            for sock in sockets.values():
                sock.close()
            raise
        return sockets, hellos

    def _admit_into(
        self,
        sockets: dict[int, socket.socket],
        hellos: dict[int, Hello],
        is_interrupted: Callable[[], bool],
    ) -> None:
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        say_at_s = time.monotonic() + SAY_EVERY_S
        while len(sockets) < self.world_size:
            if is_interrupted():
                raise RunInterrupted(
                    f"{len(sockets)} of {self.world_size} ranks had joined; nothing ran"
                )
            if time.monotonic() > say_at_s:
                say_at_s += SAY_EVERY_S
                sys.stderr.write(
                    f"[labkit] {len(sockets)} of {self.world_size} joined\n"
                )
                sys.stderr.flush()
            if time.monotonic() > deadline_s:
                raise StartError(
                    f"{self.world_size} ranks must join; {len(sockets)} did in "
                    f"{JOIN_LIMIT_S:.0f} s. {self.instructions()}"
                )
            admitted = self.admit()
            if admitted is not None:
                hello, sock = admitted
                try:
                    self._check(hello, hellos)
                except UsageError:
                    sock.close()
                    raise
                sockets[hello.rank], hellos[hello.rank] = sock, hello

    def admit(self) -> tuple[Hello, socket.socket] | None:
        """The next caller that knows the token, within half a second."""
        self._listener.settimeout(0.5)
        try:
            sock, _ = self._listener.accept()
        except TimeoutError:
            return None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            welcome(sock, self.token)
            return _read_hello(sock), sock
        except (Refused, OSError):
            sock.close()
            return None

    def _check(self, hello: Hello, before: dict[int, Hello]) -> None:
        if hello.world_size != self.world_size:
            raise UsageError(
                f"{self.world_size} ranks were announced; rank {hello.rank} on "
                f"{hello.host} says there are {hello.world_size}. NODES times RANKS in "
                f"the command must be {self.world_size}"
            )
        if not 0 <= hello.rank < self.world_size or hello.rank in before:
            raise UsageError(
                f"ranks 0 to {self.world_size - 1} must join once each; rank "
                f"{hello.rank} on {hello.host} is one too many. Start the command once "
                "on each node"
            )
        for other in before.values():
            if other.backend != hello.backend:
                raise UsageError(
                    f"all ranks must use one backend; rank {hello.rank} on "
                    f"{hello.host} has {hello.backend}, rank {other.rank} on "
                    f"{other.host} has {other.backend}. Start as many ranks on each "
                    "node as it has GPUs, or hide the GPUs everywhere "
                    "(CUDA_VISIBLE_DEVICES=)"
                )

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _read_hello(sock: socket.socket) -> Hello:
    sock.settimeout(30)
    parser = FrameParser()
    while True:
        data = sock.recv(CHUNK_BYTES)
        if not data:
            raise Refused("a rank hung up before it had said who it is")
        for frame in parser.feed(data):
            if frame.kind is FrameKind.HELLO:
                sock.settimeout(None)
                return frame.load()


def _own_address() -> str:
    """This machine's address on the route to others; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


class JoinedGeneration:
    """Ranks that dialled in; they end when their channel closes."""

    def __init__(
        self, door: Door, is_interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for every rank; `is_interrupted` says when to give up."""
        self.channels = Channels()
        sockets, self.hellos = door.admit_all(is_interrupted)
        for rank, sock in sorted(sockets.items()):
            self.channels.add_rank(rank, sock)
        close_after_fork(self.channels)

    def crash_text(self, rank: int) -> str:
        """Unknown: the file is on the rank's node."""
        return ""

    def end(self, *, wait: bool) -> None:
        """Hang up: each rank ends itself, and its engine may start another.

        With `wait` the notebook is done with them: they end well, and so does the
        engine.
        """
        if wait:
            for rank in self.channels.ranks:
                self.channels.send(FrameKind.BYE, rank, b"")
        self.channels.close()
