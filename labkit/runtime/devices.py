"""Where ranks go on a machine: decided, and said, before any of them starts.

`look` finds out what the machine is. `place` decides from that and nothing else, so
that the decision for any machine can be tested on every machine.

    ranks <= GPUs            nccl, a GPU for each rank
    ranks > GPUs >= 1        nccl sharing GPUs where this NCCL can, else gloo with CUDA
    no GPU, or not usable    gloo, CPU
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from labkit.errors import UsageError
from labkit.runtime.machine import Machine, look
from labkit.units import format_bytes

__all__ = ["Machine", "Placement", "look", "place"]

Backend: TypeAlias = Literal["nccl", "gloo", "threads"]
Start: TypeAlias = Literal["fork", "spawn"]

# A forked rank that has done nothing yet holds about 60 MB of its own.
RANK_BYTES = 64 * 2**20
# What CUDA and a communicator take of a GPU for each process, before any tensor.
CONTEXT_BYTES = 600 * 2**20
MIN_RANK_LIMIT, RANKS_PER_CORE, THREAD_RANK_LIMIT = 64, 8, 256
MAX_THREADS = 1024


@dataclass(frozen=True)
class Placement:
    """Where ranks go. `device_of` is by rank; `because` says it in one sentence.

    `env` are the variables that every rank is started with.
    """

    backend: Backend
    device_of: tuple[str, ...]
    threads_per_rank: int
    start: Start
    env: dict[str, str] = field(repr=False)
    because: str


def place(
    world_size: int,
    machine: Machine,
    *,
    backend: str = "auto",
    device: str = "auto",
    start: str = "auto",
    threads: int | None = None,
) -> Placement:
    """Decide backend, devices, threads and start of `world_size` ranks.

    Args:
        world_size: How many ranks, at least 1.
        machine: What `look` found.
        backend: "auto", "nccl", "gloo" or "threads".
        device: "auto", "cpu" or "cuda".
        start: "auto", "fork" or "spawn".
        threads: Threads a rank computes with; else OMP_NUM_THREADS, else a fair share.

    Raises:
        UsageError: For what this machine cannot do, or a value that means nothing.
    """
    _check_platform(machine)
    _check_choice("backend", backend, ("auto", "nccl", "gloo", "threads"))
    _check_choice("device", device, ("auto", "cpu", "cuda"))
    _check_choice("start", start, ("auto", "fork", "spawn"))
    _check_world_size(world_size, machine, hosted=backend == "threads")
    choice = _choose(world_size, machine, backend, device)
    num_threads, why_threads = _threads(world_size, machine, threads)
    return Placement(
        backend=choice.backend,
        device_of=_devices(world_size, machine, choice),
        threads_per_rank=num_threads,
        start=_start(machine, start),
        env=_environment(machine, choice, num_threads),
        because=(
            f"{_count(world_size, 'rank')} on {choice.backend}, {choice.where}: "
            f"{choice.why}; {_count(num_threads, 'thread')} a rank ({why_threads})"
        ),
    )


@dataclass(frozen=True)
class _Choice:
    """A backend, whether its ranks hold GPUs, and the words for both."""

    backend: Backend
    on_gpu: bool
    where: str
    why: str
    shares: bool = False


def _check_platform(machine: Machine) -> None:
    if machine.platform == "windows":
        raise UsageError(
            "ranks need Linux or macOS; this Python runs on Windows itself. Install "
            "WSL (wsl --install), and start JupyterLab inside it"
        )


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{name} is one of {', '.join(allowed)}; got {value!r}. "
            f'{name}="auto" lets labkit choose, and say why'
        )


def _check_world_size(world_size: Any, machine: Machine, *, hosted: bool) -> None:
    most, rule = _most_ranks(machine, hosted=hosted)
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise UsageError(
            f"a world size is a whole number from 1 to {most}; got {world_size!r}, "
            f"which is of type {type(world_size).__name__}. Try Cluster(4)"
        )
    if not 1 <= world_size <= most:
        raise UsageError(
            f"a world size is a whole number from 1 to {most} here ({rule}); got "
            f"{world_size}. Try Cluster({min(4, most)})"
        )


def _most_ranks(machine: Machine, *, hosted: bool) -> tuple[int, str]:
    """How many ranks may be asked for, and the rule in words."""
    if hosted:
        return THREAD_RANK_LIMIT, "the most threads that one process takes as ranks"
    by_cores = max(MIN_RANK_LIMIT, RANKS_PER_CORE * machine.cores)
    by_memory = max(1, machine.memory_bytes // RANK_BYTES)
    if by_memory < by_cores:
        memory = format_bytes(machine.memory_bytes)
        return by_memory, f"{memory} of memory, {format_bytes(RANK_BYTES)} a rank"
    rule = f"{RANKS_PER_CORE} ranks a core, at least {MIN_RANK_LIMIT}"
    return by_cores, f"{rule}; this machine has {_count(machine.cores, 'core')}"


def _choose(world_size: int, machine: Machine, backend: str, device: str) -> _Choice:
    """Backend and device: what was asked for if it can be, else the best there is."""
    if backend == "threads":
        return _hosted(device)
    if device == "cpu":
        return _on_cpu(backend)
    wants_gpu = backend == "nccl" or device == "cuda"
    fault = _gpu_fault(machine, trust_driver=wants_gpu)
    if fault and wants_gpu:
        asked = 'backend="nccl"' if backend == "nccl" else 'device="cuda"'
        raise UsageError(
            f"{asked} needs a GPU for its ranks; {fault} ({_count(world_size, 'rank')} "
            'asked for, 0 GPUs to use). Try backend="gloo", device="cpu"; `labkit '
            "doctor` says what to fix"
        )
    if fault:
        return _Choice("gloo", False, "CPU", fault)
    if backend == "gloo" and device == "auto":
        return _Choice(
            "gloo", False, "CPU", 'gloo was asked for (device="cuda" to add)'
        )
    return _on_gpu(world_size, machine, backend, strict=wants_gpu)


def _hosted(device: str) -> _Choice:
    if device == "cuda":
        raise UsageError(
            'backend="threads" computes on the CPU; got device="cuda". Leave the '
            "device out, or the backend: ranks that are processes can hold GPUs"
        )
    why = "ranks are threads of one process, one at a time, as asked for"
    return _Choice("threads", False, "CPU", why)


def _on_cpu(backend: str) -> _Choice:
    if backend == "nccl":
        raise UsageError(
            'backend="nccl" moves GPU memory only; got device="cpu". Use '
            'backend="gloo" with device="cpu", or device="cuda" with nccl'
        )
    return _Choice("gloo", False, "CPU", "the CPU was asked for")


def _gpu_fault(machine: Machine, *, trust_driver: bool) -> str:
    """Why no rank can hold a GPU; empty where one can.

    A driver can look too old and still work, with NVIDIA's compatibility libraries:
    whoever asks for a GPU by name is believed (`trust_driver`).
    """
    if not machine.gpus:
        return "no GPU was found"
    if machine.cuda is None:
        return f"this torch ({machine.torch}) is built without CUDA"
    driver = machine.driver_cuda
    if driver and not trust_driver and driver[0] < int(machine.cuda.partition(".")[0]):
        return (
            f"the GPU driver takes CUDA {driver[0]}.{driver[1]} at most, and this "
            f"torch is built with CUDA {machine.cuda}"
        )
    return ""


def _on_gpu(
    world_size: int, machine: Machine, backend: str, *, strict: bool
) -> _Choice:
    """On GPUs that work: one each if they suffice, else shared."""
    num_gpus = len(machine.gpus)
    if world_size <= num_gpus:
        if backend == "gloo":
            return _Choice("gloo", True, "a GPU each", "gloo was asked for")
        seen = f"{_count(num_gpus, 'GPU')} found"
        return _Choice("nccl", True, "a GPU each", seen)
    crowd = _crowd_fault(world_size, machine)
    if crowd and strict:
        raise UsageError(
            f"the GPUs must hold all ranks that share them; {crowd}. Try fewer ranks, "
            'or device="cpu"'
        )
    if crowd:
        return _Choice("gloo", False, "CPU", crowd)
    return _sharing(world_size, machine, backend)


def _crowd_fault(world_size: int, machine: Machine) -> str:
    """Why the GPUs have no room for this many ranks; empty where they have."""
    told = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes]
    most = -(-world_size // len(machine.gpus))
    if not told or most * CONTEXT_BYTES <= min(told):
        return ""
    return (
        f"{most} ranks on a GPU take {format_bytes(most * CONTEXT_BYTES)} of its "
        f"memory before any tensor, and it has {format_bytes(min(told))}"
    )


def _sharing(world_size: int, machine: Machine, backend: str) -> _Choice:
    """More ranks than GPUs: NCCL from 2.30 on can share one, gloo always can."""
    num_gpus = len(machine.gpus)
    where = f"sharing {_count(num_gpus, 'GPU')}"
    version = ".".join(map(str, machine.nccl or ())) or "of unknown version"
    if backend != "gloo" and machine.nccl_shares_gpus:
        why = (
            f"{_count(num_gpus, 'GPU')} found, and NCCL {version} lets ranks share one"
        )
        return _Choice("nccl", True, where, why, shares=True)
    if backend == "nccl":
        raise UsageError(
            f"nccl needs a GPU for each rank, or NCCL 2.30 or newer to share one; got "
            f"{_count(world_size, 'rank')}, {_count(num_gpus, 'GPU')} and NCCL "
            f'{version}. Try Cluster({num_gpus}), or backend="gloo", device="cuda"'
        )
    if backend == "gloo":
        return _Choice("gloo", True, where, "gloo was asked for")
    why = f"{_count(num_gpus, 'GPU')} found, and NCCL {version} gives each to one rank"
    return _Choice("gloo", True, where, why)


def _devices(world_size: int, machine: Machine, choice: _Choice) -> tuple[str, ...]:
    if not choice.on_gpu:
        return ("cpu",) * world_size
    return tuple(f"cuda:{rank % len(machine.gpus)}" for rank in range(world_size))


def _threads(world_size: int, machine: Machine, threads: Any) -> tuple[int, str]:
    """Threads a rank, and why: asked for, set by the user, or a fair share of cores."""
    if threads is not None:
        is_number = isinstance(threads, int) and not isinstance(threads, bool)
        if not is_number or not 1 <= threads <= MAX_THREADS:
            raise UsageError(
                f"threads a rank is a whole number from 1 to {MAX_THREADS}; got "
                f"{threads!r}. Leave it out for max(1, cores // ranks), here "
                f"{max(1, machine.cores // world_size)}"
            )
        return threads, "as asked for"
    if machine.omp_threads is not None:
        return machine.omp_threads, "from OMP_NUM_THREADS"
    cores, ranks = _count(machine.cores, "core"), _count(world_size, "rank")
    return max(1, machine.cores // world_size), f"{cores} / {ranks}"


def _start(machine: Machine, start: str) -> Start:
    if start == "fork" and not machine.can_fork:
        raise UsageError(
            f'start="fork" needs a system where forking is safe; this is '
            f'{machine.platform}. Leave start out: "spawn" is taken here'
        )
    if start == "spawn" or not machine.can_fork:
        return "spawn"
    return "fork"


def _environment(machine: Machine, choice: _Choice, num_threads: int) -> dict[str, str]:
    """What every rank is started with.

    [Note: gloo and loopback] Gloo binds to the address of the host's name, and fails
    where that is not an address of this machine (RT-42). With GLOO_SOCKET_IFNAME it
    never asks: ranks of one machine meet on the interface that never leaves it.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {name: str(num_threads) for name in names}
    # torch.cuda.is_available() then asks NVML, and starts no CUDA in a zygote.
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if machine.loopback is not None:
        env["GLOO_SOCKET_IFNAME"] = machine.loopback
    if choice.shares:
        env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        env["NCCL_NVLS_ENABLE"] = "0"  # Reduction in the switch needs a GPU a rank.
    if machine.gpus and not choice.on_gpu:
        env["CUDA_VISIBLE_DEVICES"] = ""  # `is_available()` agrees with the placement.
    return env


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
