"""Ranks of other nodes: two torchruns on this machine stand for two nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import RankFailed, RunInterrupted, StartError, UsageError
from labkit.runtime.nodes import Door
from labkit.runtime.rank.handshake import Refused, dial, welcome
from labkit.runtime.rank.join import TOKEN_VARIABLE, Seat
from labkit.runtime.rank.messages import Hello
from labkit.runtime.rank.wire import Channel, FrameKind
from tests.runtime.processes import below, wait_gone

RANKS_A_NODE = 2


@contextmanager
def two_nodes(door: Door) -> Iterator[None]:
    """Start the command that the notebook shows, as on two nodes."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
        "--nproc-per-node", str(RANKS_A_NODE), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", endpoint, "--rdzv-id", "labkit", "--max-restarts", "3",
        "-m", "labkit.runtime.rank.join", door.address,
    ]  # fmt: skip
    env = {**os.environ, TOKEN_VARIABLE: door.token, "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    try:
        yield
    finally:
        started = [process for node in nodes for process in below(node.pid)]
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(30)
        wait_gone(started)


def sum_of_ranks() -> float:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    print("summed")
    return x.item()


def fail_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ranks_of_two_nodes_join_run_fail_and_come_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(2 * RANKS_A_NODE, nodes="127.0.0.1:0") as cluster:
        shown = capsys.readouterr().out
        assert cluster.door is not None
        assert cluster.door.address in shown
        assert cluster.door.token in shown
        with two_nodes(cluster.door):
            assert cluster.run(sum_of_ranks).results == [6.0] * 4
            assert "[rank 3] summed" in capsys.readouterr().out
            with pytest.raises(RankFailed, match="rank 1 raised ValueError") as caught:
                cluster.run(fail_on_one)
            assert "fail_on_one" in str(caught.value)
            run = cluster.run(sum_of_ranks)
            assert run.results == [6.0] * 4
            assert run.record.header.clocks == ()
            with monkeypatch.context() as patched:
                patched.setattr(socket, "gethostname", lambda: "another machine")
                clocks = cluster.run(sum_of_ranks).record.header.clocks
            assert len(clocks) == 4
            for clock in clocks:  # In truth it is one clock.
                assert abs(clock.offset_s) <= clock.uncertainty_s
                assert 0 < clock.uncertainty_s < 0.5


def handshake(kernel_token: str, rank_token: str) -> list[BaseException | None]:
    """Both ends of a handshake, over a real socket: what each of them raised."""
    raised: list[BaseException | None] = [None, None]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            try:
                dial("127.0.0.1", listener.getsockname()[1], rank_token).close()
            except OSError as error:
                raised[1] = error

        rank = threading.Thread(target=answer)
        rank.start()
        sock, _ = listener.accept()
        with sock:
            try:
                welcome(sock, kernel_token)
            except OSError as error:
                raised[0] = error
        rank.join(10)
    return raised


def test_both_ends_with_the_token_meet() -> None:
    assert handshake("one", "one") == [None, None]


def test_a_caller_without_the_token_is_refused_before_anything_is_read() -> None:
    kernel, rank = handshake("one", "other")
    assert isinstance(kernel, Refused)
    assert isinstance(rank, OSError)


def test_a_stranger_at_the_door_does_not_keep_others_out() -> None:
    door = Door(1, "127.0.0.1", 0)
    host, port = door.address.split(":")
    try:
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 64)
            assert door.admit() is None
    finally:
        door.close()


@pytest.mark.parametrize(
    "address", ["nowhere", "host:port", "", ":-1", ":99999", ":\u00b2"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Cluster(2, nodes=address)


@pytest.mark.parametrize("world_size", [0, -1, True, 1.5, "4"])
def test_a_world_size_that_is_none_is_refused(world_size: object) -> None:
    with pytest.raises(UsageError, match="whole number"):
        Cluster(world_size, nodes="127.0.0.1:0")  # type: ignore[arg-type]


def test_what_says_how_ranks_start_is_refused_beside_nodes() -> None:
    with pytest.raises(UsageError, match="rendezvous beside nodes="):
        Cluster(2, nodes="127.0.0.1:0", rendezvous=True)


def join_by_hand(door: Door, hello: Hello) -> socket.socket:
    """A rank that dials in and says who it is, and then nothing."""
    host, port = door.address.split(":")
    sock = dial(host, int(port), door.token)
    Channel(sock).send_object(FrameKind.HELLO, hello.rank, hello)
    return sock


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (Hello(0, 2, "b", "gloo", "cpu"), "once each; rank 0 on b"),
        (Hello(1, 3, "b", "gloo", "cpu"), "there are 3"),
        (Hello(1, 2, "b", "nccl", "cuda:0"), "one backend; rank 1 on b has nccl"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(second: Hello, words: str) -> None:
    door = Door(2, "127.0.0.1", 0)
    opened: list[socket.socket] = []

    def join_both() -> None:
        for hello in (Hello(0, 2, "a", "gloo", "cpu"), second):
            opened.append(join_by_hand(door, hello))

    ranks = threading.Thread(target=join_both)
    ranks.start()
    try:
        with pytest.raises(UsageError, match=words):
            door.admit_all(lambda: False)
        ranks.join(10)
        assert opened[0].recv(1) == b"", "the rank that had joined is let go"
    finally:
        for sock in opened:
            sock.close()
        door.close()


def test_waiting_for_ranks_can_be_interrupted() -> None:
    door = Door(2, "127.0.0.1", 0)
    try:
        with pytest.raises(RunInterrupted, match="0 of 2 ranks had joined"):
            door.admit_all(lambda: True)
    finally:
        door.close()


def test_a_seat_is_read_from_torchrun_or_slurm_and_else_missed() -> None:
    torchrun = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    }  # fmt: skip
    assert Seat.from_environment(torchrun) == Seat(5, 8, 1, 4)
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    assert Seat.from_environment(slurm) == Seat(3, 4, 1, 1)
    with pytest.raises(StartError, match="torchrun or srun"):
        Seat.from_environment({})
