"""What `cluster.run` sends: checked, pickled once for all ranks, and named if big."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import psutil

from labkit.errors import TravelError, UsageError
from labkit.runtime import sources
from labkit.runtime.rank import travel
from labkit.units import format_bytes

WARN_BYTES = 50 << 20


@dataclass(frozen=True)
class Payload:
    """A pickled call, the cells that its code is from, and a warning if it is big."""

    body: bytes
    cells: dict[str, str]
    modules: dict[str, float]
    warning: str | None = None


def pack_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    num_ranks: int,
) -> Payload:
    """Pickle a call. Raises UsageError or TravelError, which name the part at fault."""
    check_function(function)
    parts = _named_parts(function, args, kwargs)
    return _pack((function, args, kwargs), parts, num_ranks)


def pack_cell(source: str, brought: dict[str, Any], num_ranks: int) -> Payload:
    """Pickle a cell's source, and the notebook's functions and classes it names."""
    return _pack((source, brought), list(brought.items()), num_ranks)


def check_function(function: Any) -> None:
    """Refuse what is not a plain function."""
    if not callable(function):
        raise UsageError(
            f"cluster.run needs a function to call on every rank; got {function!r}. "
            "Pass the function itself: cluster.run(train, 3), not cluster.run(train(3))"
        )
    for is_kind, kind, advice in _ODD_KINDS:
        if is_kind(function):
            name = getattr(function, "__name__", repr(function))
            raise UsageError(
                f"a rank calls a plain function and sends back what it returns; {name} "
                f"is {kind}. {advice}"
            )


_ODD_KINDS = (
    (inspect.isgeneratorfunction, "a generator function",
     "Return a list, or wrap it: lambda: list(it())"),
    (inspect.iscoroutinefunction, "a coroutine function",
     "Wrap it: lambda: asyncio.run(it())"),
    (inspect.isasyncgenfunction, "an asynchronous generator function",
     "Collect what it yields in a plain function"),
)  # fmt: skip


def _pack(value: Any, parts: list[tuple[str, Any]], num_ranks: int) -> Payload:
    limit = min(travel.MAX_BYTES, psutil.virtual_memory().available // (2 + num_ranks))
    modules = sources.local_modules()
    _carry_by_value(modules)
    try:
        body, filenames = travel.dumps(value, to_rank=True, max_bytes=limit)
    except travel.TooLarge as error:
        name, size = _largest(parts, limit)
        raise TravelError(
            f"what a run takes along must stay under {format_bytes(limit)}, since "
            f"every one of {num_ranks} ranks gets a copy; {name} alone is {size}. "
            "Build it on the ranks, inside the function, or load it there from a file"
        ) from error
    except Exception as error:
        path, reason = _culprit(parts, error)
        raise TravelError(
            f"everything that a function uses travels to the ranks by value; {path} "
            f"cannot travel: {reason}. Make it inside the function, or pass what it is "
            "made from"
        ) from error
    warning = _warning(parts, len(body), num_ranks) if len(body) > WARN_BYTES else None
    return Payload(body, sources.cells(filenames), modules, warning)


def _named_parts(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Everything that travels, each under the name that the learner knows it by."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    parts = [
        (f"argument {names[i]!r}" if i < len(names) else f"argument {i}", value)
        for i, value in enumerate(args)
    ]
    parts += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    inner = getattr(function, "__func__", function)
    parts += [
        (f"{part.removeprefix(' -> ')!r}, which {inner.__name__} uses", value)
        for part, value in travel.function_parts(inner)
    ]
    own = getattr(function, "__self__", None)
    if own is None or inspect.ismodule(own):
        return parts
    return [*parts, ("the object that the method belongs to", own)]


def _culprit(parts: list[tuple[str, Any]], error: Exception) -> tuple[str, str]:
    for name, value in parts:
        if travel.why_not(value) is not None:
            return travel.find_culprit(name, value)
    return "the call", str(error) or type(error).__name__


def _largest(parts: list[tuple[str, Any]], limit: int) -> tuple[str, str]:
    sizes = [(_size(value, limit), name) for name, value in parts]
    size, name = max(sizes, default=(0, "it"))
    if size > limit:
        return name, f"{format_bytes(limit)} or more"
    return name, format_bytes(size)


def _size(value: Any, limit: int) -> int:
    try:
        return len(travel.dumps(value, to_rank=True, max_bytes=limit)[0])
    except travel.TooLarge:
        return limit + 1
    except Exception:
        return 0


def _warning(parts: list[tuple[str, Any]], num_bytes: int, num_ranks: int) -> str:
    name, size = _largest(parts, travel.MAX_BYTES)
    return (
        f"{format_bytes(num_bytes)} travel to each of {num_ranks} ranks at every run; "
        f"the largest part is {name}, {size}. Build it on the ranks to save the trip"
    )


def _carry_by_value(modules: Iterable[str]) -> None:
    """Functions of the learner's own files travel as the kernel has them in memory."""
    registered = cloudpickle.list_registry_pickle_by_value()
    for name in modules:
        if name not in registered:
            cloudpickle.register_pickle_by_value(sys.modules[name])
