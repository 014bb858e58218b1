"""A function at its real size on fake tensors: every cost, no data, no other rank.

Fake tensors have shapes and types and no memory, so that a step of a model of billions
of parameters runs in seconds. What depends on values cannot run: it is refused, with
the learner's line.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch._subclasses import fake_tensor

from labkit.comm.groups import fake
from labkit.errors import UsageError
from labkit.record.operations import recorded
from labkit.record.recorder import Recorder
from labkit.record.reduce import RankLog
from labkit.record.site import calling_site_of
from labkit.runtime.rank import namespace, travel
from labkit.runtime.rank.functional import FunctionalTransfers, UnissuedError
from labkit.runtime.rank.meshes import real_meshes

MAX_EVENTS = 5_000_000
# What torch raises where a fake tensor's value, or how many values it has, is needed.
_NEEDS_DATA = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
)
# What is said where its data is: by torch's C++, by `format`, by pickle.
_SAYS_FAKE: dict[type[Exception], tuple[str, ...]] = {
    RuntimeError: (
        "FakeTensor", "fake tensor", "for tensor subclasses",
        "data is not allocated yet",
    ),
    TypeError: ("FakeTensor.__format__",),
    AttributeError: ("WeakValueDictionary",),
}  # fmt: skip


class DryRefused(UsageError):
    """The function cannot run on fake tensors."""


def record_ranks(body: bytes, world_size: int, ranks: Sequence[int]) -> list[RankLog]:
    """Run a pickled call as each of `ranks` of a world, one after another."""
    return [_in_thread(partial(_record, body, world_size, rank)) for rank in ranks]


def _in_thread(run: Any) -> Any:
    """Run where nothing of this rank's own world is found; pass on what it raises."""
    outcome: list[Any] = []

    def live() -> None:
        try:
            outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _record(body: bytes, world_size: int, rank: int) -> RankLog:
    namespace.enter(namespace.create(rank, world_size))
    function, args, kwargs = travel.loads(body)
    recorder = Recorder(rank, backend="nccl", max_pending=MAX_EVENTS)
    name = getattr(function, "__name__", "function")
    with (
        fake.world(rank, world_size, recorder),
        _refused(name),
        _fake_mode(),
        real_meshes(),
        FunctionalTransfers(),
        recorded(recorder),
        recorder.span(f"{name}()"),
    ):
        function(*args, **kwargs)
    return RankLog(
        rank, recorder.drain(), dict(recorder.groups), recorder.counters.rows()
    )


def _fake_mode() -> fake_tensor.FakeTensorMode:
    """Fake tensors that can change their type in place, as `module.to(...)` does.

    torch remembers each result by the meta tensor that it was computed with, weakly,
    though no one will ask again; and refuses to swap a tensor that is weakly known.
    """
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    converter: Any = mode.fake_tensor_converter
    remember = converter.set_tensor_memo

    def remember_real(tensor: Tensor, made: Tensor) -> None:
        if tensor.device.type != "meta":
            remember(tensor, made)

    converter.set_tensor_memo = remember_real
    return mode


@contextmanager
def _refused(name: str) -> Generator[None]:
    """Say in the learner's words that a value was needed."""
    try:
        yield
    except _NEEDS_DATA as error:
        raise DryRefused(
            _why(name, error, f"needs a value ({_asked(error)})")
        ) from None
    except UnissuedError as error:
        raise DryRefused(_why(name, error, str(error))) from None
    except tuple(_SAYS_FAKE) as error:
        if not _is_about_fakes(error):
            raise
        raise DryRefused(_why(name, error, "needs the data of a tensor")) from None


def _is_about_fakes(error: Exception) -> bool:
    return any(
        isinstance(error, kind) and word in str(error)
        for kind, words in _SAYS_FAKE.items()
        for word in words
    )


def _asked(error: BaseException) -> str:
    """The operator that asked for a value: `x.item()` is aten._local_scalar_dense."""
    return str(getattr(error, "func", None) or type(error).__name__)


def _why(name: str, error: BaseException, what: str) -> str:
    site = calling_site_of(error.__traceback__)
    line = f"line {site.line} of {site.function}" if site else name
    return (
        f"a dry run has shapes and no values; {line} {what}. Leave out of "
        f"{name} what depends on values (printing a loss, .item(), masks that choose "
        "rows, lengths exchanged between ranks), or record a real run of a small size"
    )
