"""The one place that puts the recording group under torch.distributed.

After `install`, a rank calls `dist.init_process_group`, `dist.new_group`, DeviceMesh or
DDP as in any script, and every group that comes of it is a RecordingGroup. Learners
still read "gloo" or "nccl" from `dist.get_backend()`.

[Note: private names] Two functions of torch.distributed.distributed_c10d are wrapped:
`_new_process_group_helper` (makes every group) and `_new_group_with_tag` (what
`new_group` and DeviceMesh call, with the store barrier that a missing rank would hang).
Both names hold from torch 2.11 to 2.14; tests/comm/groups/test_recording.py fails the
day one does not. Torch has no public place to do this, so pyright lets them pass here.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from labkit.comm.groups.board import Board
from labkit.comm.groups.recording import Hooks, RecordingGroup
from labkit.record.recorder import Recorder
from labkit.record.site import calling_site

NAME = "labkit"
# Hangs are explained by the diagnosis; a backend's own time-out would only race it.
FOREVER = timedelta(days=10)
_REAL = frozenset({"gloo", "nccl", NAME})

InnerFactory = Callable[[Any], dist.ProcessGroup]


@dataclass(frozen=True)
class Under:
    """What lies under one rank's recording groups."""

    name: str
    make_inner: InnerFactory
    recorder: Recorder
    hooks: Hooks = field(default_factory=Hooks)
    rendezvous: bool = False
    board: Board | None = None
    futures_tell: bool = False


_process_under: Under | None = None
_thread_under = threading.local()


def install(under: Under, *, this_thread_only: bool = False) -> None:
    """Put `under` below every group that this process (or thread) makes from now on."""
    global _process_under
    _wrap_torch()
    if this_thread_only:
        _thread_under.value = under
    else:
        _process_under = under


def found() -> Under | None:
    """What lies under the calling rank's groups; None where there is no rank."""
    return getattr(_thread_under, "value", None) or _process_under


def current() -> Under:
    """What lies under the calling rank's groups."""
    under = found()
    assert under is not None, "install() comes first"
    return under


def gloo(options: Any) -> dist.ProcessGroup:
    """A plain gloo group, on the store that torch hands to a backend."""
    return _plain(options, {"cpu": "gloo", "cuda": "gloo"})


def nccl(options: Any) -> dist.ProcessGroup:
    """NCCL for CUDA tensors beside gloo for CPU tensors."""
    return _plain(options, {"cpu": "gloo", "cuda": "nccl"})


def _plain(options: Any, backend_of_device: dict[str, str]) -> dist.ProcessGroup:
    """A process group with one backend for each kind of device."""
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    made: dict[str, Any] = {}
    for device, name in backend_of_device.items():
        if device == "cuda" and not torch.cuda.is_available():
            continue
        if name not in made:
            made[name] = _backend(name, options)
        kind = getattr(dist.ProcessGroup.BackendType, name.upper())
        group._register_backend(torch.device(device), kind, made[name])
        group._set_default_backend(kind)
    return group


def _backend(name: str, options: Any) -> Any:
    store = dist.PrefixStore(name, options.store)
    if name == "gloo":
        return dist.ProcessGroupGloo(
            store, options.group_rank, options.group_size, timeout=FOREVER
        )
    settings = dist.ProcessGroupNCCL.Options()
    settings._timeout = FOREVER
    return dist.ProcessGroupNCCL(
        store, options.group_rank, options.group_size, settings
    )


def _create(options: Any, backend_options: Any) -> RecordingGroup:
    under = current()
    inner = under.make_inner(options)
    # gloo's sends wait for their receives by themselves, and so do those of threads
    # when asked to; NCCL's may end in a buffer.
    needs_tokens = under.rendezvous and under.name == "nccl"
    ready = gloo(_Beside(options)) if needs_tokens else None
    group = RecordingGroup(
        inner,
        uid=options.group_id,
        ranks=options.global_ranks_in_group or range(options.group_size),
        recorder=under.recorder,
        hooks=under.hooks,
        board=under.board,
        ready=ready,
        futures_tell=under.futures_tell,
    )
    _lend_backends(group, inner)
    return group


def _lend_backends(group: dist.ProcessGroup, inner: dist.ProcessGroup) -> None:
    """Let calls that `group` does not override fall through to the inner backends."""
    for device in inner._device_types:
        backend = inner._get_backend(device)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._register_backend(device, kind, backend)
        group._set_default_backend(kind)


class _Beside:
    """The options of a second group over the same ranks, for rendezvous tokens."""

    def __init__(self, options: Any) -> None:
        self.store = dist.PrefixStore("ready", options.store)
        self.group_rank = options.group_rank
        self.group_size = options.group_size


def _wrap_torch() -> None:
    """Register the backend and wrap the two functions, once a process."""
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(
        NAME, _create, extended_api=True, devices=["cpu", "cuda"]
    )
    c10d._new_process_group_helper = _recording_maker(c10d._new_process_group_helper)
    c10d._new_group_with_tag = _recorded_new_group(c10d._new_group_with_tag)


def _recording_maker(make_group: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's maker of every group, which then makes RecordingGroups."""

    @wraps(make_group)
    def make_recorded(
        group_size: int,
        group_rank: int,
        ranks: Any,
        backend: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        is_ours = str(backend or "").lower() in {"", "undefined", *_REAL}
        if found() is None or not is_ours:
            return make_group(group_size, group_rank, ranks, backend, *args, **kw)
        made = make_group(
            group_size, group_rank, ranks, dist.Backend(NAME), *args, **kw
        )
        group, store = made
        if isinstance(group, dist.ProcessGroup):
            c10d._world.pg_map[group] = (dist.Backend(current().name), store)
        return made

    return make_recorded


def _recorded_new_group(new_group: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `new_group`, recorded with the wait for the ranks that must join in."""

    @wraps(new_group)
    def new_recorded(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if found() is None or kwargs.get("use_local_synchronization"):
            return new_group(ranks, *args, **kwargs)
        world = c10d._get_default_group()
        # torch sorts them, unless told not to.
        asked = tuple(range(world.size()) if ranks is None else sorted(ranks))
        recorder = current().recorder
        comm = recorder.comm(
            "new_group", world.group_name, shapes=(asked,), site=calling_site()
        )
        with recorder.waiting(comm.id, comm.issued_s):
            return new_group(ranks, *args, **kwargs)

    return new_recorded


def join_world(under: Under, rank: int, world_size: int, store: dist.Store) -> None:
    """Make the default group of the calling rank: all ranks must do so together.

    A script that calls `init_process_group` or `destroy_process_group` of its own, as
    torchrun scripts do, finds the world that is there, and leaves it there.
    """
    install(under)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.setdefault("LOCAL_RANK", str(rank))
    dist.init_process_group(
        NAME, store=store, rank=rank, world_size=world_size, timeout=FOREVER
    )
    _keep_world()


def _keep_world() -> None:
    destroy = dist.destroy_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        """Labkit has made the default group already: nothing is left to do."""

    def destroy_process_group(group: Any = None) -> None:
        """End a group; the default group stays, for the next cell."""
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    dist.init_process_group = c10d.init_process_group = init_process_group
    dist.destroy_process_group = c10d.destroy_process_group = destroy_process_group
