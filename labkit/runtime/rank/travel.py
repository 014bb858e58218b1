"""How objects travel between the notebook and its ranks: by value.

cloudpickle carries functions and classes of the notebook. Three things are done beside
it: code keeps the file name of its cell, so that a traceback shows the line; a notebook
function finds the rank's own variables as its globals; and tensors go as raw bytes.

cloudpickle's way with code and torch's untyped storages are private to them, and there
is no public way to the same: pyright lets their names pass here.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, cast

import cloudpickle
import torch
from cloudpickle.cloudpickle import _code_reduce

from labkit.errors import TravelError
from labkit.runtime.rank import namespace
from labkit.units import format_bytes

MAX_BYTES = 1 << 30
TRAVELS = "it travels"


class TooLarge(TravelError):
    """More bytes than may travel."""


class _BoundedWriter(io.BytesIO):
    """A buffer that refuses to grow beyond a bound, before the memory is taken."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any, /) -> int:
        size = self.tell() + memoryview(data).nbytes
        if size > self._max_bytes:
            raise TooLarge(
                f"what travels must be at most {format_bytes(self._max_bytes)}; this "
                f"is {format_bytes(size)} or more"
            )
        return super().write(data)


class _RankVariables(dict[str, Any]):
    """Stands for the notebook's globals on the way to a rank."""


def _rebuild_storage(data: bytearray, device: str) -> torch.UntypedStorage:
    if not len(data):
        storage = torch.UntypedStorage(0)
    else:
        storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    on_gpu = device == "cuda" and torch.cuda.is_available()
    return cast("torch.UntypedStorage", storage.cuda()) if on_gpu else storage


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """The raw bytes: a writable buffer, so it arrives as a bytearray, used in place."""
    view: Any = torch.tensor([], dtype=torch.uint8).set_(storage.cpu()).numpy()
    return _rebuild_storage, (pickle.PickleBuffer(view), storage.device.type)


def _retype_storage(
    untyped: torch.UntypedStorage, dtype: torch.dtype
) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with the three changes of this module's docstring."""

    def __init__(self, file: io.BytesIO, *, to_rank: bool) -> None:
        super().__init__(file, protocol=5)
        self.filenames: set[str] = set()
        main = sys.modules.get("__main__")
        if to_rank and main is not None:
            self.globals_ref[id(main.__dict__)] = _RankVariables()

    def reducer_override(self, obj: Any) -> Any:
        """Ask labkit's reducers first, then cloudpickle's."""
        if type(obj) is types.CodeType:
            self.filenames.add(obj.co_filename)
            make, args = _code_reduce(obj)
            named = tuple(
                obj.co_filename if arg == "<dynamic-code>" else arg for arg in args
            )
            return make, named
        if type(obj) is _RankVariables:
            return namespace.current, ()
        if type(obj) is types.ModuleType and obj.__name__ in sys.modules:
            return importlib.import_module, (obj.__name__,)
        if type(obj) is torch.storage.TypedStorage:
            return _retype_storage, (obj._untyped_storage, obj.dtype)
        if type(obj) is torch.UntypedStorage:
            return _reduce_storage(obj)
        if isinstance(obj, io.IOBase) and not isinstance(
            obj, (io.BytesIO, io.StringIO)
        ):
            raise TravelError("an open file belongs to the process that opened it")
        return super().reducer_override(obj)


def dumps(
    value: Any, *, to_rank: bool, max_bytes: int = MAX_BYTES
) -> tuple[bytes, set[str]]:
    """Pickle by value. Returns the bytes and the files whose code is inside.

    Raises TooLarge beyond `max_bytes`, and whatever the object's own pickling raises.
    """
    writer = _BoundedWriter(max_bytes)
    pickler = _Pickler(writer, to_rank=to_rank)
    pickler.dump(value)
    return writer.getvalue(), pickler.filenames


def dumps_result(value: Any) -> bytes:
    """Pickle what a rank's function returned. Raises TravelError, naming the part."""
    try:
        return dumps(value, to_rank=False)[0]
    except TooLarge as error:
        raise TravelError(
            f"what a function returns travels back to the notebook: {error}. Return "
            "less, or save it to a file on the rank"
        ) from None
    except Exception as error:
        part, reason = find_culprit("the result", value)
        reason = str(error) if reason == TRAVELS else reason
        raise TravelError(
            f"what a function returns travels back to the notebook by value; {part} "
            f"cannot: {reason}. Return what it is made from"
        ) from None


def loads(data: bytes) -> Any:
    """Rebuild what `dumps` pickled."""
    return pickle.loads(data)


def find_culprit(name: str, value: Any, depth: int = 4) -> tuple[str, str]:
    """The smallest part of `value` that cannot travel, and why: (path, reason)."""
    for part, inner in _parts(value):
        path = f"{name}{part}"
        reason = why_not(inner)
        if reason is not None:
            return find_culprit(path, inner, depth - 1) if depth else (path, reason)
    return name, why_not(value) or TRAVELS


def why_not(value: Any) -> str | None:
    """Why a value cannot travel; None when it can."""
    try:
        dumps(value, to_rank=True)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The pieces that an object is pickled from, with how each is reached from it."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, types.FunctionType):
        return function_parts(value)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, (type, types.ModuleType)):
        return [(f".{key}", item) for key, item in attributes.items()]
    return []


def function_parts(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a function takes along: the globals it names, its closure, its defaults."""
    if not isinstance(function, types.FunctionType):
        return []
    names = cloudpickle.cloudpickle._extract_code_globals(function.__code__)
    parts = [
        (f" -> {name}", function.__globals__[name])
        for name in names
        if name in function.__globals__
    ]
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=False
    ):
        try:
            parts.append((f" -> {name}", cell.cell_contents))
        except ValueError:
            continue
    parts += [(f" default {i}", v) for i, v in enumerate(function.__defaults__ or ())]
    return parts
