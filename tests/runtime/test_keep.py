"""A typo costs nothing: ranks keep what they hold whenever all can come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import (
    AbsentRankError,
    CyclicWaitError,
    RankFailed,
    RunInterrupted,
    UsageError,
)
from labkit.runtime.cluster import newest
from tests.runtime.conftest import MakeCluster
from tests.runtime.lines import flat, line_of
from tests.runtime.notebook import Notebook
from tests.runtime.processes import wait_for_files

TRAIN = """
import torch.nn as nn
def train(steps):
    global model, optimizer
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.sum().item()
before = cluster.run(train, 5).results
"""
LOOK = "assert cluster.run(lambda: model.weight.sum().item()).results == before"


def pids(cluster: Cluster) -> list[int]:
    return cluster.run(os.getpid).results


@pytest.mark.slow
def test_a_typo_after_training_leaves_the_weights(notebook: Notebook) -> None:
    notebook.run(TRAIN).ok()
    reply = notebook.run("cluster.run(lambda: modle(torch.ones(8)))")
    assert reply.ename == "RankFailed"
    assert "NameError: name 'modle' is not defined" in reply.evalue
    assert "The ranks were kept, with their variables (model, optimizer)." in flat(
        reply.evalue
    )
    notebook.run(LOOK).ok()


@pytest.mark.slow
def test_a_typo_in_a_ranks_cell_leaves_them_too(notebook: Notebook) -> None:
    notebook.run(TRAIN).ok()
    reply = notebook.run("%%ranks\nx = model(torch.ones(8)\n")
    assert reply.ename
    assert "SyntaxError" in reply.ename + reply.evalue
    reply = notebook.run("%%ranks\nmodel.wieght")
    assert "has no attribute 'wieght'" in reply.evalue
    assert "Cell In[" in reply.evalue
    assert "line 2" in reply.evalue or "line 1" in reply.evalue
    notebook.run(LOOK).ok()


@pytest.mark.slow
def test_a_typo_in_the_notebook_alone_costs_nothing(notebook: Notebook) -> None:
    notebook.run(TRAIN).ok()
    assert notebook.run("cluster.run(trian, 5)").ename == "NameError"
    assert notebook.run("cluster.run(train, steps=5, lr=3)").ename == "RankFailed"
    notebook.run(LOOK).ok()


@pytest.mark.slow
def test_a_typo_on_one_rank_while_others_wait_is_said_to_cost_the_rest(
    notebook: Notebook,
) -> None:
    notebook.run(TRAIN).ok()
    reply = notebook.run(
        "def evaluate():\n"
        "    if dist.get_rank() == 2:\n"
        "        modle\n"
        "    dist.barrier()\n"
        "cluster.run(evaluate)"
    )
    text = flat(reply.evalue)
    assert text.startswith("rank 2 raised NameError: name 'modle' is not defined")
    assert "line 3" in text
    assert "Stopped because rank 2 failed: ranks 0, 1 and 3." in text
    assert "Fresh ranks have taken their place; lost with the old ones: " in text
    assert "model" in text.partition("lost with the old ones: ")[2]
    assert "optimizer" in text.partition("lost with the old ones: ")[2]
    assert "NameError" in notebook.run(LOOK).evalue


@pytest.mark.slow
def test_an_interrupt_while_ranks_compute_keeps_them(notebook: Notebook) -> None:
    notebook.run(TRAIN).ok()
    notebook.start(
        "def work():\n"
        "    print('at work', dist.get_rank())\n"
        "    while True:\n"
        "        sum(range(1000))\n"
        "cluster.run(work)"
    )
    for rank in range(4):
        notebook.wait_for(f"at work {rank}")
    notebook.interrupt()
    reply = notebook.finish(timeout_s=20)
    assert reply.ename == "RunInterrupted"
    for rank in range(4):
        assert f"rank {rank} is computing at Cell In[" in reply.evalue
    assert "The ranks were kept, with their variables (model, optimizer" in flat(
        reply.evalue
    )
    notebook.run(LOOK).ok()


@pytest.mark.slow
def test_ranks_cells_keep_their_variables_and_show_the_last_value(
    notebook: Notebook,
) -> None:
    notebook.run("def double(x):\n    return 2 * x").ok()
    assert notebook.run("%%ranks\nmine = double(rank) + 1").ok().stdout == ""
    reply = notebook.run("%%ranks 0,2\nmine").ok()
    assert sorted(reply.stdout.splitlines()) == ["[rank 0] 1", "[rank 2] 5"]
    reply = notebook.run(
        "%%ranks 1-3\nprint(mine, world_size, dist.get_rank() == rank)"
    )
    assert sorted(reply.ok().stdout.splitlines()) == [
        f"[rank {rank}] {2 * rank + 1} 4 True" for rank in (1, 2, 3)
    ]
    seen = notebook.run("print(cluster.run(lambda: mine).results)").ok()
    assert seen.stdout == "[1, 3, 5, 7]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0,7", ["whole number from 0 to 3", "got 7"]),
        ("zero", ["takes rank numbers", "'zero'"]),
        ("1,1", ["each once", "[1, 1]"]),
    ],
)
def test_ranks_that_a_cell_cannot_name_are_told(
    notebook: Notebook, line: str, words: list[str]
) -> None:
    reply = notebook.run(f"%%ranks {line}\n1 + 1")
    assert reply.ename == "UsageError"
    assert [word for word in words if word not in reply.evalue] == []


def test_a_cell_failing_everywhere_keeps_the_ranks(cluster4: Cluster) -> None:
    before = pids(cluster4)
    cluster4.run_cell("kept = 40 + rank")
    with pytest.raises(RankFailed, match=r"(?s)ZeroDivisionError.*kept, with.*kept"):
        cluster4.run_cell("kept / 0")
    cluster4.run_cell("assert kept == 40 + rank")
    assert pids(cluster4) == before


def test_a_failure_on_one_rank_keeps_all_if_nobody_waits(cluster4: Cluster) -> None:
    def fail_alone() -> None:
        dist.barrier()
        if dist.get_rank() == 2:
            raise ValueError("odd one")

    before = pids(cluster4)
    cluster4.run_cell("kept = 1")
    with pytest.raises(RankFailed, match=r"(?s)rank 2 raised ValueError.*were kept"):
        cluster4.run(fail_alone)
    assert pids(cluster4) == before


def test_a_failure_while_others_compute_calls_them_back(cluster4: Cluster) -> None:
    def fail_while_others_work() -> None:
        if dist.get_rank() == 1:
            raise ValueError("odd one")
        while True:
            sum(range(1000))

    before = pids(cluster4)
    with pytest.raises(RankFailed) as caught:
        cluster4.run(fail_while_others_work)
    assert "Stopped because rank 1 failed: ranks 0, 2 and 3." in str(caught.value)
    assert pids(cluster4) == before


def test_a_transfer_left_open_is_no_ground_to_keep_ranks(cluster4: Cluster) -> None:
    """Kept ranks would find the old message in the next cell's receive."""

    def send_and_fail() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.full((1,), 666.0), 1)
        raise ValueError("too early")

    def send_and_receive() -> float:
        data = torch.full((1,), 1.0)
        if dist.get_rank() == 0:
            dist.send(data, 1)
        elif dist.get_rank() == 1:
            data.zero_()
            dist.recv(data, 0)
        return data.item()

    before = pids(cluster4)
    with pytest.raises(RankFailed, match="Fresh ranks"):
        cluster4.run(send_and_fail)
    assert set(pids(cluster4)).isdisjoint(before)
    assert cluster4.run(send_and_receive).results == [1.0] * 4


def test_ranks_with_unequal_numbers_of_calls_are_not_kept(cluster4: Cluster) -> None:
    def reduce_once_more_and_fail() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
        raise ValueError("too early")

    before = pids(cluster4)
    with pytest.raises(RankFailed, match="Fresh ranks"):
        cluster4.run(reduce_once_more_and_fail)
    assert set(pids(cluster4)).isdisjoint(before)


def test_a_background_run_lets_the_notebook_go_on(
    cluster4: Cluster, tmp_path: Path
) -> None:
    def wait_for_file() -> int:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return dist.get_rank()

    run = cluster4.run(wait_for_file, background=True)
    assert not run.done
    with pytest.raises(UsageError, match=r"one run at a time.*\.wait\(\).*\.stop\(\)"):
        cluster4.run(dist.get_rank)
    with pytest.raises(TimeoutError, match=r"after 0\.05 s"):
        run.wait(timeout_s=0.05)
    (tmp_path / "go").touch()
    assert run.wait(timeout_s=30).results == [0, 1, 2, 3]
    assert run.done
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_a_failing_background_run_raises_where_it_is_waited_for(
    cluster4: Cluster,
) -> None:
    run = cluster4.run(int, "seven", background=True)
    with pytest.raises(RankFailed, match="invalid literal"):
        run.wait(timeout_s=30)


def test_stop_ends_a_background_run_and_keeps_ranks_that_compute(
    cluster4: Cluster, tmp_path: Path
) -> None:
    def work() -> None:
        (tmp_path / str(dist.get_rank())).touch()
        while True:
            sum(range(1000))

    before = pids(cluster4)
    cluster4.run_cell("kept = rank")
    run = cluster4.run(work, background=True)
    wait_for_files(tmp_path, 4)
    run.stop()
    with pytest.raises(RunInterrupted) as caught:
        run.wait()
    text = flat(caught.value)
    assert f"rank 3 is computing at {line_of(work, 'sum(')}" in text
    assert "The ranks were kept, with their variables (kept)." in text
    cluster4.run_cell("assert kept == rank")
    assert pids(cluster4) == before


def test_an_interrupt_while_ranks_wait_in_gloo_brings_fresh_ones(
    cluster4: Cluster, tmp_path: Path
) -> None:
    def wait() -> None:
        (tmp_path / str(dist.get_rank())).touch()
        if dist.get_rank() == 0:
            time.sleep(100)
        dist.barrier()

    before = pids(cluster4)
    cluster4.run_cell("lost = rank")
    run = cluster4.run(wait, background=True)
    wait_for_files(tmp_path, 4)
    time.sleep(0.5)  # From the file to the barrier is one line.
    run.stop()
    with pytest.raises(RunInterrupted) as caught:
        run.wait()
    text = flat(caught.value)
    assert f"rank 0 is computing at {line_of(wait, 'time.sleep')}" in text
    line = line_of(wait, "dist.barrier")
    assert f"rank 1 waits in barrier(), call #1 on the world group, at {line}" in text
    lost = text.partition(
        "Fresh ranks have taken their place; lost with the old ones: "
    )
    assert "lost" in lost[2].rstrip(".").split(", ")
    assert set(pids(cluster4)).isdisjoint(before)


def test_an_interrupt_in_a_program_is_a_keyboard_interrupt(
    cluster4: Cluster, tmp_path: Path
) -> None:
    def work() -> None:
        (tmp_path / str(dist.get_rank())).touch()
        time.sleep(100)

    def interrupt() -> None:
        wait_for_files(tmp_path, 4)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
        cluster4.run(work)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_slowness_is_felt_between_transfers_and_can_be_healed(
    make_cluster: MakeCluster,
) -> None:
    def compute_and_meet() -> None:
        until_s = time.thread_time() + 0.001
        while time.thread_time() < until_s:
            pass
        dist.barrier()

    def waited_s(rank: int) -> float:
        rows = cluster.run(compute_and_meet).rows()
        own = (row for row in rows if (row.rank, row.kind) == (rank, "waiting"))
        return sum(row.end - row.start for row in own)

    cluster = make_cluster(2)
    cluster.run(compute_and_meet)
    cluster.slow(rank=1, factor=1000.0)
    assert waited_s(0) > 0.9
    cluster.heal()
    assert waited_s(0) < 0.9


@pytest.mark.parametrize("at", ["all_reduce", "all_reduce#0", "allreduce#1", "", None])
def test_a_failure_that_cannot_be_placed_is_told(cluster4: Cluster, at: Any) -> None:
    with pytest.raises(UsageError, match=r'"all_reduce#3"; got .*Kinds: .*all_gather'):
        cluster4.fail(rank=1, at=at)


@pytest.mark.parametrize("factor", [0, 0.5, -1, "2", float("nan"), 1e9])
def test_a_slowness_that_means_nothing_is_told(cluster4: Cluster, factor: Any) -> None:
    with pytest.raises(UsageError, match="1 to 1000 times as long; got factor="):
        cluster4.slow(rank=1, factor=factor)


@pytest.mark.parametrize("kind", ["send", "recv", "barrier", "broadcast"])
def test_a_failure_can_be_placed_at_any_kind_of_call(
    cluster4: Cluster, kind: str
) -> None:
    def call() -> None:
        rank, data = dist.get_rank(), torch.ones(1)
        dist.barrier()
        dist.broadcast(data, 0)
        for _ in range(2):
            if rank == 0:
                dist.send(data, 1)
            elif rank == 1:
                dist.recv(data, 0)

    rank = {"send": 0}.get(kind, 1)
    number = 2 if kind in ("send", "recv") else 1
    cluster4.fail(rank=rank, at=f"{kind}#{number}")
    with pytest.raises(RankFailed, match=rf"rank {rank} .*{kind}#{number}"):
        cluster4.run(call)


def test_rendezvous_leaves_correct_programs_alone(make_cluster: MakeCluster) -> None:
    def ring() -> list[float]:
        rank, size = dist.get_rank(), dist.get_world_size()
        data, got = torch.full((3,), float(rank)), torch.empty(3)
        sends = dist.isend(data, (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        assert sends is not None
        sends.wait()
        ops = [
            dist.P2POp(dist.isend, data, (rank + 1) % size),
            dist.P2POp(dist.irecv, got, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got.tolist()

    results = make_cluster(3, rendezvous=True).run(ring).results
    assert results == [[2.0] * 3, [0.0] * 3, [1.0] * 3]


def test_rendezvous_tells_a_send_that_nobody_receives(
    make_cluster: MakeCluster,
) -> None:
    def send() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)

    with pytest.raises(AbsentRankError, match=r"(?s)send\(float32\[1\], to rank 1\)"):
        make_cluster(2, rendezvous=True).run(send)


@pytest.mark.slow
def test_spawned_ranks_keep_every_promise(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, start="spawn")
    before = pids(cluster)
    cluster.run_cell("kept = rank + 5")
    with pytest.raises(RankFailed, match=r"(?s)NameError.*were kept"):
        cluster.run_cell("modle")
    cluster.run_cell("assert kept == rank + 5")
    assert pids(cluster) == before
    with pytest.raises(CyclicWaitError):
        cluster.run(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()))
    assert set(pids(cluster)).isdisjoint(before)


def test_the_newest_open_cluster_takes_ranks_cells(make_cluster: MakeCluster) -> None:
    first, second = make_cluster(2), make_cluster(2)
    assert newest() is second
    second.close()
    assert newest() is first


def test_a_kept_rank_does_not_remember_old_calls(cluster4: Cluster) -> None:
    """Calls are numbered from each run's start; a finished run alarms no later one."""
    for _ in range(3):
        cluster4.run(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(5)])

    def stay_away() -> None:
        if dist.get_rank() != 1:
            dist.barrier()

    with pytest.raises(AbsentRankError, match="Call #1 on the world group"):
        cluster4.run(stay_away)
