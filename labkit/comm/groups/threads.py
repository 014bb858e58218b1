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

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups import backend, isolation
from labkit.comm.groups.baton import Baton, Stalled
from labkit.comm.groups.exchange import (
    Founding,
    Part,
    Room,
    Transfer,
    check_movable,
    check_op,
)
from labkit.comm.groups.recording import Hooks
from labkit.errors import UsageError
from labkit.record import recorder as recording
from labkit.record.events import Kind
from labkit.record.recorder import Recorder

__all__ = ["Outcome", "Stalled", "ThreadGroup", "ThreadRanks", "run_threads"]

T = TypeVar("T")
NO_TIMEOUT = timedelta(0)
# A rank that only sends would otherwise never let anybody receive.
MAX_CALLS_A_TURN = 64


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
        """Complete the futures that are due, in the thread of the rank that took them."""
        if self.futures:
            waiting, self.futures = self.futures, []
            self.futures += [work for work in waiting if not work.settle_future()]


class ThreadGroup(dist.ProcessGroup):
    """A group of ranks that are threads, as one of them sees it.

    Takes the calls that a gloo group takes from Python and from torch's C++, under the
    names of torch 2.11 to 2.14, and refuses what gloo refuses.
    """

    def __init__(self, turn: Turn, room: Room, group_rank: int) -> None:
        super().__init__(group_rank, len(room.ranks))
        isolation.hold_name(self)
        self._turn = turn
        self._room = room
        self._me = group_rank
        self._size = len(room.ranks)
        self._coalesced: list[ThreadWork] | None = None

    def getBackendName(self) -> str:  # noqa: N802 (the name that C++ asks for)
        """The name of the backend."""
        return "threads"

    def _meet(self, part: Part) -> ThreadWork:
        if part.dtype is not None:
            check_movable(part.kind, part.dtype)
        if part.op is not None and part.dtype is not None:
            check_op(part.kind, part.op, part.dtype)
        self._turn.issue()
        meeting = self._room.meet(self._me, part)
        return self._begun(ThreadWork(self._turn, meeting, part.outputs))

    def _begun(self, work: ThreadWork) -> ThreadWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def allreduce(self, tensors: Any, *options: Any, **named: Any) -> ThreadWork:
        """Every rank gets the reduction of all ranks' tensors, in place."""
        both = _one_type("all_reduce", _listed(tensors))
        _, op = _read(*options, *named.values())
        return self._meet(
            Part("all_reduce", both, both, op=op, agree=both, dtype=both[0].dtype)
        )

    def reduce(self, tensors: Any, *options: Any, **named: Any) -> ThreadWork:
        """The root gets the reduction of all ranks' tensors, in place."""
        both = _listed(tensors)
        root, op = _read(*options, *named.values())
        return self._meet(Part("reduce", both, both, root, op, both, both[0].dtype))

    def broadcast(self, tensors: Any, *options: Any, **named: Any) -> ThreadWork:
        """Every rank gets the root's tensors."""
        both = _one_type("broadcast", _listed(tensors))
        root, _ = _read(*options, *named.values())
        return self._meet(
            Part("broadcast", both, both, root, agree=both, dtype=both[0].dtype)
        )

    def gather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> ThreadWork:
        """The root gets every rank's tensor, in rank order."""
        sent, wanted = _listed(inputs), _listed(outputs)
        root, _ = _read(*options, *named.values())
        if self._me == root:
            self._check_pieces("gather", wanted, sent[0])
        return self._meet(Part("gather", sent, wanted, root, None, sent, sent[0].dtype))

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> ThreadWork:
        """Each rank gets its tensor of the root's list."""
        sent, wanted = _listed(inputs), _listed(outputs)
        root, _ = _read(*options, *named.values())
        if self._me == root:
            self._check_pieces("scatter", sent, wanted[0])
        dtype = wanted[0].dtype
        return self._meet(Part("scatter", sent, wanted, root, None, wanted, dtype))

    def allgather(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> ThreadWork:
        """Every rank gets every rank's tensor, in rank order."""
        return self._all_gather(_listed(outputs), _listed(inputs))

    def all_gather_single(
        self, output: Tensor, input: Tensor, *_: Any, **__: Any
    ) -> ThreadWork:
        """Every rank gets every rank's tensor, joined along the first dimension."""
        return self._all_gather(self._rows("all_gather", output, input), (input,))

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any, **__: Any
    ) -> ThreadWork:
        """Several `all_gather_single` at once."""
        pieces = [
            piece
            for output, value in zip(outputs, inputs, strict=True)
            for piece in self._rows("all_gather", output, value)
        ]
        return self._all_gather(tuple(pieces), tuple(inputs))

    def _all_gather(
        self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]
    ) -> ThreadWork:
        for at, value in enumerate(inputs):
            pieces = outputs[at * self._size : (at + 1) * self._size]
            self._check_pieces("all_gather", pieces, value)
        dtype = _one_type("all_gather", inputs)[0].dtype
        return self._meet(
            Part("all_gather", inputs, outputs, agree=inputs, dtype=dtype)
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> ThreadWork:
        """Each rank gets the reduction of what all ranks have for it."""
        _, op = _read(*options, *named.values())
        return self._reduce_scatter(_listed(outputs), _listed(inputs), op)

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, *options: Any, **named: Any
    ) -> ThreadWork:
        """Each rank gets its rows of the reduction of all ranks' tensors."""
        _, op = _read(*options, *named.values())
        pieces = self._rows("reduce_scatter", input, output)
        return self._reduce_scatter((output,), pieces, op)

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        *options: Any,
        **named: Any,
    ) -> ThreadWork:
        """Several `reduce_scatter_single` at once."""
        _, op = _read(*options, *named.values())
        pieces = [
            piece
            for output, value in zip(outputs, inputs, strict=True)
            for piece in self._rows("reduce_scatter", value, output)
        ]
        return self._reduce_scatter(tuple(outputs), tuple(pieces), op)

    def _reduce_scatter(
        self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...], op: str
    ) -> ThreadWork:
        for at, output in enumerate(outputs):
            pieces = inputs[at * self._size : (at + 1) * self._size]
            self._check_pieces("reduce_scatter", pieces, output)
        dtype = _one_type("reduce_scatter", outputs)[0].dtype
        return self._meet(
            Part("reduce_scatter", inputs, outputs, None, op, outputs, dtype)
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        *_: Any,
        **__: Any,
    ) -> ThreadWork:
        """Each rank sends rows of its tensor to each, and gets rows from each."""
        for tensor in (output, input):
            if not tensor.is_contiguous():
                raise ValueError("Tensors must be contiguous")
        sent = self._split("sends", input, input_split_sizes)
        wanted = self._split("expects", output, output_split_sizes)
        return self.alltoall(wanted, sent)

    def alltoall(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> ThreadWork:
        """Each rank sends a tensor to each, and gets one from each."""
        sent, wanted = _listed(inputs), _listed(outputs)
        for tensors in (sent, wanted):
            self._check_count("all_to_all", tensors)
        dtype = _one_type("all_to_all", (*sent, *wanted))[0].dtype
        return self._meet(Part("all_to_all", sent, wanted, dtype=dtype))

    def barrier(self, *_: Any, **__: Any) -> ThreadWork:
        """Ends when every rank has called it."""
        return self._meet(Part("barrier"))

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """A barrier that waits at once; a missing rank is told as any deadlock is."""
        self.barrier().wait()

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> ThreadWork:
        """Send a copy of a tensor to member `to` of the group."""
        (tensor,) = tensors
        self._check_message(tensor, to, tag)
        self._turn.issue()
        transfer = self._room.send(self._me, to, tag, tensor)
        return self._begun(ThreadWork(self._turn, transfer, (tensor,)))

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> ThreadWork:
        """Receive the next message that member `source` sends with this tag."""
        (tensor,) = tensors
        self._check_message(tensor, source, tag)
        return self._receive(tensor, source, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> ThreadWork:
        """Receive the next message with this tag, whoever sends it."""
        (tensor,) = tensors
        self._check_message(tensor, 0, tag)
        return self._receive(tensor, None, tag)

    def _receive(self, tensor: Tensor, source: int | None, tag: int) -> ThreadWork:
        self._turn.issue()
        transfer = self._room.receive(self._me, source, tag, tensor)
        return self._begun(ThreadWork(self._turn, transfer, (tensor,)))

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """One work that stands for every one begun since `_start_coalescing`."""
        begun, self._coalesced = self._coalesced or [], None
        return JoinedWork(begun)

    # [Note: both names] of recording.py: the names before and after torch 2.13.
    allreduce_coalesced = allreduce
    allgather_coalesced = allgather
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        """Nothing is held that would have to be given back."""

    def abort(self) -> None:
        """Nothing is held that would have to be given back."""

    def _check_message(self, tensor: Tensor, peer: int, tag: int) -> None:
        if not tensor.is_contiguous():
            raise RuntimeError(
                "a message lies in memory without gaps; got strides "
                f"{tensor.stride()} for shape {tuple(tensor.shape)}: input tensor has "
                "to be contiguous. Use tensor.contiguous()"
            )
        if tag < 0:
            raise RuntimeError(f"Tag must be nonnegative; got {tag}. Use 0 or more")
        if not 0 <= peer < self._size:
            raise ValueError(
                f"a message goes to one of the {self._size} members of the group; got "
                f"{peer}. Use 0 to {self._size - 1}"
            )

    def _rows(self, kind: Kind, whole: Tensor, piece: Tensor) -> tuple[Tensor, ...]:
        """The piece of each rank in `whole`, which joins them along the first dimension."""
        expected = (piece.shape[0] * self._size, *piece.shape[1:]) if piece.dim() else ()
        if piece.dim() and whole.shape == expected:
            return whole.data.chunk(self._size) if piece.shape[0] else (whole,) * self._size
        raise RuntimeError(
            f"in {kind} the large tensor joins {self._size} small ones along the first "
            f"dimension; got {tuple(whole.shape)} and {tuple(piece.shape)}. Make the "
            f"large one {expected or (self._size,)}"
        )

    def _split(
        self, verb: str, tensor: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """The rows of an all_to_all for each rank, or from each."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not sizes and rows % self._size == 0:
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise RuntimeError(
                f"in all_to_all the rows that a rank {verb} add up to its tensor's: "
                f"Split sizes doesn't match total dim 0 size; got {list(sizes)} for "
                f"{rows} rows and {self._size} ranks. Give one size for each rank"
            )
        return tensor.data.split(list(sizes))

    def _check_count(self, kind: Kind, pieces: Sequence[Tensor]) -> None:
        if len(pieces) != self._size:
            raise RuntimeError(
                f"{kind} takes one tensor for each of the {self._size} ranks of the "
                f"group; got {len(pieces)}. Make the list as long as the group"
            )

    def _check_pieces(
        self, kind: Kind, pieces: Sequence[Tensor], like: Tensor
    ) -> None:
        """One piece for each rank, each as large as the tensor that it is for."""
        self._check_count(kind, pieces)
        for at, piece in enumerate(pieces):
            if piece.shape != like.shape or piece.dtype != like.dtype:
                raise RuntimeError(
                    f"in {kind} every piece has the shape and type of {like.dtype} "
                    f"{tuple(like.shape)}; piece {at} is {piece.dtype} "
                    f"{tuple(piece.shape)}. Make all pieces alike, or use all_to_all"
                )


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


def _listed(tensors: Any) -> tuple[Tensor, ...]:
    """Every tensor of a tensor, a list of tensors, or a list of lists."""
    if isinstance(tensors, Tensor):
        return (tensors,)
    return tuple(tensor for item in tensors for tensor in _listed(item))


def _read(*options: Any) -> tuple[int, str]:
    """Root and reduction, out of torch's option objects or given plainly."""
    root, op = 0, "SUM"
    for option in options:
        root = getattr(option, "rootRank", option if type(option) is int else root)
        reduction = getattr(option, "reduceOp", option)
        op = getattr(getattr(reduction, "op", reduction), "name", op)
    return root, op


def _one_type(kind: Kind, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors, if they may go together."""
    if not tensors or any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        found = sorted({str(tensor.dtype) for tensor in tensors})
        raise RuntimeError(
            f"in one {kind} tensors must all have the same type, and there is at least "
            f"one; got {found or 'none'}. Make a call for each type"
        )
    return tensors


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
        self._worlds = isolation.Worlds()
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
        self._run(self._join, self._ranks)

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def at_rest(self) -> bool:
        """Whether the ranks can be used again: nothing stalled, nothing is under way."""
        return not self._baton.stalled and all(room.at_rest for room in self._rooms)

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

    def _run(
        self, body: Callable[[int], T], chosen: Sequence[int]
    ) -> list[Outcome[T]]:
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
