"""What torch and Python keep once for a process, given to each rank of one process.

[Note: private switches] Every name of torch that is not public and that ranks as
threads depend on is used in this file alone. All are in the wheels of torch 2.11, 2.12,
2.13 and 2.14; tests/comm/groups/test_isolation.py fails the day one is missing.
- `distributed_c10d._world`: the groups of a process. torch keeps it replaceable
  ("experimental extension point to override it"), so that threads can have one each.
- `_set_thread_isolation_mode`: the same for the C++ table of groups by name, in which
  functional collectives and DeviceMesh look groups up.
- `_current_graph_task_id`: tells whether this thread is inside a backward pass, where
  C++ waits for futures in a way that Python cannot see.
- `_DisableTorchDispatch`, `_InferenceMode`: the copies that stand for a transfer must
  not be seen by the dispatch modes, nor by the autograd, of the rank that makes them.
- `FakeProcessGroup` with `error_on_collective`: torch keeps the name of a group, which
  DeviceMesh reads, in its C++ backend. A group written in Python has none; this one
  holds only the name, and raises if a collective ever falls through to it.
Public, but needed for the same end: `torch.autograd.set_multithreading_enabled(False)`,
so that a backward pass runs in the thread of the rank that called it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from _random import Random as _Random
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d

# Far from the small numbers that people seed with, so that no rank starts by chance
# where `manual_seed(0)` would.
_FIRST_SEED = 0x1AB_0000
_RANDOM_HEADER_BYTES = object.__basicsize__
_RANDOM_BYTES = _Random.__basicsize__ - _RANDOM_HEADER_BYTES
# What the type stubs of torch and numpy leave out.
_native: Any = _distributed_c10d
_numpy_random: Any = np.random

_VARIABLES = ("RANK", "LOCAL_RANK")
_MT19937_BYTES = 625 * 4  # 624 words and a position

_MAPS = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg",
    "pg_to_tag",
)  # fmt: skip


class _World(c10d._World):
    """The groups of one rank. torch's own class keeps these in module-wide dicts."""

    # Plain attributes, so that they shadow the properties of torch's class.
    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    tags_to_pg: Any = None
    pg_to_tag: Any = None
    group_count: Any = 0

    def __init__(self) -> None:
        super().__init__()
        for name in _MAPS:
            setattr(self, name, {})


class _WorldOfThread:
    """Stands where torch keeps its world, and is another one in each thread."""

    def __init__(self) -> None:
        object.__setattr__(self, "_local", threading.local())

    def _mine(self) -> _World:
        try:
            return self._local.world
        except AttributeError:
            self._local.world = _World()
            return self._local.world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mine(), name, value)


class Worlds:
    """A world of torch.distributed for each thread, in force in `with entered()`.

    One may be entered inside another: a rank may make ranks of its own.
    """

    _num_entered = 0

    def __init__(self, world_size: int) -> None:
        self._world = _WorldOfThread()
        self._world_size = world_size

    @contextmanager
    def entered(self) -> Generator[None, None, None]:
        """Give each thread its own world; afterwards all is as it was."""
        with ExitStack() as stack:
            stack.enter_context(_replaced(c10d, "_world", self._world))
            # Each init_process_group wraps the hook once more.
            stack.enter_context(_replaced(sys, "excepthook", sys.excepthook))
            for module in (dist, c10d):
                for function in (init_process_group, destroy_process_group):
                    name = function.__name__
                    stack.enter_context(_replaced(module, name, function))
            stack.enter_context(_environment("WORLD_SIZE", str(self._world_size)))
            # It would make ranks wait in C++ for each other.
            stack.enter_context(_environment("TORCH_DIST_INIT_BARRIER", None))
            self._isolate(+1)
            stack.callback(self._isolate, -1)
            yield

    @staticmethod
    def _isolate(step: int) -> None:
        Worlds._num_entered += step
        _native._set_thread_isolation_mode(Worlds._num_entered > 0)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None, None, None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _environment(variable: str, value: str | None) -> Generator[None, None, None]:
    before = os.environ.get(variable)
    _set_variable(variable, value)
    try:
        yield
    finally:
        _set_variable(variable, before)


def _set_variable(variable: str, value: str | None) -> None:
    """Set a variable of the environment; None takes it away."""
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


_init_process_group = c10d.init_process_group
_destroy_process_group = c10d.destroy_process_group


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Make the default group, unless the rank has it: scripts may call this again."""
    if not c10d.is_initialized():
        _init_process_group(*args, **kwargs)


def destroy_process_group(group: Any = None) -> None:
    """End a group; the default group stays, for the next run."""
    if group is not None and group is not dist.group.WORLD:
        _destroy_process_group(group)


def destroy_world() -> None:
    """End every group of the calling rank."""
    if c10d.is_initialized():
        _destroy_process_group()


class unseen:
    """Work on tensors without the modes of the calling rank: it did not ask for this.

    A class, since a generator would take twice the time.
    """

    def __enter__(self) -> None:
        self._contexts = torch._C._DisableTorchDispatch(), torch._C._InferenceMode(True)
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *raised: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*raised)


def hold_name(group: dist.ProcessGroup) -> None:
    """Give a group that is written in Python a place where torch can keep its name."""
    options = _native.FakeProcessGroup.Options()
    options.error_on_collective = True
    fake = _native.FakeProcessGroup._create_internal(
        group.rank(), group.size(), options
    )
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.device("cpu"), kind, fake)
    group._set_default_backend(kind)


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def own_backward() -> Any:
    """Inside this context, the backward passes of this thread run in this thread."""
    return torch.autograd.set_multithreading_enabled(False)


class ProcessState:
    """What a process has once and a rank expects for itself, while another rank runs.

    The random states of torch (CPU), Python and numpy, torch's default dtype, and RANK
    and LOCAL_RANK in the environment. A fresh process draws its three seeds from the
    system, so ranks that are processes differ from each other until they call
    `manual_seed`. Here they differ too, but start from the same numbers every time.

    Reading numpy's state takes 75 us and Python's 19, and most turns use neither: the
    raw bytes tell in under a microsecond whether there is anything to read.
    """

    def __init__(self, rank: int) -> None:
        seed = _FIRST_SEED + rank
        self._variables: dict[str, str | None] = dict.fromkeys(_VARIABLES, str(rank))
        self._dtype = torch.get_default_dtype()
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()
        self._python_bytes = b""
        self._numpy: Any = _numpy_random.MT19937(_Seeds(seed))
        self._numpy_bytes = b""
        self._numpy_state: Any = None

    @classmethod
    def of_process(cls) -> ProcessState:
        """The state that the process has now."""
        state = cls.__new__(cls)
        state._variables = {name: os.environ.get(name) for name in _VARIABLES}
        state._python_bytes = state._numpy_bytes = b""
        state._numpy = state._numpy_state = None
        state.save()
        return state

    def save(self) -> None:
        """Keep the state of the process as that of this rank."""
        self._dtype = torch.get_default_dtype()
        self._torch = torch.default_generator.get_state()
        if not _python_bytes() == self._python_bytes != b"":
            self._python = random.getstate()
        generator: Any = _numpy_random.get_bit_generator()
        same = generator is self._numpy and _numpy_bytes(generator) == self._numpy_bytes
        if not same or self._numpy_bytes == b"" or self._numpy_state is not None:
            state: Any = np.random.get_state(legacy=False)
            self._numpy = generator
            self._numpy_state = state if state["has_gauss"] else None

    def load(self) -> None:
        """Make the state of this rank that of the process."""
        if torch.get_default_dtype() is not self._dtype:
            torch.set_default_dtype(self._dtype)
        torch.default_generator.set_state(self._torch)
        random.setstate(self._python)
        self._python_bytes = _python_bytes()
        _numpy_random.set_bit_generator(self._numpy)
        # Beside the generator numpy keeps half of a pair of normal numbers.
        if self._numpy_state is not None:
            np.random.set_state(self._numpy_state)
        self._numpy_bytes = _numpy_bytes(self._numpy)
        for name, value in self._variables.items():
            _set_variable(name, value)


class _Seeds(np.random.bit_generator.ISeedSequence):
    """The words of one seed for numpy's generator, computed once: it takes 100 us."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """The first words of the sequence of this seed."""
        return _seed_words(self._seed, n_words, dtype)


@cache
def _seed_words(seed: int, num_words: int, dtype: Any) -> Any:
    return np.random.SeedSequence(seed).generate_state(num_words, dtype)


def _python_bytes() -> bytes:
    """Python's shared generator as it lies in memory; b"" if that is not all of it."""
    generator: Any = random._inst  # type: ignore[attr-defined]
    if generator.gauss_next is not None:
        return b""
    return ctypes.string_at(id(generator) + _RANDOM_HEADER_BYTES, _RANDOM_BYTES)


def _numpy_bytes(generator: Any) -> bytes:
    """The shared generator of numpy as it lies in memory; b"" if of another kind."""
    if type(generator) is not np.random.MT19937:
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
