"""Records every operation of a rank: the level "work".

A dispatch mode sees each operation below autograd, forward and backward alike, with its
real arguments; on fake tensors too. What it records holds at any speed: names, FLOPs,
bytes, storages, who touched what. Its times do not: it slows a program down.

    operation ──> Operation (costs) ──> Work
              ├─> StorageMade, StorageGone ──> Alloc, Free
              ├─> ValueRead, where the host needs the value ──> HostRead
              └─> Touch, RaceSeen, where it uses a transfer's buffer ──> Wait, Race

Not seen: operations of threads that the learner starts, and what numpy does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.record import costs, recorder
from labkit.record.events import CommStart, Operation, ValueRead
from labkit.record.holders import Holders
from labkit.record.recorder import Recorder
from labkit.record.site import calling_site
from labkit.record.storages import Storages
from labkit.record.touches import Touches

# Transfers are recorded where they are issued; to ask a tensor for its device, or to
# open a profiler's range, is no work.
_NO_WORK = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim"}
)
_HOST_READS = frozenset({"tolist", "numpy", "__array__"})
_TO_HOST = frozenset({"cpu", "to"})


class Observer:
    """Sees what one rank does while a run is recorded at level "work"."""

    def __init__(self, mine: Recorder) -> None:
        self._recorder = mine
        self.storages = Storages(mine)
        self.touches = Touches(mine)

    def buffers(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The storages of a transfer's tensors."""
        return tuple(dict.fromkeys(map(self.storages.number, tensors)))

    def issued(self, comm: CommStart) -> None:
        """A transfer was issued."""
        self.touches.issued(comm)

    def waited(self, comm_id: int) -> None:
        """The program has waited for a transfer."""
        self.touches.waited(comm_id)

    def future_taken(self, comm_id: int) -> None:
        """Somebody took a transfer's future."""
        self.touches.future_taken(comm_id)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size now."""
        self.storages.resized(storage)

    def read(self) -> None:
        """The host needs a value that the current stream computes."""
        mine = self._recorder
        mine.add(ValueRead(mine.lane(), mine.stream, calling_site()))

    def ran(
        self, function: Any, args: Any, kwargs: Any, result: Any, start_s: float
    ) -> None:
        """An operation ran."""
        mine, end_s = self._recorder, time.monotonic()
        made = [self.storages.number(t) for t in costs.tensors(result)]
        if function.namespace in _NO_WORK or function.is_view:
            return
        name = str(function.overloadpacket)
        if self.touches.any:
            self._touched(function, name, args, kwargs, made)
        mine.add(
            Operation(
                name,
                mine.lane(),
                mine.stream,
                *costs.cost(function, args, kwargs, result),
                None,
                start_s,
                end_s,
            )
        )

    def _touched(
        self, function: Any, name: str, args: Any, kwargs: Any, made: Sequence[int]
    ) -> None:
        """Arguments are read, or written where the operator's schema says so."""
        reads: list[int] = []
        writes = list(made)
        given = list(zip(function._schema.arguments, args, strict=False))
        given += [
            (a, kwargs[a.name]) for a in function._schema.arguments if a.name in kwargs
        ]
        for argument, value in given:
            is_written = (
                argument.alias_info is not None and argument.alias_info.is_write
            )
            numbers = [self.storages.number(t) for t in costs.tensors(value)]
            (writes if is_written else reads).extend(numbers)
        self.touches.operation(name, reads, writes)


class _Dispatch(TorchDispatchMode):
    """Sees operations below autograd."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        start_s = time.monotonic()
        if _needs_value(func, args):
            self._observer.read()
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._observer.ran(func, args, kwargs, result, start_s)
        return result


def _needs_value(function: Any, args: Any) -> bool:
    """Whether the host must know a value, or how many there are, to go on."""
    if torch.Tag.data_dependent_output in function.tags:
        return True
    if torch.Tag.dynamic_output_shape not in function.tags:
        return False
    # Indexing has the tag, and needs it for masks only.
    is_index = function.overloadpacket is torch.ops.aten.index
    masks = (torch.bool, torch.uint8)
    return not is_index or any(t.dtype in masks for t in costs.tensors(args[1:]))


class _Functions(TorchFunctionMode):
    """Sees the calls that bring values to the host without an operation."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        if name in _HOST_READS or (name in _TO_HOST and _moved_to_host(args, result)):
            self._observer.read()
        return result


def _moved_to_host(args: Any, result: Any) -> bool:
    """Whether `x.cpu()` or `x.to("cpu")` brought a GPU's values."""
    source = args[0] if args else None
    if not isinstance(source, Tensor) or not isinstance(result, Tensor):
        return False
    return source.device.type == "cuda" and result.device.type == "cpu"


@contextmanager
def recorded(mine: Recorder) -> Generator[None]:
    """Record every operation of the calling thread's rank.

    Python's collector of cycles frees tensors when it happens to run: here it runs
    before and after, so that two records of a program are equal.
    """
    _watch_torch()
    observer = Observer(mine)
    holders = Holders(observer.storages, lambda: recorder.current() is mine)
    with ExitStack() as stack:
        stack.callback(observer.storages.close)
        stack.callback(setattr, mine, "observer", None)
        stack.enter_context(holders.entered())
        stack.enter_context(_Functions(observer))
        stack.enter_context(_Dispatch(observer))
        mine.observer = observer
        stack.enter_context(_without_collector())
        yield


@contextmanager
def _without_collector() -> Generator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        if was_on:
            gc.enable()


@cache
def _watch_torch() -> None:
    """Wrap, once a process, two things that no mode sees: for the calling rank.

    What FSDP2 frees, it resizes to nothing. And it orders its work by streams.
    """
    storages: Any = torch.UntypedStorage
    resize = storages.resize_
    streams: Any = torch.cpu.Stream
    make_stream = streams.__init__

    @wraps(resize)
    def resize_and_tell(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        observer = recorder.current().observer
        if observer is not None:
            observer.resized(storage)
        return result

    @wraps(make_stream)
    def make_stream_and_tell(self: Any, *args: Any, **kwargs: Any) -> None:
        make_stream(self, *args, **kwargs)
        recorder.current().caveat(
            "streams", "torch's streams order the work, and are nothing on a CPU",
            calling_site(),
        )  # fmt: skip

    storages.resize_ = resize_and_tell
    streams.__init__ = make_stream_and_tell


def warm_up() -> None:
    """Have the calling process import now what the first record of operations needs.

    The first operation under any dispatch mode imports sympy: a second, which is not
    the program's.
    """
    with recorded(Recorder()):
        torch.ones(2, 2, requires_grad=True).mm(torch.ones(2, 2)).sum().backward()
