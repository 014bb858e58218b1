"""What the doctor looks at: one function for each line of its report.

Each is asked on its own, may fail or hang without harm to the others, and needs no
network. A line says what was found, whether that is well, and if not, what to do.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from labkit.errors import UsageError
from labkit.runtime.devices import Machine, place
from labkit.units import format_bytes

Status: TypeAlias = Literal["ok", "warn", "fail"]

GIB = 2**30
PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 14))
JUPYTERLAB = 4
MIN_MEMORY_BYTES = 2 * GIB
MIN_DISK_BYTES = 1 * GIB
MIN_SHM_BYTES = 256 * 2**20
EXTENSIONS = ("@jupyter-widgets/jupyterlab-manager", "anywidget", "jupyterlab-plotly")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Check:
    """One line of the report; `fix` says what to do where the status is not "ok"."""

    name: str
    value: str
    status: Status = "ok"
    fix: str = ""


def system(machine: Machine) -> Check:
    """Which of the supported cases this machine is."""
    release = f"{platform.system()} {platform.release()}"
    match machine.platform:
        case "linux":
            return Check("system", f"{release}: supported")
        case "wsl":
            return Check("system", f"{release}: supported (Linux under WSL)")
        case "macos":
            return Check(
                "system", f"{release}: best effort, ranks are spawned", "warn",
                "nothing to do; where something fails, use Linux",
            )  # fmt: skip
        case "windows":
            return Check(
                "system", f"{release}: not supported", "fail",
                "install WSL (wsl --install) and work inside it",
            )  # fmt: skip


def python(machine: Machine) -> Check:
    """Whether this Python is one that is tested."""
    return _in_range("Python", platform.python_version(), PYTHONS, "Python")


def torch(machine: Machine) -> Check:
    """Whether torch is there, in a version that is tested."""
    if machine.torch is None:
        fix = "install it into this Python: make lab, or pip install torch"
        return Check("torch", "not installed", "fail", fix)
    check = _in_range("torch", machine.torch, TORCHES, "torch")
    built = f"CUDA {machine.cuda}" if machine.cuda else "CPU only"
    return Check("torch", f"{check.value} ({built})", check.status, check.fix)


def _in_range(
    name: str, version: str, allowed: tuple[tuple[int, ...], tuple[int, ...]], what: str
) -> Check:
    low, high = allowed
    words = f"{'.'.join(map(str, low))} to {'.'.join(map(str, high))}"
    if low <= _numbers(version)[: len(low)] <= high:
        return Check(name, version)
    return Check(name, version, "warn", f"labkit is tested with {what} {words}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def cores(machine: Machine) -> Check:
    """Cores that ranks may use."""
    there = os.cpu_count() or machine.cores
    told = f"{machine.cores}"
    if there > machine.cores:
        told += f" of {there} (limited by affinity or a container)"
    if machine.cores > 1:
        return Check("cores", told)
    return Check("cores", told, "warn", "ranks take turns on it: expect to wait")


def memory(machine: Machine) -> Check:
    """Memory that may be used, and how much of it is free."""
    free = min(psutil.virtual_memory().available, machine.memory_bytes)
    told = f"{format_bytes(machine.memory_bytes)}, {format_bytes(free)} free"
    if free >= MIN_MEMORY_BYTES:
        return Check("memory", told)
    least = format_bytes(MIN_MEMORY_BYTES)
    return Check("memory", told, "warn", f"free {least} at least: close other kernels")


def temporary_folder(machine: Machine) -> Check:
    """Room for what ranks write for a while."""
    return _folder("temporary folder", Path(tempfile.gettempdir()), "set TMPDIR")


def home(machine: Machine) -> Check:
    """Room for what is kept: settings, answers."""
    return _folder("home folder", Path.home(), "set HOME")


def shared_memory(machine: Machine) -> Check:
    """Room in /dev/shm, where ranks meet and data loaders leave batches."""
    folder = Path("/dev/shm")
    if machine.platform not in ("linux", "wsl"):
        return Check("shared memory", "not used on this system")
    check = _folder("shared memory", folder, "mount /dev/shm", MIN_SHM_BYTES)
    if check.status == "warn":
        fix = "in Docker: --shm-size=1g"
        return Check(check.name, check.value, check.status, fix)
    return check


def _folder(name: str, path: Path, way_out: str, least: int = MIN_DISK_BYTES) -> Check:
    fix = f"free some space there, or {way_out} to another folder"
    try:
        free = shutil.disk_usage(path).free
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        reason = error.strerror or str(error)
        return Check(name, f"{path}: cannot be written ({reason})", "fail", fix)
    told = f"{format_bytes(free)} free in {path}"
    return Check(name, told) if free >= least else Check(name, told, "warn", fix)


def gpus(machine: Machine) -> Check:
    """The GPUs that ranks would see, and whether this torch can use them."""
    if not machine.gpus:
        return Check("GPUs", "none: ranks compute on the CPU")
    names = [f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in machine.gpus]
    told = "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if machine.cuda is None:
        fix = f"torch {machine.torch} cannot use them: install its CUDA build"
        return Check("GPUs", told, "warn", fix)
    driver, needed = machine.driver_cuda, _numbers(machine.cuda)
    if driver and driver[0] < needed[0]:
        fix = (
            f"the driver takes CUDA {driver[0]}.{driver[1]}, torch needs "
            f"{machine.cuda}: update the driver, or install torch for CUDA {driver[0]}"
        )
        return Check("GPUs", told, "warn", fix)
    return Check("GPUs", told)


def links(machine: Machine) -> Check:
    """What joins the GPUs, and which can read each other's memory."""
    if not machine.links:
        return Check("GPU links", "none: fewer than two GPUs")
    kinds: dict[str, list[str]] = {}
    for link in machine.links:
        peer = "peer access" if link.peer_access else "no peer access"
        pair = f"{link.first}-{link.second}"
        kinds.setdefault(f"{link.kind}, {peer}", []).append(pair)
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return Check("GPU links", f"{kind} between all {len(machine.gpus)}")
    told = "; ".join(f"{kind}: {', '.join(pairs)}" for kind, pairs in kinds.items())
    return Check("GPU links", told)


def nccl(machine: Machine) -> Check:
    """The NCCL that GPU ranks would use."""
    if machine.cuda is None:
        return Check("NCCL", "not part of this torch; ranks use gloo")
    if machine.nccl is None:
        return Check("NCCL", "version not known; GPUs are not shared through it")
    version = ".".join(map(str, machine.nccl))
    shares = "can" if machine.nccl_shares_gpus else "cannot"
    return Check("NCCL", f"{version}, {shares} put several ranks on one GPU")


def loopback(machine: Machine) -> Check:
    """Whether processes of this machine can talk: gloo's interface, tried."""
    name = machine.loopback or "no interface with 127.0.0.1"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=1.0) as near:
                server.settimeout(1.0)
                far, _ = server.accept()
                with far:
                    near.sendall(b"labkit")
                    far.settimeout(1.0)
                    heard = far.recv(6)
    except OSError as error:
        heard, name = b"", f"{name} ({error.strerror or error})"
    if heard == b"labkit" and machine.loopback:
        return Check("gloo interface", f"{name}: ranks can talk over 127.0.0.1")
    fix = "bring the loopback interface up (ip link set lo up), and allow 127.0.0.1"
    return Check("gloo interface", f"{name}: ranks cannot talk", "fail", fix)


def host_name(machine: Machine) -> Check:
    """Whether the host's name has an address: needed for several nodes only."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        told = f"{name} has no address (only several nodes need one)"
        return Check("host name", told)
    return Check("host name", f"{name} is {found[0][4][0]}")


def jupyterlab(machine: Machine) -> Check:
    """Whether JupyterLab is there, in a version that is tested."""
    version = _version("jupyterlab")
    if version is None:
        fix = "install it into this Python: make lab, or pip install jupyterlab"
        return Check("JupyterLab", "not installed", "fail", fix)
    others = [f"{name} {_version(name) or 'missing'}" for name in ("ipykernel",)]
    told = f"{version}, {', '.join(others)}"
    if _numbers(version)[:1] == (JUPYTERLAB,):
        return Check("JupyterLab", told)
    fix = f"labkit is tested with JupyterLab {JUPYTERLAB}; others show still pictures"
    return Check("JupyterLab", told, "warn", fix)


def widgets(machine: Machine) -> Check:
    """Whether JupyterLab has what draws widgets and plots, switched on."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    settings = _page_settings(Path(folder) for folder in jupyter_config_path())
    states = {name: extension_state(name, folders, settings) for name in EXTENSIONS}
    told = ", ".join(f"{name.split('/')[-1]} {state}" for name, state in states.items())
    missing = [name for name, state in states.items() if state == "missing"]
    disabled = [name for name, state in states.items() if state == "disabled"]
    fixes: list[str] = []
    if missing:
        fixes.append("pip install ipywidgets anywidget plotly, in JupyterLab's Python")
    fixes += [f"jupyter labextension enable {name}" for name in disabled]
    return Check("widgets", told, "warn" if fixes else "ok", "; ".join(fixes))


def extension_state(
    name: str, folders: Iterable[Path], settings: Iterable[dict[str, Any]]
) -> str:
    """A JupyterLab extension's version, "missing" or "disabled".

    Reads what JupyterLab itself reads, so that neither node nor a server is needed.
    `folders` and `settings` come with those that count most first.
    """
    for folder in folders:
        package = _json(folder / name / "package.json")
        if package:
            break
    else:
        return "missing"
    for setting in settings:
        switched_off = setting.get("disabledExtensions", {})
        if isinstance(switched_off, list):
            switched_off = dict.fromkeys(switched_off, True)
        if name in switched_off:
            if switched_off[name]:
                return "disabled"
            break
    return str(package.get("version", "present"))


def _page_settings(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """JupyterLab's page settings: each folder's own file, then its drop-in files."""
    return [
        _json(path)
        for folder in folders
        for path in (
            folder / "labconfig" / "page_config.json",
            *sorted((folder / "labconfig" / "page_config.d").glob("*.json")),
        )
    ]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def kernel(machine: Machine) -> Check:
    """Whether the notebook's usual kernel starts this Python."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    fix = "python -m ipykernel install --sys-prefix, with this Python"
    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        return Check("kernel", "no kernel named python3", "fail", fix)
    program = str(spec.argv[0]) if spec.argv else ""
    # Jupyter puts its own Python in the place of a bare name.
    if program == Path(program).name or _same_place(program, sys.executable):
        return Check("kernel", f"python3 starts {sys.executable}")
    return Check("kernel", f"python3 starts {program}, not this Python", "warn", fix)


def _same_place(program: str, other: str) -> bool:
    """Whether two programs stand in one folder: links of one environment's Python."""
    return Path(program).absolute().parent == Path(other).absolute().parent


def browser(machine: Machine) -> Check:
    """Whether the browser tests can run; no lesson needs this."""
    for name in BROWSERS:
        found = shutil.which(name)
        if found:
            return Check("test browser", found)
    return Check("test browser", "none (only labkit's own browser tests need Chromium)")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def placements(machine: Machine, world_size: int) -> Check:
    """Where that many ranks would go, and why."""
    name = f"Cluster({world_size})"
    try:
        return Check(name, place(world_size, machine).because)
    except UsageError as error:
        return Check(name, str(error), "warn", "ask for fewer ranks")


def every_check(machine: Machine) -> dict[str, Callable[[], Check]]:
    """All lines of the report, in its order, each ready to be asked."""
    questions = (
        system, python, torch, cores, memory, temporary_folder, home, shared_memory,
        gpus, links, nccl, loopback, host_name, jupyterlab, widgets, kernel, browser,
    )  # fmt: skip
    asked: dict[str, Callable[[], Check]] = {}
    for question in questions:
        name = question.__name__.replace("_", " ")
        asked[name] = lambda question=question: question(machine)
    for world_size in (2, 4, 8):
        name = f"Cluster({world_size})"
        asked[name] = lambda world_size=world_size: placements(machine, world_size)
    return asked
