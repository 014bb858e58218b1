"""What this machine is: limits of containers, GPUs of a made-up driver, this host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from labkit.runtime import gpus, limits
from labkit.runtime import machine as machines

GIB = 2**30


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", cpu__max="400000 100000", memory__max=str(8 * GIB))
    write(tmp_path / "a" / "b", cpu__max="max 100000", memory__max="max")
    write(
        tmp_path / "a" / "b" / "c", cpu__max="650000 100000", memory__max=str(9 * GIB)
    )
    assert limits.cgroup_cores(tmp_path, "0::/a/b/c\n") == 4.0
    assert limits.cgroup_memory_bytes(tmp_path, "0::/a/b/c\n") == 8 * GIB


def test_version_1_groups_are_read(tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "job", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    write(tmp_path / "cpu", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    write(tmp_path / "memory" / "job", memory__limit_in_bytes=str(3 * GIB))
    own = "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"
    assert limits.cgroup_cores(tmp_path, own) == 1.5
    assert limits.cgroup_memory_bytes(tmp_path, own) == 3 * GIB


@pytest.mark.parametrize(
    "text", ["", "max 100000", "max", "rubbish", "0 100000", "100000 0", "1 2 3"]
)
def test_a_quota_that_says_nothing_is_no_quota(tmp_path: Path, text: str) -> None:
    write(tmp_path, cpu__max=text, memory__max=text.split(" ")[0] if text else "")
    assert limits.cgroup_cores(tmp_path, "0::/\n") is None


def test_a_group_that_is_not_mounted_is_no_limit(tmp_path: Path) -> None:
    assert limits.cgroup_cores(tmp_path, "0::/of/the/host\nodd line\n") is None
    assert limits.cgroup_memory_bytes(tmp_path / "none", "") is None


def test_cores_and_memory_never_exceed_the_machine() -> None:
    assert 1 <= limits.cores() <= (os.cpu_count() or 1)
    assert 0 < limits.memory_bytes() <= psutil.virtual_memory().total


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no affinity on this system"
)
def test_cores_respect_the_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from labkit.runtime import limits; print(limits.cores())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "1", done.stderr


class FakeNvml:
    """A driver with some GPUs: answers like pynvml, refuses like it too."""

    class NVMLError(Exception):
        pass

    def __init__(self, count: int, *, refuse: frozenset[str] = frozenset()) -> None:
        self.uuids = [f"GPU-{letter}{letter}" for letter in "abcdefgh"[:count]]
        self.refuse = refuse
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
            "nvmlDeviceGetCount": lambda: len(self.uuids),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetName": lambda handle: f"H{handle}",
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * GIB),
            "nvmlDeviceGetUUID": lambda h: self.uuids[h] if isinstance(h, int) else h,
            "nvmlDeviceGetP2PStatus": self.peer,
            "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 50 if b - a > 1 else 30,
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.refuse:
                raise self.NVMLError(name)
            return answers[name](*args)

        return answer

    @staticmethod
    def peer(first: int, second: int, index: int) -> int:
        """Even pairs have NVLink; neighbours can read each other's memory."""
        assert isinstance(index, int), "pynvml's own constant for READ is a tuple"
        if index == 2:
            return 0 if (first, second) == (0, 1) else 5
        return 0 if second - first == 1 else 5


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeNvml:
    fake: FakeNvml = request.param
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.parametrize("nvml", [FakeNvml(3)], indirect=True)
def test_gpus_and_links_are_told(nvml: FakeNvml) -> None:
    found = gpus.look()
    assert [gpu.name for gpu in found.gpus] == ["H0", "H1", "H2"]
    assert {gpu.memory_bytes for gpu in found.gpus} == {80 * GIB}
    assert found.driver_cuda == (13, 1)
    kinds = {(link.first, link.second): link.kind for link in found.links}
    assert kinds == {(0, 1): "nvlink", (1, 2): "pcie", (0, 2): "cpu"}
    access = {(link.first, link.second): link.peer_access for link in found.links}
    assert access == {(0, 1): True, (1, 2): True, (0, 2): False}
    assert nvml.calls[-1] == "nvmlShutdown"


@pytest.mark.parametrize("nvml", [FakeNvml(4)], indirect=True)
@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ("2,0", ["GPU-cc", "GPU-aa"]),
        (" 1 , 3 ", ["GPU-bb", "GPU-dd"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["GPU-bb"]),
        ("1,9,2", ["GPU-bb"]),
        ("1,1", []),
        ("GPU-bb,GPU-a", ["GPU-bb", "GPU-aa"]),
        ("GPU-", []),
        ("MIG-x,MIG-y", ["MIG-x"]),
        ("NoDevFiles", []),
    ],
)
def test_only_visible_gpus_count(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, setting: str, seen: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.uuid for gpu in gpus.look().gpus] == seen


EVERYTHING = frozenset(
    name
    for name in vars(__import__("pynvml"))
    if name.startswith(("nvmlDeviceGetN", "nvmlDeviceGetU", "nvmlDeviceGetM",
                        "nvmlDeviceGetP2P", "nvmlDeviceGetTopology", "nvmlSystem",
                        "nvmlShutdown"))
)  # fmt: skip


@pytest.mark.parametrize("nvml", [FakeNvml(2, refuse=EVERYTHING)], indirect=True)
def test_what_a_driver_does_not_know_is_left_out(nvml: FakeNvml) -> None:
    found = gpus.look()
    assert found.gpus == (gpus.Gpu("NVIDIA GPU", 0, ""),) * 2
    assert found.links == (gpus.Link(0, 1, "unknown", peer_access=False),)
    assert found.driver_cuda is None


@pytest.mark.parametrize(
    "nvml", [FakeNvml(2, refuse=frozenset({"nvmlInit"}))], indirect=True
)
def test_without_a_driver_there_are_no_gpus(nvml: FakeNvml) -> None:
    assert gpus.look() == gpus.Gpus()
    assert nvml.calls == ["nvmlInit"]


def test_without_the_package_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert gpus.look() == gpus.Gpus()


def test_the_names_that_are_asked_for_exist_in_nvidia_ml_py() -> None:
    """A misspelt name would read as "not told" on every machine, unseen."""
    import pynvml

    names = set(re.findall(r"nvml\.(nvml\w+)", Path(gpus.__file__).read_text()))
    assert len(names) >= 10
    assert [name for name in names if not callable(getattr(pynvml, name, None))] == []


@pytest.mark.parametrize(
    ("text", "threads"),
    [("4", 4), ("4,2", 4), (" 3 ", 3), ("", None), ("0", None), ("-1", None),
     ("many", None)],
)  # fmt: skip
def test_the_users_threads_are_read(
    monkeypatch: pytest.MonkeyPatch, text: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert machines.look().omp_threads == threads


def test_this_machine_is_told_as_torch_tells_it() -> None:
    torch = pytest.importorskip("torch")
    here = machines.look()
    assert here.torch == torch.__version__
    assert here.cuda == torch.version.cuda
    if here.cuda and here.nccl:
        assert here.nccl == torch.cuda.nccl.version()[:3]
    if sys.platform.startswith("linux"):
        assert here.loopback == "lo"
        assert here.can_fork


LOOK = """
import pathlib, sys
from labkit.runtime.machine import look
look()
assert "torch" not in sys.modules, "looking must not cost an import of torch"
maps = pathlib.Path("/proc/self/maps")
loaded = maps.read_text() if maps.exists() else ""
assert "libcuda.so" not in loaded, "looking must not open CUDA's driver"
import torch
look()
assert not torch.cuda.is_initialized()
print("clean")
"""


@pytest.mark.slow
def test_looking_starts_neither_torch_nor_cuda() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "clean", done.stderr


@pytest.mark.gpu
def test_rt02_a_real_driver_is_asked_without_starting_cuda() -> None:
    code = (
        "from labkit.runtime.machine import look; here = look();"
        "import torch; assert not torch.cuda.is_initialized();"
        "assert len(here.gpus) == torch.cuda.device_count();"
        "names = [torch.cuda.get_device_name(n) for n in range(len(here.gpus))];"
        "assert sorted(names) == sorted(g.name for g in here.gpus), (names, here)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
