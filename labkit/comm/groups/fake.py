"""A world of which one rank is real: its transfers are recorded, and move nothing.

For dry runs: on fake tensors there is nothing to move, only to count. So a rank of a
world of thousands runs alone, in one thread, and its record is that of the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm.groups import backend, isolation
from labkit.comm.groups.recording import METHODS
from labkit.errors import UsageError
from labkit.record import recorder as recording
from labkit.record.recorder import Recorder

NO_TIMEOUT = timedelta(0)


class DoneWork(dist.Work):
    """A transfer that has ended as soon as it is issued."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """There is nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def get_future(self) -> Any:
        """A future that is done."""
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


class FakeGroup(dist.ProcessGroup):
    """The inner group of one rank in a world of fakes."""

    def __init__(self, rank: int, size: int) -> None:
        # torch's stub lacks this one of the two constructors.
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        isolation.hold_name(self)

    def _start_coalescing(self, device: torch.device) -> None:
        """Transfers are issued as one: all the same here."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return DoneWork()


# Of each method, the argument that holds a tensor for each rank.
_PIECES = {
    "allgather": 0, "reduce_scatter": 1, "gather": 0, "scatter": 1, "alltoall": 1,
}  # fmt: skip


def _check_pieces(method: str, args: Sequence[Any], size: int, rank: int) -> None:
    """Hold what a backend would: nobody else is here to notice."""
    given = args[_PIECES[method]]
    lists = [given] if method == "alltoall" else given
    for pieces in lists:
        if len(pieces) != size:
            raise UsageError(
                f"{method} takes a tensor for each rank of its group, {size}; rank "
                f"{rank} gave {len(pieces)}. Make them in a list over range(world_size)"
            )


def _done(method: str) -> Callable[..., dist.Work]:
    def issue(self: FakeGroup, *args: Any, **kwargs: Any) -> dist.Work:
        if method in _PIECES:
            _check_pieces(method, args, self.size(), self.rank())
        return DoneWork()

    issue.__name__ = method
    issue.__doc__ = "Nothing moves."
    return issue


for _method in METHODS:
    if hasattr(dist.ProcessGroup, _method):
        setattr(FakeGroup, _method, _done(_method))


@contextmanager
def world(rank: int, world_size: int, recorder: Recorder) -> Generator[None]:
    """Make the calling thread rank `rank` of a world that has no other rank."""
    under = backend.Under(
        # Programs read this from get_backend().
        name="gloo",
        make_inner=lambda options: FakeGroup(options.group_rank, options.group_size),
        recorder=recorder,
    )
    with isolation.Worlds(world_size).entered(), isolation.own_backward():
        backend.install(under, this_thread_only=True)
        recording.install(recorder, this_thread_only=True)
        dist.init_process_group(
            backend.NAME,
            store=dist.HashStore(),
            rank=rank,
            world_size=world_size,
            timeout=backend.FOREVER,
        )
        try:
            yield
        finally:
            isolation.destroy_world()
