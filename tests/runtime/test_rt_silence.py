"""Slow is not dead: a silent rank is remarked on, once, and never punished."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from labkit import Cluster
from labkit.runtime import watch
from tests.runtime.lines import line_of
from tests.runtime.processes import known, wait_for_files, wait_until


def hold_everything(seconds: float) -> int:
    """Busy in C with Python's lock held: no thread of the rank can answer."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return dist.get_rank()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remarks come after fractions of a second instead of several."""
    monkeypatch.setattr(watch, "PING_EVERY_S", 0.1)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 0.4)
    monkeypatch.setattr(watch, "SLOW_AFTER_S", 0.4)


@pytest.mark.usefixtures("impatient")
def test_RT_16_a_silent_rank_is_remarked_on_once_and_finishes(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cluster4.run(hold_everything, 0.9, ranks=[0, 1]).results == [0, 1]
    told = capfd.readouterr().err
    for rank in (0, 1):
        assert told.count(f"rank {rank} has been busy in native code for about") == 1
    assert "died" not in told


@pytest.mark.usefixtures("impatient")
def test_RT_16_a_suspended_rank_is_told_apart(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def wait() -> int:
        (tmp_path / str(dist.get_rank())).touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return dist.get_rank()

    victim = known(cluster4.run(os.getpid).results)[2]
    run = cluster4.run(wait, background=True)
    wait_for_files(tmp_path, 4)
    os.kill(victim.pid, signal.SIGSTOP)
    told: list[str] = []
    try:
        wait_until(
            lambda: (
                told.append(capfd.readouterr().err)
                or "rank 2 has been suspended (SIGSTOP) for about" in "".join(told)
            ),
            "a remark on the suspended rank",
        )
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert run.wait(30).results == [0, 1, 2, 3]


@pytest.mark.usefixtures("impatient")
def test_RT_16_a_rank_that_holds_the_others_up_is_named_with_its_line(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def be_late() -> int:
        if dist.get_rank() == 3:
            time.sleep(1.2)
        dist.barrier()
        return dist.get_rank()

    assert cluster4.run(be_late).results == [0, 1, 2, 3]
    told = capfd.readouterr().err
    line = line_of(be_late, "time.sleep")
    assert (
        f"rank 3 is still computing, and ranks 0-2 wait. It stands at {line}." in told
    )


@pytest.mark.grid
@pytest.mark.timeout(120)
def test_RT_16_forty_five_silent_seconds_are_not_death(cluster4: Cluster) -> None:
    assert cluster4.run(hold_everything, 45).results == [0, 1, 2, 3]


@pytest.mark.grid
def test_RT_16_a_suspended_rank_is_told_within_ten_seconds(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = known(cluster4.run(os.getpid).results)[1]
    run = cluster4.run(time.sleep, 12, background=True)
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(10)
    told = capfd.readouterr().err
    os.kill(victim.pid, signal.SIGCONT)
    run.wait(30)
    assert "rank 1 has been suspended (SIGSTOP)" in told
