"""Launching from cells: what travels, what it starts from, where ranks are placed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit import Cluster
from labkit.errors import UsageError
from labkit.runtime.devices import place
from labkit.runtime.gpus import Gpu
from labkit.runtime.machine import Machine
from tests.runtime.conftest import MakeCluster
from tests.runtime.notebook import PYTHONPATH, Notebook

COURSE_PACKAGES = (
    "numpy", "cloudpickle", "ipywidgets", "anywidget", "plotly.graph_objects",
    "matplotlib.pyplot", "nbformat", "jupytext", "rich", "psutil", "pynvml", "labkit",
)  # fmt: skip


@pytest.mark.slow
def test_RT_01_a_kernel_that_holds_cuda_is_never_forked(notebook: Notebook) -> None:
    """With a fake flag where there is no GPU: ranks would inherit it from a fork."""
    reply = notebook.run(
        "torch.cuda._initialized = True\n"
        "torch.i_am_the_kernel = os.getpid()\n"
        "def look():\n"
        "    return torch.cuda.is_initialized(), hasattr(torch, 'i_am_the_kernel')\n"
        "fresh = Cluster(2, quiet=True)\n"
        "print(fresh.run(look).results)\n"
        "fresh.close()\n"
        "torch.cuda._initialized = False"
    )
    assert reply.ok().stdout == "[(False, False), (False, False)]\n"


@pytest.mark.gpu
def test_RT_01_a_kernel_that_holds_a_gpu_launches(make_cluster: MakeCluster) -> None:
    held = torch.ones(4, device="cuda")
    results = make_cluster(2).run(lambda: torch.ones(3, device="cuda").sum().item())
    assert results.results == [3.0, 3.0]
    assert held.sum().item() == 4.0


@pytest.mark.gpu
def test_RT_02_a_driver_opened_behind_torchs_back_does_no_harm(
    make_cluster: MakeCluster,
) -> None:
    import ctypes

    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    results = make_cluster(2).run(lambda: torch.ones(3, device="cuda").sum().item())
    assert results.results == [3.0, 3.0]


@pytest.mark.slow
def test_RT_03_an_empty_function_runs_whatever_was_imported(notebook: Notebook) -> None:
    imports = "".join(f"import {name}\n" for name in COURSE_PACKAGES)
    reply = notebook.run(
        f"{imports}"
        "def nothing(): pass\n"
        "fresh = Cluster(4, quiet=True)\n"
        "print(fresh.run(nothing).results)\n"
        "fresh.close()"
    )
    assert reply.ok().stdout == "[None, None, None, None]\n"


@pytest.mark.slow
def test_RT_05_earlier_cells_do_not_run_again(
    notebook: Notebook, tmp_path: Path
) -> None:
    path = tmp_path / "counter"
    notebook.run(f"open({str(path)!r}, 'a').write('x')").ok()
    for _ in range(2):
        notebook.run("with Cluster(4, quiet=True) as c: c.run(dist.get_rank)").ok()
    assert path.read_text() == "x"


@pytest.mark.slow
def test_RT_05_nor_does_a_program_without_a_main_guard(tmp_path: Path) -> None:
    path, program = tmp_path / "counter", tmp_path / "program.py"
    program.write_text(
        f"open({str(path)!r}, 'a').write('x')\n"
        "from labkit import Cluster\n"
        "cluster = Cluster(2, start='spawn', quiet=True)\n"
        "def add(x): return x + one\n"
        "one = 1\n"
        "print(cluster.run(add, 1).results)\n"
    )
    run = _python(program)
    assert run.stdout == "[2, 2]\n", run.stderr
    assert path.read_text() == "x"


def _python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], text=True, capture_output=True,
        check=False, timeout=50,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip


DEFINED = {
    "a plain function": "def f(x): return x + 1\n",
    "a lambda": "f = lambda x: x + 1\n",
    "a closure": "def make(n):\n    return lambda x: x + n\nf = make(1)\n",
    "a kernel variable": "step = 1\ndef f(x): return x + step\n",
    "a method": (
        "class Adder:\n    def __init__(self, n): self.n = n\n"
        "    def add(self, x): return x + self.n\nf = Adder(1).add\n"
    ),
    "a class": (
        "from dataclasses import dataclass\n@dataclass\nclass Config:\n    n: int = 1\n"
        "def f(x): return x + Config().n\n"
    ),
    "a decorated function": (
        "import functools\ndef twice(g):\n    @functools.wraps(g)\n"
        "    def h(x): return g(g(x)) - 1\n    return h\n"
        "@twice\ndef f(x): return x + 1\n"
    ),
    "a partial": "import functools, operator\nf = functools.partial(operator.add, 1)\n",
    "a recursive function": "def f(x): return x + 1 if x < 9 else f(x - 1) + 1\n",
    "another cell's function": "def f(x): return helper(x)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DEFINED)
def test_RT_06_what_a_cell_defines_travels(notebook: Notebook, what: str) -> None:
    notebook.run("def helper(x): return x + 1").ok()
    notebook.run(DEFINED[what]).ok()
    assert (
        notebook.run("print(cluster.run(f, 1).results)").ok().stdout == "[2, 2, 2, 2]\n"
    )


@pytest.mark.slow
def test_RT_06_a_class_comes_back_as_the_notebooks_own(notebook: Notebook) -> None:
    reply = notebook.run(
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def make(): return Point(dist.get_rank())\n"
        "points = cluster.run(make).results\n"
        "print([isinstance(p, Point) for p in points], [p.x for p in points])"
    )
    assert reply.ok().stdout == "[True, True, True, True] [0, 1, 2, 3]\n"


@pytest.mark.slow
def test_RT_06_what_cannot_travel_is_named(notebook: Notebook) -> None:
    reply = notebook.run(
        "import threading\n"
        "settings = {'a': 1, 'guard': threading.Lock()}\n"
        "def f(): return settings['a']\n"
        "cluster.run(f)"
    )
    assert reply.ename == "TravelError"
    assert "'settings', which f uses['guard'] cannot travel" in reply.evalue or (
        "settings" in reply.evalue and "['guard']" in reply.evalue
    )
    assert "cannot pickle '_thread.lock' object" in reply.evalue
    assert "Make it inside the function" in reply.evalue
    assert notebook.run("print(cluster.run(dist.get_rank).results)").ok()


@pytest.mark.slow
def test_RT_07_a_module_and_a_cell_give_the_same_and_edits_are_seen(
    notebook: Notebook, tmp_path: Path
) -> None:
    path = tmp_path / "my_lab_module.py"
    path.write_text("FACTOR = 2\ndef scale(x):\n    return FACTOR * x\n")
    notebook.run(
        "import sys, importlib\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import my_lab_module\n"
        "FACTOR = 2\n"
        "def scale(x): return FACTOR * x\n"
        "def through_import(x):\n"
        "    import my_lab_module\n"
        "    return my_lab_module.scale(x)"
    ).ok()
    show = (
        "print(cluster.run(my_lab_module.scale, 3).results[0],"
        " cluster.run(through_import, 3).results[0], cluster.run(scale, 3).results[0])"
    )
    assert notebook.run(show).ok().stdout == "6 6 6\n"
    path.write_text("FACTOR = 50\ndef scale(x):\n    return FACTOR * x\n")
    os.utime(path, (2e9, 2e9))
    notebook.run("importlib.reload(my_lab_module); None").ok()
    assert notebook.run(show).ok().stdout == "150 150 6\n"


def test_RT_08_models_and_tensors_travel_as_copies(cluster4: Cluster) -> None:
    model = torch.nn.Linear(3000, 3300)  # 10 M parameters
    data = torch.arange(6.0).view(2, 3)
    view = data[:, 1]

    def change(model: torch.nn.Linear, data: torch.Tensor, view: torch.Tensor) -> float:
        total = model.weight.sum().item()
        with torch.no_grad():
            model.weight.zero_()
        data.add_(100)
        assert torch.equal(view, data[:, 1]), "two views of one storage stay together"
        return total

    before = model.weight.sum().item()
    results = cluster4.run(change, model, data, view, ranks=[0, 1]).results
    assert results == pytest.approx([before, before])
    assert model.weight.sum().item() == before
    assert torch.equal(data, torch.arange(6.0).view(2, 3))


def test_RT_08_results_are_copies_of_what_the_rank_keeps(cluster4: Cluster) -> None:
    def make() -> torch.Tensor:
        return torch.full((4,), float(dist.get_rank()), requires_grad=True)

    for rank, tensor in enumerate(cluster4.run(make).results):
        assert torch.equal(tensor, torch.full((4,), float(rank)))
        assert tensor.requires_grad


def test_ranks_work_where_the_notebook_works(cluster4: Cluster) -> None:
    assert cluster4.run(Path.cwd).results == [Path.cwd()] * 4


def machine(num_gpus: int, nccl: tuple[int, ...]) -> Machine:
    gpus = tuple(Gpu("GPU", 24 << 30, f"GPU-{n}") for n in range(num_gpus))
    return Machine(
        cores=8, memory_bytes=64 << 30, platform="linux", torch="2.13.0", cuda="13.0",
        nccl=nccl, gpus=gpus, driver_cuda=(13, 0),
    )  # fmt: skip


def test_RT_40_more_ranks_than_gpus_are_decided_before_the_start() -> None:
    shared = place(4, machine(1, nccl=(2, 30, 4)))
    assert shared.backend == "nccl"
    assert shared.device_of == ("cuda:0",) * 4
    assert shared.env["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    over_gloo = place(4, machine(1, nccl=(2, 27, 3)))
    assert over_gloo.backend == "gloo"
    assert over_gloo.device_of == ("cuda:0",) * 4
    assert "1 GPU found, and NCCL 2.27.3 gives each to one rank" in over_gloo.because
    with pytest.raises(UsageError, match=r"4 ranks, 1 GPU and NCCL 2.27.3"):
        place(4, machine(1, nccl=(2, 27, 3)), backend="nccl")


@pytest.mark.gpu
def test_RT_40_four_ranks_share_what_gpus_there_are(make_cluster: MakeCluster) -> None:
    def add() -> tuple[float, str]:
        data = torch.ones(2, device="cuda")
        dist.all_reduce(data)
        return data.sum().item(), str(data.device)

    cluster = make_cluster(4)
    results = cluster.run(add).results
    assert [total for total, _ in results] == [8.0] * 4
    assert [device for _, device in results] == list(cluster.placement.device_of)  # type: ignore[union-attr]


@pytest.mark.gpu
def test_RT_41_the_default_device_is_the_ranks_own(make_cluster: MakeCluster) -> None:
    num = torch.cuda.device_count()
    cluster = make_cluster(num)
    devices = cluster.run(lambda: torch.ones(1, device="cuda").device.index).results
    assert devices == [*range(num)]


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="SKIPPED, NOT TESTED: a name space of its own needs root and unshare",
)
def test_RT_42_a_host_name_that_resolves_to_nothing_does_no_harm(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import socket, torch, torch.distributed as dist\n"
        "from labkit import Cluster\n"
        "def add():\n"
        "    x = torch.ones(1)\n"
        "    dist.all_reduce(x)\n"
        "    return x.item(), socket.gethostname()\n"
        "print(Cluster(2, quiet=True).run(add).results)\n"
    )
    outside = (
        "hostname nosuch.invalid; ip link set lo up; "
        # An interface that packets never leave by, as a VPN's that is down.
        "ip tuntap add dev vpn0 mode tun 2>/dev/null && "
        'ip addr add 10.99.0.1/24 dev vpn0; exec "$@"'
    )
    run = subprocess.run(
        ["unshare", "--uts", "--net", "sh", "-c", outside, "sh", sys.executable,
         str(program)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        text=True, capture_output=True, check=False, timeout=50,
    )  # fmt: skip
    if "Operation not permitted" in run.stderr:
        pytest.skip("SKIPPED, NOT TESTED: this machine forbids name spaces")
    assert run.stdout == "[(2.0, 'nosuch.invalid'), (2.0, 'nosuch.invalid')]\n", (
        run.stderr
    )


def test_RT_42_ranks_of_one_machine_talk_over_loopback(cluster4: Cluster) -> None:
    def listening_addresses() -> list[str]:
        dist.barrier()
        return [
            connection.laddr.ip for connection in psutil.Process().net_connections()
            if connection.family.name in ("AF_INET", "AF_INET6")
        ]  # fmt: skip

    for addresses in cluster4.run(listening_addresses).results:
        assert addresses
        assert all(a.startswith(("127.", "::1", "::ffff:127.")) for a in addresses)


@pytest.mark.parametrize("set_by_user", [None, "3"])
def test_RT_46_threads_are_a_fair_share_unless_the_user_says(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, set_by_user: str | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    cluster = make_cluster(2)
    fair = max(1, len(os.sched_getaffinity(0)) // 2)
    expected = int(set_by_user or 0) or cluster.placement.threads_per_rank  # type: ignore[union-attr]
    assert cluster.run(torch.get_num_threads).results == [expected] * 2
    assert set_by_user is not None or 1 <= expected <= fair
    assert make_cluster(2, threads=2).run(torch.get_num_threads).results == [2, 2]
