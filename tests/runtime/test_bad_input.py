"""What cannot be done is refused in three parts, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import (
    ClusterClosed,
    LabkitError,
    RankFailed,
    StartError,
    TravelError,
    UsageError,
)
from labkit.runtime.rank import travel
from tests.runtime.conftest import MakeCluster
from tests.runtime.notebook import PYTHONPATH
from tests.runtime.processes import alive, below, folders_of, known


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "4", None, 10**6])
def test_a_world_size_that_cannot_be_is_refused(nothing_left: None, size: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Cluster(size)
    text = str(caught.value)
    assert "a world size is a whole number from 1 to " in text
    assert f"got {size!r}" in text
    assert "Try Cluster(" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "mpi"}, ["auto, nccl, gloo, threads", "'mpi'"]),
        ({"start": "forkserver"}, ["auto, fork, spawn", "'forkserver'"]),
        ({"device": "tpu"}, ["auto, cpu, cuda", "'tpu'"]),
        ({"threads": 0}, ["whole number from 1", "got 0"]),
        ({"threads": "two"}, ["whole number from 1", "got 'two'"]),
        ({"backend": "nccl", "device": "cpu"}, ["GPU memory only", 'device="cpu"']),
    ],
)
def test_options_that_cannot_be_are_refused(
    nothing_left: None, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        Cluster(2, **options)
    assert [word for word in words if word not in str(caught.value)] == []


def test_an_option_that_does_not_exist_is_pythons_own_error(nothing_left: None) -> None:
    with pytest.raises(TypeError, match="wolrd"):
        Cluster(2, wolrd=3)  # type: ignore[call-arg]


def numbers() -> Iterator[int]:
    yield 1


async def wait_a_little() -> None:
    await asyncio.sleep(0)


async def numbers_slowly() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "kind", "advice"),
    [
        (numbers, "numbers is a generator function", "Return a list"),
        (wait_a_little, "wait_a_little is a coroutine function", "asyncio.run"),
        (numbers_slowly, "asynchronous generator function", "Collect"),
    ],
)
def test_what_is_no_plain_function_is_refused(
    cluster4: Cluster, function: Any, kind: str, advice: str
) -> None:
    with pytest.raises(UsageError) as caught:
        cluster4.run(function)
    text = str(caught.value)
    assert text.startswith("a rank calls a plain function and sends back what it")
    assert kind in text
    assert advice in text


@pytest.mark.parametrize("function", [3, None, "train", [1]])
def test_what_cannot_be_called_is_refused(cluster4: Cluster, function: Any) -> None:
    with pytest.raises(UsageError) as caught:
        cluster4.run(function)
    text = str(caught.value)
    assert f"needs a function to call on every rank; got {function!r}" in text
    assert "cluster.run(train, 3), not cluster.run(train(3))" in text


def test_an_iterator_as_a_result_is_named(cluster4: Cluster) -> None:
    with pytest.raises(RankFailed, match="generator"):
        cluster4.run(lambda: (i for i in range(3)))
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


LOCK = threading.Lock()
HELD = {"config": {"lr": 0.1, "guards": [LOCK]}}


def use_held() -> float:
    return HELD["config"]["lr"]  # type: ignore[index, return-value]


def make_closure() -> Callable[[], Any]:
    file = Path(__file__).open()  # noqa: SIM115
    return lambda: file.read()


def test_a_function_that_cannot_travel_is_told_by_what_it_uses(
    cluster4: Cluster,
) -> None:
    with pytest.raises(TravelError) as caught:
        cluster4.run(use_held)
    text = str(caught.value)
    assert "everything that a function uses travels to the ranks by value" in text
    assert "'HELD', which use_held uses['config']['guards'][0] cannot travel" in text
    assert "cannot pickle '_thread.lock' object" in text
    assert "Make it inside the function, or pass what it is made from" in text


def test_an_argument_that_cannot_travel_is_named(cluster4: Cluster) -> None:
    def train(model: Any, guard: Any) -> None:
        """Never runs."""

    with pytest.raises(TravelError, match=r"argument 'guard' cannot travel: cannot pi"):
        cluster4.run(train, 3, LOCK)
    with pytest.raises(TravelError, match=r"argument 'guard'\['a'\] cannot travel"):
        cluster4.run(train, model=1, guard={"a": LOCK})


def test_an_open_file_in_a_closure_is_named(cluster4: Cluster) -> None:
    function = make_closure()
    with pytest.raises(TravelError) as caught:
        cluster4.run(function)
    function.__closure__[0].cell_contents.close()  # type: ignore[index]
    assert "'file', which <lambda> uses cannot travel" in str(caught.value)
    assert "an open file belongs to the process that opened it" in str(caught.value)


def test_an_argument_that_is_too_large_is_named_with_both_sizes(
    cluster4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(small: Any, data: Any) -> None:
        """Never runs."""

    monkeypatch.setattr(travel, "MAX_BYTES", 1 << 20)
    with pytest.raises(TravelError) as caught:
        cluster4.run(train, torch.ones(4), data=torch.ones(1 << 20))
    text = str(caught.value)
    assert "must stay under 1 MiB, since every one of 4 ranks gets a copy" in text
    assert "argument 'data' alone is 1 MiB or more" in text
    assert "Build it on the ranks, inside the function, or load it there" in text


@pytest.mark.slow
def test_an_argument_of_gigabytes_is_refused_before_it_takes_memory(
    cluster4: Cluster,
) -> None:
    data = torch.zeros(3 << 29, dtype=torch.uint8)  # 1.5 GiB, never touched
    before = psutil.Process().memory_info().rss
    with pytest.raises(TravelError, match=r"argument 'tensor' alone is .* or more"):
        cluster4.run(lambda tensor: tensor.sum(), data)
    assert psutil.Process().memory_info().rss - before < data.nbytes / 2
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


def test_a_large_argument_is_warned_about_by_name(
    cluster4: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = torch.ones(14 << 20)
    total = cluster4.run(lambda weights: weights.sum().item(), weights, ranks=[0])
    assert total.results == [14 << 20]
    told = capfd.readouterr().err
    assert "56 MiB travel to each of 1 ranks at every run" in told
    assert "argument 'weights', 56 MiB" in told


def test_a_result_that_cannot_travel_is_told(cluster4: Cluster) -> None:
    with pytest.raises(RankFailed, match=r"cannot pickle '_thread.lock' object"):
        cluster4.run(threading.Lock)
    assert cluster4.run(dist.get_rank).results == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([0, 4], ["a whole number from 0 to 3", "got 4", "Cluster(4) has 4 ranks"]),
        ([-1], ["from 0 to 3", "got -1"]),
        ([1, 1], ["at least one, each once", "got [1, 1]", "from 0 to 3"]),
        ([], ["at least one, each once", "got []", "from 0 to 3"]),
        ([True], ["from 0 to 3", "got True"]),
        (["0"], ["from 0 to 3", "got '0'"]),
        ([1.0], ["from 0 to 3", "got 1.0"]),
        (7, ["from 0 to 3", "got 7"]),
        ("0,2", ["from 0 to 3", "got '0'"]),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    cluster4: Cluster, ranks: Any, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        cluster4.run(dist.get_rank, ranks=ranks)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_closed_cluster_says_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    cluster.close()
    cluster.close()
    for call in (lambda: cluster.run(dist.get_rank), lambda: cluster.run_cell("1")):
        with pytest.raises(ClusterClosed) as caught:
            call()
        text = str(caught.value)
        assert "this cluster was closed, and its ranks have ended" in text
        assert "Make a new one: Cluster(2)" in text


def test_wrong_arguments_are_the_ranks_own_error(cluster4: Cluster) -> None:
    with pytest.raises(RankFailed, match=r"TypeError: .*missing 1 required"):
        cluster4.run(lambda x: x)


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_with_both_folders(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StartError) as caught:
        Cluster(2, quiet=True)
    text = str(caught.value)
    assert "no folder could take it" in text
    assert "/dev/shm: No space left on device" in text
    assert f"{tempfile.gettempdir()}: No space left on device" in text
    assert "Free some space there, or set TMPDIR to another folder" in text


def test_a_full_shared_memory_alone_does_no_harm(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tempfile.mkdtemp

    def mkdtemp(*args: Any, dir: Any = None, **kwargs: Any) -> str:
        return full() if dir == "/dev/shm" else whole(*args, dir=dir, **kwargs)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    assert make_cluster(2).run(dist.get_rank).results == [0, 1]
    assert [str(f.parent) for f in folders_of(os.getpid())] != ["/dev/shm"]


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0, reason="SKIPPED, NOT TESTED: mounting a full disk needs root"
)
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """In a mount name space of its own: /dev/shm and the temporary folder are full."""
    code = (
        "import tempfile\n"
        "tempfile.tempdir = '/dev/shm'\n"
        "from labkit import Cluster\n"
        "from labkit.errors import StartError\n"
        "try:\n"
        "    Cluster(2, quiet=True)\n"
        "except StartError as error:\n"
        "    print(error)\n"
    )
    outside = (
        "mount -t tmpfs -o size=4k tmpfs /dev/shm && "
        'head -c 4096 /dev/zero > /dev/shm/full; exec "$@"'
    )
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c", outside, "sh", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, text=True, capture_output=True,
        check=False, timeout=50,
    )  # fmt: skip
    if "ermission" in run.stderr or "not permitted" in run.stderr:
        pytest.skip("SKIPPED, NOT TESTED: this machine forbids name spaces")
    assert "/dev/shm: No space left on device" in run.stdout, run.stderr


def test_a_spool_file_that_does_not_fit_loses_no_run(
    cluster4: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)

    def flood() -> int:
        for i in range(3000):
            print(i)
        return 1

    assert cluster4.run(flood, ranks=[0]).results == [1]
    assert "no room for a file with the full text" in capfd.readouterr().out


def test_one_rank_may_be_named_without_a_list(cluster4: Cluster) -> None:
    assert cluster4.run(dist.get_rank, ranks=2).results == [2]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    """Not even root can write to /proc; elsewhere a folder without the permission."""
    home = Path("/proc") if sys.platform == "linux" else tmp_path / "home"
    home.mkdir(mode=0o500, exist_ok=True)
    code = (
        "import torch.distributed as dist\n"
        "from labkit import Cluster\n"
        "print(Cluster(2, quiet=True).run(dist.get_rank).results)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd="/", text=True, capture_output=True,
        env={**env, "HOME": str(home), "PYTHONPATH": PYTHONPATH},
        check=False, timeout=50,
    )  # fmt: skip
    assert run.stdout == "[0, 1]\n", run.stderr


def test_a_working_folder_that_is_gone_does_no_harm(
    nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with Cluster(2, quiet=True) as cluster:
        assert cluster.run(dist.get_rank).results == [0, 1]


def test_a_zygote_that_cannot_start_is_told_with_its_last_words(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A torch that does not import, say."""
    from labkit.runtime import kernel

    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: missing')")
    monkeypatch.setattr(
        kernel, "_PACKAGE_PARENT", f"{tmp_path}{os.pathsep}{PYTHONPATH}"
    )
    kernel.the_zygote().close()
    cluster = make_cluster(2)
    for _ in range(2):
        with pytest.raises(StartError) as caught:
            cluster.run(dist.get_rank)
        text = str(caught.value)
        assert text.startswith(
            "the process that starts ranks must stay alive; it ended"
        )
        assert "ended with: ImportError: libcudart.so.13: missing" in text
        assert "`labkit doctor` tells more" in text


def test_nothing_of_a_refused_call_stays_on_the_ranks(cluster4: Cluster) -> None:
    ranks = known(cluster4.run(os.getpid).results)
    for bad in (numbers, LOCK.acquire, 7):
        with pytest.raises(LabkitError):
            cluster4.run(bad)  # type: ignore[arg-type]
    assert [p.pid for p in alive(ranks)] == cluster4.run(os.getpid).results
    assert [below(p.pid) for p in ranks] == [[]] * 4
