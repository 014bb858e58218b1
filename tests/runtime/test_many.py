"""Many clusters, many notebooks and many users on one machine: no clash."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from tests.runtime.conftest import MakeCluster
from tests.runtime.notebook import PYTHONPATH
from tests.runtime.processes import folders_of

pytestmark = pytest.mark.slow

FIVE_AT_ONCE = """
import sys
import torch, torch.distributed as dist
from labkit import Cluster
def add(x):
    t = torch.tensor([float(x)])
    dist.all_reduce(t)
    return t.item()
print("ready", flush=True)
sys.stdin.readline()
clusters = [Cluster(2, quiet=True) for _ in range(5)]
runs = [c.run(add, i, background=True) for i, c in enumerate(clusters)]
print([run.wait(60).results for run in runs])
for cluster in clusters:
    cluster.close()
"""
RESULT = str([[2.0 * i] * 2 for i in range(5)])


class PortGrabber:
    """Takes any port that was just free, as a busy machine would."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._grab)
        self.grabbed = 0

    def _grab(self) -> None:
        held: list[socket.socket] = []
        while not self._stop.wait(0.002):
            try:
                held.append(socket.create_server(("127.0.0.1", 0)))
                self.grabbed += 1
            except OSError:
                held.append(socket.socket())
            if len(held) > 200:
                held.pop(0).close()
        for each in held:
            each.close()

    def __enter__(self) -> PortGrabber:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.timeout(120)
def test_RT_17_twenty_clusters_at_once_all_meet() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", FIVE_AT_ONCE], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
        for _ in range(4)
    ]  # fmt: skip
    try:
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        with PortGrabber() as grabber:
            for program in programs:
                assert program.stdin is not None
                program.stdin.write("go\n")
                program.stdin.flush()
            outputs = [program.communicate(timeout=100)[0] for program in programs]
        assert [output.strip() for output in outputs] == [RESULT] * 4
        assert grabber.grabbed > 0
        assert [folders_of(program.pid) for program in programs] == [[]] * 4
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def test_two_clusters_of_one_notebook_do_not_mix(make_cluster: MakeCluster) -> None:
    def add(x: float) -> float:
        total = torch.tensor([x])
        dist.all_reduce(total)
        return total.item()

    first, second = make_cluster(2), make_cluster(3)
    for i in range(10):
        runs = first.run(add, i, background=True), second.run(add, i, background=True)
        assert runs[0].wait(30).results == [2.0 * i] * 2
        assert runs[1].wait(30).results == [3.0 * i] * 3


def test_what_ranks_share_is_for_their_user_only(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    cluster.run(dist.get_rank)
    folders = folders_of(os.getpid())
    assert folders
    for folder in folders:
        assert folder.stat().st_mode & 0o077 == 0
        assert folder.stat().st_uid == os.geteuid()


def test_folders_of_two_clusters_differ(make_cluster: MakeCluster) -> None:
    for _ in range(2):
        make_cluster(1).run(dist.get_rank)
    names = [folder.name for folder in folders_of(os.getpid())]
    assert len(set(names)) >= 2


@pytest.mark.skipif(
    os.geteuid() != 0, reason="SKIPPED, NOT TESTED: being another user needs root"
)
def test_a_second_user_works_beside_the_first(make_cluster: MakeCluster) -> None:
    mine = make_cluster(2)
    mine.run(dist.get_rank)
    try:
        run = subprocess.run(
            [sys.executable, "-c",
             "import os, torch.distributed as dist\nfrom labkit import Cluster\n"
             "print(os.getuid(), Cluster(2, quiet=True).run(dist.get_rank).results)"],
            user="nobody", group="nogroup", extra_groups=[], cwd=tempfile.gettempdir(),
            env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": PYTHONPATH},
            text=True, capture_output=True, check=False, timeout=50,
        )  # fmt: skip
    except PermissionError:
        pytest.skip("SKIPPED, NOT TESTED: another user cannot run this Python")
    if "No module named" in run.stderr or "Permission denied" in run.stderr:
        pytest.skip("SKIPPED, NOT TESTED: another user cannot read this Python")
    uid, _, results = run.stdout.partition(" ")
    assert results.strip() == "[0, 1]", run.stderr
    assert int(uid) != os.getuid()
    assert mine.run(dist.get_rank).results == [0, 1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_ranks_made_inside_a_child_of_the_notebook_are_its_own(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """A forked child, as multiprocessing makes, has no hold on its parent's ranks."""
    cluster = make_cluster(2)
    cluster.run(dist.get_rank)
    child = os.fork()
    if child == 0:
        try:
            with Cluster(2, quiet=True) as own:
                (tmp_path / "own").write_text(str(own.run(dist.get_rank).results))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "own").read_text() == "[0, 1]"
    assert cluster.run(dist.get_rank).results == [0, 1]
