"""What a rank that is a thread waits for: works, futures, and its turn to run.

A rank holds the baton through its `Turn`. Each transfer that it begins gives it a
`ThreadWork`; to wait for one is to hand the baton on until the transfer has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups import isolation
from labkit.comm.groups.baton import Baton
from labkit.comm.groups.exchange import Transfer

NO_TIMEOUT = timedelta(0)
# A rank that only sends would otherwise never let anybody receive.
MAX_CALLS_A_TURN = 64


class Turn:
    """One rank's hold on the baton, shared by all its groups."""

    def __init__(self, baton: Baton, rank: int) -> None:
        self.rank = rank
        self.futures: list[ThreadWork] = []
        self._baton = baton
        self._num_calls = 0

    def issue(self) -> None:
        """The rank makes a call: after many in one turn, the others come first."""
        self._baton.acted(self.rank)
        self._num_calls += 1
        if self._num_calls > MAX_CALLS_A_TURN:
            self._num_calls = 0
            self._baton.give_way(self.rank)

    def wait(self, transfer: Transfer) -> None:
        """Stand still until `transfer` has ended. Raises Stalled if it never will."""
        if not transfer.done:
            self._num_calls = 0
            self._baton.wait(self.rank, transfer)
        self._settle()

    def poll(self, transfer: Transfer) -> bool:
        """Whether `transfer` has ended, once the others had the chance to end it."""
        done = self._baton.poll(self.rank, transfer)
        self._settle()
        return done

    def _settle(self) -> None:
        """Complete the futures that are due, in the thread that took them."""
        if self.futures:
            waiting, self.futures = self.futures, []
            self.futures += [work for work in waiting if not work.settle_future()]


class ThreadFuture(torch.futures.Future[Any]):
    """A work's future: waiting for it lets the other ranks run."""

    def __init__(self, work: ThreadWork) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> Any:
        """Stand still until the transfer has ended, and return its tensors."""
        self._work.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """A future of what `callback` makes of this one."""
        child = ThreadFuture(self._work)

        def call(done: Any) -> None:
            try:
                child.set_result(callback(done))
            except Exception as error:
                child.set_exception(error)

        self.add_done_callback(call)
        return child


class ThreadWork(dist.Work):
    """A transfer of one rank: what it may wait for, and the tensors that come of it."""

    def __init__(
        self, turn: Turn, transfer: Transfer, outputs: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()
        self._turn = turn
        self._transfer = transfer
        self._outputs = outputs
        self._future: ThreadFuture | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Let the others run until the transfer has ended; no `timeout` is needed."""
        self._turn.wait(self._transfer)
        self._transfer.result()
        return True

    def is_completed(self) -> bool:
        """Whether the transfer has ended, once the others had the chance to end it."""
        return self._turn.poll(self._transfer)

    def is_success(self) -> bool:
        """Whether the transfer has ended well."""
        return self._transfer.done and self._transfer.error is None

    def exception(self) -> Exception | None:
        """What went wrong, if anything did."""
        return self._transfer.error

    def synchronize(self) -> None:
        """The same as `wait`: there is no stream."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`: there is no stream."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors that were written."""
        return list(self._outputs)

    def source_rank(self) -> int:
        """The sender's rank in the group once a message has come, else -1."""
        return self._transfer.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the tensors.

        DDP takes it inside a backward pass and waits in C++, where no other rank could
        take the baton: so there, this waits first.
        """
        if self._future is None:
            self._future = ThreadFuture(self)
            self._turn.futures.append(self)
        if isolation.in_backward():
            self._turn.wait(self._transfer)
        else:
            self._turn.poll(self._transfer)
        return self._future

    def settle_future(self) -> bool:
        """Complete the future if the transfer has ended; says whether it has."""
        assert self._future is not None
        if self._transfer.error is not None:
            self._future.set_exception(self._transfer.error)
        elif self._transfer.done:
            self._future.set_result(self.result())
        return self._transfer.done


class JoinedWork(dist.Work):
    """Several works that are waited for together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = tuple(works)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for every one."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether every one has ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether every one has ended well."""
        return all(work.is_success() for work in self._works)
