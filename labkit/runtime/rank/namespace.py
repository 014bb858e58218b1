"""The variables of a rank: its `__main__`, kept from run to run.

What a notebook function reads and writes as globals, and what a `%%ranks` cell assigns,
lives here. Ranks that are threads of one process have one namespace each.
"""

from __future__ import annotations

import builtins
import sys
import threading
import types
from typing import Any

import torch
import torch.distributed as dist

_thread = threading.local()


def create(rank: int, world_size: int) -> types.ModuleType:
    """A namespace with the names that every cell wants."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __builtins__=builtins, rank=rank, world_size=world_size, torch=torch, dist=dist
    )
    return module


def enter(module: types.ModuleType, *, whole_process: bool = False) -> None:
    """Make a namespace that of the calling thread, or of the process."""
    if whole_process:
        sys.modules["__main__"] = module
    else:
        _thread.module = module


def current() -> dict[str, Any]:
    """The calling rank's variables."""
    module = getattr(_thread, "module", None) or sys.modules["__main__"]
    return module.__dict__


_GIVEN = frozenset({"rank", "world_size"})
_CODE = (types.ModuleType, types.FunctionType, type)


def variables() -> tuple[str, ...]:
    """The names of the learner's data there; code comes anew with each run."""
    found: list[tuple[Any, Any]] = list(current().items())
    return tuple(
        name
        for name, value in found
        if isinstance(name, str)
        and not name.startswith("_")
        and name not in _GIVEN
        and not isinstance(value, _CODE)
    )
