"""Ranks as threads of one process: cheap, and the same order every time.

`run_threads(4, body)` calls `body(rank)` on four threads that take turns under a baton
(baton.py), each with its own torch.distributed world and random state (isolation.py).
They exchange tensors in memory (exchange.py), through a `ThreadGroup` that stands where
gloo stands in a process, under the same RecordingGroup.

    dist.all_reduce ──> RecordingGroup ──> ThreadGroup ──> Room <── the other ranks
                                               │
                                               └──> Baton: wait, and let others run

What differs from processes: objects are shared between ranks if `body` shares them; a
rank communicates from its own thread only; sends end at once (gloo's small ones do), or
when received under `rendezvous=True`; a deadlock raises Stalled at once on every rank.
One set of ranks runs at a time in a process.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from labkit.comm.groups import backend, isolation
from labkit.comm.groups.baton import Baton, Stalled
from labkit.comm.groups.exchange import Founding, Room
from labkit.comm.groups.recording import Hooks
from labkit.comm.groups.thread_group import ThreadGroup
from labkit.comm.groups.thread_work import Turn
from labkit.errors import UsageError
from labkit.record import recorder as recording
from labkit.record.recorder import Recorder

__all__ = ["Outcome", "Stalled", "ThreadGroup", "ThreadRanks", "run_threads"]

T = TypeVar("T")

# Its functions have the default group of the moment for a default argument: imported
# now, that is none, and is looked up at each call; by a rank, it would be that rank's.
importlib.import_module("torch.distributed.nn.functional")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How `body` ended on one rank.

    `stalled` says that the rank waited for something that could not happen, whatever it
    made of the Stalled that it got.
    """

    rank: int
    value: T | None = None
    error: BaseException | None = None
    stalled: bool = False


class ThreadRanks:
    """Ranks that are threads of this process, kept from run to run with their groups.

    Args:
        world_size: How many ranks.
        recorders: One a rank: told of every transfer of the rank.
        hooks: One a rank, as for a RecordingGroup.
        rendezvous: Whether a send ends only once it is received.
    """

    def __init__(
        self,
        world_size: int,
        *,
        recorders: Sequence[Recorder],
        hooks: Sequence[Hooks] | None = None,
        rendezvous: bool = False,
    ) -> None:
        _check_sizes(world_size, recorders, hooks)
        self._ranks = tuple(range(world_size))
        self._recorders = recorders
        self._hooks = hooks or [Hooks()] * world_size
        self._rendezvous = rendezvous
        self._store = dist.HashStore()
        # While a rank asks for a key nobody else can run, so it will not come later.
        self._store.set_timeout(timedelta(seconds=1))
        self._worlds = isolation.Worlds(world_size)
        self._states = [isolation.ProcessState(rank) for rank in self._ranks]
        self._baton = Baton(world_size, self._switch)
        self._turns = [Turn(self._baton, rank) for rank in self._ranks]
        self._foundings: dict[str, Founding] = {}
        self._rooms: weakref.WeakSet[Room] = weakref.WeakSet()
        self._body: Callable[[int], Any] | None = None
        self._interrupted = False
        self._outcomes: dict[int, Outcome[Any]] = {}
        self._threads = [
            threading.Thread(
                target=self._live, args=(rank,), name=f"rank {rank}", daemon=True
            )
            for rank in self._ranks
        ]
        for thread in self._threads:
            thread.start()
        self._found_world()

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def at_rest(self) -> bool:
        """Whether the ranks can be used again: nothing stalled, nothing under way."""
        return not self._baton.stalled and all(room.at_rest for room in self._rooms)

    def has_stalled(self, rank: int) -> bool:
        """Whether a rank waits for what can never happen, or did in this run."""
        return self._baton.has_stalled(rank)

    def run(
        self, body: Callable[[int], T], ranks: Sequence[int] | None = None
    ) -> list[Outcome[T]]:
        """Call `body(rank)` on `ranks`, or all; returns when each has ended or stalled.

        Raises:
            UsageError: `ranks` is empty or names one that is not there, or an earlier
                run stalled.
        """
        chosen = self._ranks if ranks is None else tuple(ranks)
        self._check_runnable(chosen)
        return self._run(body, chosen)

    def close(self) -> None:
        """End the groups and the threads."""
        if self._interrupted or not self._threads:
            return
        self._run(lambda rank: isolation.destroy_world(), self._ranks)
        for rank, thread in enumerate(self._threads):
            self._baton.dismiss(rank)
            thread.join()
        self._threads.clear()

    def _run(self, body: Callable[[int], T], chosen: Sequence[int]) -> list[Outcome[T]]:
        self._body, self._outcomes = body, {}
        before = isolation.ProcessState.of_process()
        try:
            with self._worlds.entered():
                self._baton.run(chosen)
        except BaseException:
            self._interrupted = True
            raise
        finally:
            before.load()
            self._body = None
        return [self._outcomes[rank] for rank in chosen]

    def _live(self, rank: int) -> None:
        """The life of one rank's thread."""
        recorder = self._recorders[rank]
        recorder.adopt_thread()
        recording.install(recorder, this_thread_only=True)
        with isolation.own_backward():
            while True:
                self._baton.take(rank)
                if self._body is None:
                    return
                self._outcomes[rank] = self._call(rank)
                self._baton.leave(rank)

    def _call(self, rank: int) -> Outcome[Any]:
        assert self._body is not None
        value, error = None, None
        try:
            value = self._body(rank)
        except BaseException as raised:
            error = raised
        return Outcome(rank, value, error, self._baton.has_stalled(rank))

    def _switch(self, giver: int | None, taker: int | None) -> None:
        if giver is not None:
            self._states[giver].save()
        if taker is not None:
            self._states[taker].load()

    def _join(self, rank: int) -> None:
        """In the rank's thread: make its default group, together with every other."""
        under = backend.Under(
            # Programs read this from get_backend(), and must go the way that they go on
            # processes.
            name="gloo",
            make_inner=partial(self._make_group, rank),
            recorder=self._recorders[rank],
            hooks=self._hooks[rank],
        )
        backend.install(under, this_thread_only=True)
        dist.init_process_group(
            backend.NAME,
            store=self._store,
            rank=rank,
            world_size=len(self._ranks),
            timeout=backend.FOREVER,
        )

    def _found_world(self) -> None:
        joined = self._run(self._join, self._ranks)
        failed = [each.error for each in joined if each.error is not None]
        if failed:
            self.close()
            # The others only stalled because of the one that failed.
            raise min(failed, key=lambda error: isinstance(error, Stalled))

    def _make_group(self, rank: int, options: Any) -> ThreadGroup:
        """Become a member of a group: waits for the other members, as gloo does."""
        members = tuple(options.global_ranks_in_group) or self._ranks
        name = options.group_id
        founding = self._foundings.get(name)
        if founding is None:
            room = Room(members, rendezvous=self._rendezvous)
            self._rooms.add(room)
            founding = self._foundings[name] = Founding(room)
        founding.join(rank, members)
        if founding.done:
            self._foundings.pop(name, None)
        self._turns[rank].wait(founding)
        founding.result()
        return ThreadGroup(self._turns[rank], founding.room, options.group_rank)

    def _check_runnable(self, ranks: Sequence[int]) -> None:
        if not ranks or not set(ranks) <= set(self._ranks):
            raise UsageError(
                f"ranks is a choice of 0 to {len(self._ranks) - 1}; got "
                f"{list(ranks)}. Leave it out for all of them"
            )
        if self._body is not None:
            raise UsageError(
                "ranks run one body at a time; these are running another. Call what "
                "the second one does inside the first, or make new ranks"
            )
        if self._interrupted or self._baton.stalled or not self._threads:
            raise UsageError(
                "these ranks ran into a deadlock, were interrupted or were closed, and "
                "cannot run again. Make new ones"
            )


def run_threads(
    world_size: int,
    body: Callable[[int], T],
    *,
    recorders: Sequence[Recorder],
    hooks: Sequence[Hooks] | None = None,
    rendezvous: bool = False,
    ranks: Sequence[int] | None = None,
) -> list[Outcome[T]]:
    """Call `body(rank)` once on each rank of a world that is made for it.

    Args:
        world_size: How many ranks there are.
        body: Called with the rank, in the rank's thread.
        recorders: One a rank.
        hooks: One a rank, as for a RecordingGroup.
        rendezvous: Whether a send ends only once it is received.
        ranks: Call `body` on these only; the others never make a call.

    Returns:
        One Outcome for each rank that was called, in that order.
    """
    threads = ThreadRanks(
        world_size, recorders=recorders, hooks=hooks, rendezvous=rendezvous
    )
    with threads:
        return threads.run(body, ranks)


def _check_sizes(
    world_size: int, recorders: Sequence[Recorder], hooks: Sequence[Hooks] | None
) -> None:
    if world_size < 1:
        raise UsageError(f"there is at least 1 rank; got {world_size}. Use 1 or more")
    for name, given in (("recorders", recorders), ("hooks", hooks)):
        if given is not None and len(given) != world_size:
            raise UsageError(
                f"{name} holds one for each of the {world_size} ranks; got "
                f"{len(given)}. Give {world_size}"
            )
