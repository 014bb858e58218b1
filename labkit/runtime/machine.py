"""What this machine is, found out without starting CUDA or importing torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform as host_platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from labkit.runtime import gpus as nvml
from labkit.runtime import limits
from labkit.runtime.gpus import Gpu, Link

Platform: TypeAlias = Literal["linux", "wsl", "macos", "windows"]

# NCCL refuses two ranks on one GPU from 2.5 on ("Duplicate GPU detected"). The variable
# that allows it is honoured from 2.30 on: "NCCL 2.30 or newer and
# NCCL_MULTI_RANK_GPU_ENABLE=1" (NVIDIA/cuDecomp, tests/README.md).
SHARING_NCCL = (2, 30)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What ranks can use here.

    `links` name GPUs by their place in `gpus`. `driver_cuda` is the newest CUDA that
    the driver takes. `loopback` is the network interface that stays inside the machine.
    `omp_threads` is the user's own OMP_NUM_THREADS.
    """

    cores: int
    memory_bytes: int
    platform: Platform
    torch: str | None
    cuda: str | None = None
    nccl: tuple[int, ...] | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    loopback: str | None = "lo"
    omp_threads: int | None = None
    can_fork: bool = True

    @property
    def nccl_shares_gpus(self) -> bool:
        """Whether this NCCL takes several ranks on one GPU."""
        return self.nccl is not None and self.nccl >= SHARING_NCCL


def look(*, ask_driver: bool = True) -> Machine:
    """Find out what this machine is. Starts neither CUDA nor torch.

    With `ask_driver=False` it looks for no GPU, where the driver does not answer.
    """
    torch_version, cuda = _torch_build()
    found = nvml.look() if ask_driver else nvml.Gpus()
    kind = _platform()
    return Machine(
        cores=limits.cores(),
        memory_bytes=limits.memory_bytes(),
        platform=kind,
        torch=torch_version,
        cuda=cuda,
        nccl=_nccl_version(cuda),
        gpus=found.gpus,
        links=found.links,
        driver_cuda=found.driver_cuda,
        loopback=_loopback(),
        omp_threads=_omp_threads(os.environ.get("OMP_NUM_THREADS", "")),
        can_fork=kind in ("linux", "wsl") and hasattr(os, "fork"),
    )


def _platform() -> Platform:
    if sys.platform == "darwin":
        return "macos"
    if sys.platform.startswith("linux"):
        is_wsl = "microsoft" in host_platform.release().lower()
        return "wsl" if is_wsl else "linux"
    return "windows"


def _torch_build() -> tuple[str | None, str | None]:
    """Torch's version and the CUDA it was built with, read from its own file.

    Importing torch takes seconds, which a look at the machine need not.
    """
    try:
        spec = importlib.util.find_spec("torch")
        places = spec.submodule_search_locations if spec else None
        if not places:
            return None, None
        told = _module_of(Path(next(iter(places))) / "version.py")
    except (OSError, ValueError, ImportError):
        return None, None
    return str(told.__version__), told.cuda


def _module_of(path: Path) -> Any:
    """Run a file as a module of its own, which nobody else sees."""
    spec = importlib.util.spec_from_file_location("labkit_torch_version", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _nccl_version(cuda: str | None) -> tuple[int, ...] | None:
    """The version of the NCCL that torch brought along, or was built with."""
    if cuda is None:
        return None
    try:
        text = importlib.metadata.version(f"nvidia-nccl-cu{cuda.partition('.')[0]}")
    except importlib.metadata.PackageNotFoundError:
        return _nccl_of_loaded_torch()
    return _numbers(text)


def _nccl_of_loaded_torch() -> tuple[int, ...] | None:
    """Ask a torch that is imported anyway: the call only reads a number."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch._C, "_nccl_version"):
        return None
    return tuple(torch.cuda.nccl.version()[:3])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _loopback() -> str | None:
    """The interface of 127.0.0.1: "lo" on Linux, "lo0" on macOS."""
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:
        return None
    for name, addresses in interfaces.items():
        if any(each.address.startswith("127.") for each in addresses):
            return name
    return None


def _omp_threads(text: str) -> int | None:
    """The first level of a setting such as "4" or "4,2"; None where it says nothing."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None
