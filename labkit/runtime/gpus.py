"""The machine's GPUs and what joins them, as the driver's management library tells.

NVML starts no CUDA: after this a process can still be forked, and holds no GPU memory.
Whatever NVML cannot say on a machine (WSL and new boards lack parts of it) is left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")
LinkKind: TypeAlias = Literal["nvlink", "pcie switch", "pcie", "cpu", "unknown"]

# nvidia-ml-py has these as constants, but NVML_P2P_CAPS_INDEX_READ is a tuple there.
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0
# NVML's levels of the nearest common ancestor, from the same board to across CPUs.
_ANCESTOR: dict[int, LinkKind] = {
    0: "pcie switch", 10: "pcie switch", 20: "pcie switch", 30: "pcie", 40: "pcie",
    50: "cpu",
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One GPU that CUDA will see; `memory_bytes` is 0 where it is not told."""

    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True)
class Link:
    """What joins two GPUs, by their place in the list.

    With `peer_access` each can read the other's memory directly.
    """

    first: int
    second: int
    kind: LinkKind
    peer_access: bool


@dataclass(frozen=True)
class Gpus:
    """All that NVML tells; `driver_cuda` is the newest CUDA that the driver takes."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver_cuda: tuple[int, int] | None = None


def look() -> Gpus:
    """The GPUs that this process's children will see; none without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return Gpus()
        handles = _visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        version = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2, default=0)
        return Gpus(
            gpus=tuple(_gpu(nvml, handle) for handle in handles),
            links=tuple(
                _link(nvml, handles, first, second)
                for first, second in combinations(range(len(handles)), 2)
            ),
            driver_cuda=(version // 1000, version % 1000 // 10) if version else None,
        )


@contextmanager
def _nvml() -> Generator[Any, None, None]:
    """The library, started; None where there is no package, driver or GPU."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # ImportError, NVMLError, or OSError of a broken driver.
        yield None
        return
    try:
        yield nvml
    finally:
        _ask(nvml, nvml.nvmlShutdown, default=None)


def _ask(nvml: Any, question: Callable[..., T], *args: Any, default: T) -> T:
    """An answer of NVML's, or the default where it has none."""
    try:
        return question(*args)
    except nvml.NVMLError:
        return default


def _visible(nvml: Any, setting: str | None) -> list[Any]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order, as CUDA reads it."""
    count = _ask(nvml, nvml.nvmlDeviceGetCount, default=0)
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    if setting is None:
        return every
    names = [name.strip() for name in setting.split(",")]
    if len(set(names)) != len(names):
        return []  # CUDA sees nothing where a device is named twice.
    chosen: list[Any] = []
    for name in names:
        handle = _named(nvml, name, every)
        if handle is None:
            break  # CUDA reads no further than the first name that it does not know.
        chosen.append(handle)
        if name.startswith("MIG-"):
            break  # A process sees one slice of a partitioned GPU, not several.
    return chosen


def _named(nvml: Any, name: str, every: list[Any]) -> Any:
    if name.isdigit():
        return every[int(name)] if int(name) < len(every) else None
    if name.startswith("MIG-"):
        return _ask(nvml, nvml.nvmlDeviceGetHandleByUUID, name, default=None)
    same = [handle for handle in every if name and _uuid(nvml, handle).startswith(name)]
    return same[0] if len(same) == 1 else None


def _uuid(nvml: Any, handle: Any) -> str:
    return _ask(nvml, nvml.nvmlDeviceGetUUID, handle, default="")


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    return Gpu(
        name=_ask(nvml, nvml.nvmlDeviceGetName, handle, default="NVIDIA GPU"),
        memory_bytes=0 if memory is None else int(memory.total),
        uuid=_uuid(nvml, handle),
    )


def _link(nvml: Any, handles: list[Any], first: int, second: int) -> Link:
    pair = handles[first], handles[second]
    read, nvlink = (
        _ask(nvml, nvml.nvmlDeviceGetP2PStatus, *pair, index, default=None) == _P2P_OK
        for index in (_P2P_READ, _P2P_NVLINK)
    )
    ancestor = _ask(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, *pair, default=-1)
    kind = "nvlink" if nvlink else _ANCESTOR.get(ancestor, "unknown")
    return Link(first, second, kind, peer_access=read)
