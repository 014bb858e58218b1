"""Logical streams: one source for work that goes beside compute, on a CPU and a GPU.

A stream does what it is given, in order. What must come after work of another stream,
or after a transfer, waits for it; nothing else is ordered. On a GPU these are CUDA
streams and events, and the host only issues. On a CPU the host does everything itself:
only transfers go on beside it, so what follows one is put off until it is needed.

    side = Stream(device)                     # e.g. gathers, one layer ahead
    out = Stream(device)                      # what follows them
    with side:
        copy_in(shard, flat)
        work = dist.all_gather_single(full, flat, async_op=True)
    out.wait(work)
    out.run(copy_out, full, weights)          # on a CPU: not yet
    gathered = out.mark()
    ...                                       # compute of the layer before
    current(device).wait(gathered)            # on a CPU: waits, copies out

    compute  ████ layer 0 ████|wait|████ layer 1 ████
    side     ▐in                                        in ▌ issue of the transfer
    network     ▒▒▒▒ gather ▒▒▒▒
    out                        out

Both leave the same Marks and Waits, in the same order on each stream. A CPU's record
has besides when its host stood still.

[Note: two streams] `with side:` runs its block now. A CPU must first do what it has put
off on that stream, and so wait for its transfers. Give what follows a transfer a stream
of its own, and transfers are issued without waiting for earlier ones.

[Note: arguments] What is put off sees its arguments as they were, but the variables
around it as they have become: hand over what a function uses, `out.run(copy, x, y)`.

[Note: memory] torch gives the memory of a dropped tensor to the stream that allocated
it, whatever other streams still do with it. A tensor that another stream uses must be
held until it was waited for, or be told: `side.keep(x)`.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups.recording import RecordedWork
from labkit.errors import UsageError
from labkit.record import recorder
from labkit.record.events import ValueRead
from labkit.record.site import calling_site

Step = Callable[[], None]
Device = torch.device | str | None
COMPUTE = 0

_keys = itertools.count(COMPUTE + 1)


@dataclass(frozen=True, eq=False)
class Mark:
    """A point in a stream's work, reached when all before it is done.

    Made by `Stream.mark`, waited for by `Stream.wait`. `epoch` is the run that it is
    of; `point` is what its stream knows it by.
    """

    stream: Stream
    number: int
    epoch: object
    point: Any


class Stream:
    """Work that is done in order, beside the work of other streams.

    `Stream(device)` is a new one; `current(device)` the one whose work the program's
    next lines are. Streams are used by the thread that made them.

    This class is a CPU's. A step that would stand still is put off, with all that
    follows it. Points count the steps that were put off; 0 stands for one that was not.
    """

    def __new__(cls, device: Device = None, *, key: int | None = None) -> Stream:
        """A stream of the device's own kind."""
        return object.__new__(_kind(_device(device)))

    def __init__(self, device: Device = None, *, key: int | None = None) -> None:
        """Make a stream beside the one that computes.

        Args:
            device: Where its work runs; the GPU of this rank, else the CPU, if None.
            key: For labkit's own use: COMPUTE stands for the stream that computes.
        """
        self.device = _device(device)
        self._key = next(_keys) if key is None else key
        self._put_off: deque[Step] = deque()
        self._num_put_off = self._num_taken = 0
        self._is_settling = False

    @property
    def is_compute(self) -> bool:
        """Whether it is the stream that computes."""
        return self._key == COMPUTE

    @property
    def number(self) -> int:
        """Its number in the record of this run, 0 for the stream that computes."""
        if self.is_compute:
            return COMPUTE
        return recorder.current().stream_number(self._key)

    def __enter__(self) -> Stream:
        """The lines of the block are this stream's work: see [Note: two streams]."""
        self._settle()
        self._enter()
        return self

    def __exit__(self, *raised: object) -> None:
        entered = _here.of_this_run()
        if not entered or entered[-1][0] is not self:
            raise UsageError(
                "a stream is left by the thread that entered it, the innermost first; "
                f"{len(entered)} are entered here, and this one is not the last. Use "
                "it as `with stream:`"
            )
        outer = self._leave()
        if raised[0] is None:
            outer._settle()

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` as the stream's next work: see [Note: arguments].

        On a CPU, where the stream waits for a transfer, it is called later: when
        another stream waits for a mark behind it. What it returns is dropped, and it
        gives no work to other streams.
        """

        def call() -> None:
            function(*args)

        self._give(call)

    def mark(self) -> Mark:
        """A mark behind all that the stream was given so far."""
        mine = recorder.current()
        number = mine.new_mark()
        point = self._give(lambda: mine.stream_mark(number, self.number))
        return Mark(self, number, mine.epoch, point)

    def wait(self, target: Mark | dist.Work | None) -> None:
        """What the stream is given from now on comes after `target`.

        Args:
            target: A mark of another stream, or a transfer that was issued with
                `async_op=True`.

        Raises:
            UsageError: `target` is neither, or a mark of another kind of device.
        """
        if isinstance(target, dist.Work):
            self._wait_for_work(target)
            return
        if not isinstance(target, Mark):
            raise UsageError(
                "a stream waits for a mark or for a transfer under way; got "
                f"{target!r}. Issue the transfer with async_op=True, on a rank that is "
                "a member of its group"
            )
        if target.stream.device.type != self.device.type:
            raise UsageError(
                f"a stream waits for marks of its own kind of device, "
                f"{self.device.type}; got one of {target.stream.device.type}. Let the "
                "host wait for it: stream.synchronize()"
            )
        self._wait_for_mark(target)

    def keep(self, *tensors: Tensor) -> None:
        """Hold the memory of `tensors` until what was given is done: [Note: memory].

        A CPU's memory is held by whoever has a name for it: there is nothing to do.
        """

    def synchronize(self) -> None:
        """Let the host stand still until all that was given is done."""
        self._settle()
        mine = recorder.current()
        mine.add(ValueRead(mine.lane(), self.number, calling_site()))

    def _give(self, step: Step, *, stands_still: bool = False) -> Any:
        """Do a step behind all that was given; returns the point behind it."""
        if self is current(self.device):
            step()
            return 0
        if not self._put_off and not stands_still:
            self._do(step)
            return 0
        self._put_off.append(step)
        self._num_put_off += 1
        return self._num_put_off

    def _settle(self, point: int | None = None) -> None:
        """Do what was put off before a point, or all of it.

        A step that asks for it itself has its place: what follows it comes later.
        """
        if self._is_settling:
            return
        self._is_settling = True
        try:
            upto = self._num_put_off if point is None else point
            while self._num_taken < upto:
                self._num_taken += 1
                self._do(self._put_off.popleft())
        finally:
            self._is_settling = False

    def _do(self, step: Step) -> None:
        """Do a step as this stream's work."""
        self._enter()
        try:
            step()
        finally:
            self._leave()

    def _wait_for_mark(self, mark: Mark) -> None:
        source = mark.stream

        def stand_still() -> None:
            source._settle(mark.point)
            self._tell_wait_for_mark(mark)

        self._give(stand_still, stands_still=source._num_taken < mark.point)

    def _wait_for_work(self, work: dist.Work) -> None:
        def stand_still() -> None:
            self._tell_wait_for_work(work)
            work.wait()

        self._give(stand_still, stands_still=True)

    def _tell_wait_for_mark(self, mark: Mark) -> None:
        """A mark of an earlier run is in that run's record, not in this one's."""
        mine = recorder.current()
        if mark.epoch is mine.epoch:
            mine.stream_wait(self.number, mark.number)

    def _tell_wait_for_work(self, work: dist.Work) -> None:
        if isinstance(work, RecordedWork):
            recorder.current().stream_wait(self.number, work.comm_id, "wait")

    def _inside(self) -> AbstractContextManager[object]:
        """What torch enters while lines are this stream's."""
        return nullcontext()

    def _enter(self) -> None:
        context = self._inside()
        context.__enter__()
        _here.of_this_run().append((self, context))
        recorder.current().stream = self.number

    def _leave(self) -> Stream:
        """The lines are an outer stream's again: returns that."""
        _, context = _here.entered.pop()
        context.__exit__(None, None, None)
        outer = current(self.device)
        recorder.current().stream = outer.number
        return outer


def _kind(device: torch.device) -> type[Stream]:
    if device.type != "cuda":
        return Stream
    # A GPU's stream is a Stream itself, so its module imports this one.
    from labkit.comm.cuda_stream import CudaStream

    return CudaStream


class _Here(threading.local):
    """The streams that a thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[tuple[Stream, AbstractContextManager[object]]] = []
        self.epoch: object = None
        self.computing: tuple[object, Stream] | None = None

    def of_this_run(self) -> list[tuple[Stream, AbstractContextManager[object]]]:
        """Those entered in this run: what an earlier one never left, it leaves."""
        epoch = recorder.current().epoch
        if self.epoch is not epoch:
            self.epoch = epoch
            while self.entered:
                self.entered.pop()[1].__exit__(None, None, None)
        return self.entered


_here = _Here()


def current(device: Device = None) -> Stream:
    """The stream whose work the next lines are: the one that computes, if none other.

    Args:
        device: Whose streams; those of this rank's GPU, else of the CPU, if None.
    """
    asked = _device(device)
    for stream, _ in reversed(_here.of_this_run()):
        if stream.device == asked:
            return stream
    if asked.type == "cuda":
        return Stream(asked, key=COMPUTE)
    epoch = recorder.current().epoch
    if _here.computing is None or _here.computing[0] is not epoch:
        _here.computing = epoch, Stream(asked, key=COMPUTE)
    return _here.computing[1]


def _device(device: Device) -> torch.device:
    """The device, with its index. Without a GPU, only fake tensors are on one."""
    asked = torch.device("cuda" if device is None else device)
    if asked.type != "cuda" or not torch.cuda.is_available():
        return torch.device("cpu")
    # torch's stub forgets that there may be no index.
    if asked.index is None:  # pyright: ignore[reportUnnecessaryComparison]
        return torch.device("cuda", torch.cuda.current_device())
    return asked
