"""A process group that records every transfer, then hands it to the real one.

`RecordingGroup` holds a normal process group (gloo, nccl or threads) and forwards to
it. It sees what learners call, and what DDP, FSDP2, DTensor and pipelining call from
C++. Before: the caller hands tensors to a collective. After: the same, and the rank's
recorder holds what was issued, from which line, and how long the rank stood still for
it.

    dist.all_reduce ──> RecordingGroup ──> inner group (gloo, nccl, threads)
                              │
                              └──> Recorder: CommStart, WaitStart, WaitEnd

[Note: both names] torch renamed some methods (`_allgather_base` became
`all_gather_single` in 2.13). Python code calls the name of its version; C++ looks for
the new one first, so each is overridden under both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups.board import Board
from labkit.errors import UsageError
from labkit.record.events import P2P, CommStart, Kind
from labkit.record.recorder import Observer, Recorder
from labkit.record.site import calling_site, is_called_from

NO_TIMEOUT = timedelta(0)
MAX_UNWAITED = 4096
# A thread of gloo holds a collective's tensors until shortly after its wait: without
# a pause for it, two records of the same program would tell of different memory.
LET_GO_S = 2e-4
# Where torch's blocking calls wait for the work that they have just issued.
_C10D = dist.distributed_c10d.__file__


class Call(NamedTuple):
    """What a collective was handed: what must agree between ranks, and its root."""

    tensors: tuple[Tensor, ...] = ()
    root: int | None = None
    tag: int = 0
    op: str | None = None
    send_splits: tuple[int, ...] | None = None
    recv_splits: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Hooks:
    """What a rank's host does around a transfer: slow a rank down, or make it fail."""

    before_issue: Callable[[Kind], None] | None = None
    after_wait: Callable[[], None] | None = None


class RecordedWork(dist.Work):
    """A transfer under way: forwards to the inner work, and records waits for it."""

    def __init__(
        self,
        inner: dist.Work,
        comm: CommStart,
        group: RecordingGroup,
        ready: dist.Work | None = None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._comm = comm
        self._group = group
        self._ready = ready
        self._waited = False

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Stand still until the transfer has ended."""
        if self._waited:
            return self._inner.wait(timeout)
        since_s = self._comm.issued_s if is_called_from(_C10D) else None
        with self._group.recorder.waiting(self._comm.id, since_s):
            result = self._stand_still(timeout)
        self._has_ended()
        return result

    @property
    def comm_id(self) -> int:
        """The transfer's number among those of its rank."""
        return self._comm.id

    def wait_on_stream(self) -> None:
        """Wait as the backend does: NCCL holds up the current stream, not the host.

        The wait is not recorded: whoever calls this has done so.
        """
        self._stand_still(NO_TIMEOUT)
        if not self._waited:
            self._has_ended()

    def _stand_still(self, timeout: timedelta) -> bool:
        if self._ready is not None:
            self._ready.wait(timeout)
        try:
            return self._inner.wait(timeout)
        except RuntimeError as error:
            _tell_of_dtype(error, self._comm)
            raise

    def _has_ended(self) -> None:
        self._waited = True
        observer = self._group.recorder.observer
        if observer is not None:
            observer.waited(self._comm.id)
        self._group.ended(self._comm)

    def is_completed(self) -> bool:
        """Whether the transfer has ended: who asks acts on times, not on values."""
        self._group.recorder.caveat(
            "timing", f"asks whether {self._comm.kind} has ended", calling_site()
        )
        met = self._ready is None or self._ready.is_completed()
        return met and self._inner.is_completed()

    def get_future(self) -> Any:
        """The inner work's future: C++ code waits through it, unseen."""
        observer = self._group.recorder.observer
        if observer is not None:
            observer.future_taken(self._comm.id)
        return self._inner.get_future()


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any) -> Any:
        return getattr(self._inner, name)(*args)

    return forward


# pybind defines these on dist.Work itself: __getattr__ would never be asked for them.
for _name in (
    "is_success", "exception", "result", "synchronize", "source_rank", "_source_rank",
    "block_current_stream", "get_future_result", "_get_duration", "_get_op_type",
):  # fmt: skip
    setattr(RecordedWork, _name, _forwarded(_name))


class RecordingGroup(dist.ProcessGroup):
    """Records each transfer of one group on one rank, then forwards it."""

    def __init__(
        self,
        inner: dist.ProcessGroup,
        *,
        uid: str,
        ranks: Sequence[int],
        recorder: Recorder,
        hooks: Hooks,
        board: Board | None = None,
        ready: dist.ProcessGroup | None = None,
        futures_tell: bool = False,
    ) -> None:
        """Wrap `inner`.

        Args:
            inner: The group that transfers.
            uid: The group's name, the same on all its ranks.
            ranks: Global ranks, in group order.
            recorder: Is told of every transfer.
            hooks: What to do around a transfer.
            board: Where the ranks of one machine compare their calls.
            ready: If given, makes each send wait for its receive.
            futures_tell: The futures of `inner` are done when a transfer has ended, as
                gloo's are; NCCL's are when it has been issued.
        """
        # torch's stub lacks this one of the two constructors.
        super().__init__(inner.rank(), inner.size())  # pyright: ignore[reportCallIssue]
        self.inner = inner
        self.uid = uid
        self.ranks = tuple(ranks)
        self.recorder = recorder
        self.hooks = hooks
        self._board = board
        self._ready_group = ready
        self._futures_tell = futures_tell
        self._tokens: list[dist.Work] = []
        self._unwaited: dict[int, dist.Work] = {}
        self._batch: int | None = None
        self._next_batch = 0
        recorder.new_group(uid, self.ranks)

    def _global(self, group_rank: int) -> int:
        """A member's global rank."""
        if not 0 <= group_rank < len(self.ranks):
            raise UsageError(
                f"the other end of a transfer is a member of its group, from 0 to "
                f"{len(self.ranks) - 1}; rank {self.recorder.counters.rank} named "
                f"{group_rank}. Count from 0: the next is (rank + 1) % world_size"
            )
        return self.ranks[group_rank]

    def issue(self, method: str, kind: Kind, call: Call, args: Any, kwargs: Any) -> Any:
        """Record `call`, forward it, and return the work to wait for."""
        if self.hooks.before_issue is not None:
            self.hooks.before_issue(kind)
        if kind == "recv" and call.root is None:
            self.recorder.caveat("timing", "receives from any source", calling_site())
        observer = self.recorder.observer
        reads, writes = _buffers(observer, method, args) if observer else ((), ())
        comm = self.recorder.comm(
            kind,
            self.uid,
            peer=None if call.root is None else self._global(call.root),
            tag=call.tag,
            shapes=tuple(tuple(tensor.shape) for tensor in call.tensors),
            dtype=dtype_name(call.tensors[0].dtype) if call.tensors else "",
            payload_bytes=sum(t.numel() * t.element_size() for t in call.tensors),
            op=call.op,
            send_splits=call.send_splits,
            recv_splits=call.recv_splits,
            site=calling_site(),
            batch=self._batch,
            reads=reads,
            writes=writes,
        )
        if observer is not None:
            observer.issued(comm)
        if self._board is not None:
            self._board.post(comm)
            self._board.compare(comm, self.ranks)
        ready = self._meet(kind, call) if self._ready_group is not None else None
        try:
            inner = getattr(self.inner, method)(*args, **kwargs)
        except RuntimeError as error:
            _tell_of_dtype(error, comm)
            raise
        if inner is None:
            return None
        if kind in P2P:
            self._keep(comm.id, inner)
        elif self._futures_tell and not _is_waited_at_once(args):
            self._follow(comm.id, inner)
        return RecordedWork(inner, comm, self, ready)

    def _follow(self, comm_id: int, work: dist.Work) -> None:
        """Have the recorder look for a transfer's end; at level "work", be told."""
        try:
            future = work.get_future()
        except RuntimeError:
            # Some of gloo's works have none: the wait tells the end.
            return
        # The work itself says that it is over only when all who listen have been told.
        self.recorder.follow(comm_id, future.done)
        if self.recorder.observer is not None:
            future.add_done_callback(partial(self._told, comm_id))

    def _told(self, comm_id: int, future: Any) -> None:
        self.recorder.ended(comm_id)

    def _keep(self, comm_id: int, work: dist.Work) -> None:
        """Hold on to a message: gloo gives up one whose handle the caller drops."""
        self._unwaited[comm_id] = work
        if len(self._unwaited) > MAX_UNWAITED:
            del self._unwaited[next(iter(self._unwaited))]

    def ended(self, comm: CommStart) -> None:
        """Called by a work that has been waited for: compare before anybody reads."""
        self._unwaited.pop(comm.id, None)
        if self._futures_tell and comm.kind not in P2P and self.recorder.observer:
            time.sleep(LET_GO_S)
        if self._board is not None:
            self._board.compare(comm, self.ranks)
        if self.hooks.after_wait is not None:
            self.hooks.after_wait()

    def _meet(self, kind: Kind, call: Call) -> dist.Work | None:
        """Rendezvous: a receive tells its sender that it is there; a send waits."""
        assert self._ready_group is not None
        self._tokens = [work for work in self._tokens if not work.is_completed()]
        if kind not in P2P:
            return None
        if call.root is None:
            raise UsageError(
                "with rendezvous=True a receive must name its sender, which waits to "
                "hear of it; this rank receives from any. Use dist.recv(x, src=RANK)"
            )
        token = torch.zeros(1, dtype=torch.uint8)
        if kind == "send":
            return self._ready_group.recv([token], call.root, call.tag)
        self._tokens.append(self._ready_group.send([token], call.root, call.tag))
        return None

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """A barrier that blocks in C++: recorded as one, with the wait around it."""
        comm = self.recorder.comm("barrier", self.uid, site=calling_site())
        with self.recorder.waiting(comm.id, comm.issued_s):
            # pybind has it, torch's stub does not.
            self.inner.monitored_barrier(  # pyright: ignore[reportAttributeAccessIssue]
                *args, **kwargs
            )

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = self._next_batch
        self._next_batch += 1
        self.inner._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        self._batch = None
        return self.inner._end_coalescing(device)

    def shutdown(self) -> None:
        """End the inner group."""
        self.inner.shutdown()

    def abort(self) -> None:
        """Abort the inner group."""
        self.inner.abort()


def _is_waited_at_once(args: Sequence[Any]) -> bool:
    """Whether the caller said `async_op=False`: then the wait itself tells the end."""
    return getattr(args[-1] if args else None, "asyncOp", True) is False


def _tell_of_dtype(error: RuntimeError, comm: CommStart) -> None:
    """Where gloo cannot move a dtype, say what it can move instead."""
    if "Invalid scalar type" in str(error):
        raise UsageError(
            f"{comm.kind} on gloo needs a dtype that it can move; this rank handed "
            f"over {comm.dtype}. Convert before the call: torch.view_as_real(x) for "
            "complex numbers, x.to(torch.int32) for int16"
        ) from None


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _flat(tensors: Any) -> tuple[Tensor, ...]:
    """Every tensor of a tensor, a list of tensors, or a list of lists."""
    if isinstance(tensors, Tensor):
        return (tensors,)
    return tuple(tensor for item in tensors for tensor in _flat(item))


def _op_name(options: Any) -> str:
    op = getattr(options, "reduceOp", options)
    return _op_word(getattr(op, "op", op))


@cache
def _op_word(op: Any) -> str:
    """`sum` for ReduceOp.SUM."""
    return str(op).rpartition(".")[2].lower()


def _options(args: Sequence[Any], kwargs: dict[str, Any], position: int) -> Any:
    if len(args) > position:
        return args[position]
    return kwargs.get("opts", kwargs.get("op", kwargs.get("root")))


def _root(options: Any) -> int:
    return int(getattr(options, "rootRank", options if options is not None else 0))


def _reduced(position: int) -> Callable[..., Call]:
    """The tensors at `position` must agree, and so must the reduction."""

    def describe(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
        options = _options(args, kwargs, max(1, position + 1))
        op = "sum" if options is None else _op_name(options)
        return Call(_flat(args[position]), op=op)

    return describe


def _agreeing(position: int) -> Callable[..., Call]:
    """The tensors at `position` must agree between ranks."""

    def describe(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
        return Call(_flat(args[position]))

    return describe


def _rooted(position: int, options_at: int, *, reduces: bool = False) -> Any:
    """The tensors at `position` must agree, and so must the root."""

    def describe(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
        options = _options(args, kwargs, options_at)
        op = _op_name(options) if reduces else None
        return Call(_flat(args[position]), root=_root(options), op=op)

    return describe


def _uneven(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
    """all_to_all of one tensor: rows of the first dimension go to each rank."""
    output, input_, recv_rows, send_rows = args[:4]
    return Call(
        (input_,),
        send_splits=_elements(input_, send_rows, size),
        recv_splits=_elements(output, recv_rows, size),
    )


def _elements(tensor: Tensor, rows: Sequence[int], size: int) -> tuple[int, ...]:
    if not rows:
        return (tensor.numel() // size,) * size
    row = tensor[0].numel() if tensor.dim() and tensor.shape[0] else 1
    return tuple(int(count) * row for count in rows)


def _pieces(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
    """all_to_all of lists: one tensor for each rank."""
    outputs, inputs = args[:2]
    return Call(
        _flat(inputs),
        send_splits=tuple(tensor.numel() for tensor in inputs),
        recv_splits=tuple(tensor.numel() for tensor in outputs),
    )


def _nothing(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
    return Call()


def _peer(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
    return Call(_flat(args[0]), root=int(args[1]), tag=int(args[2]))


def _any_source(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> Call:
    return Call(_flat(args[0]), tag=int(args[1]))


METHODS: dict[str, tuple[Kind, Callable[..., Call]]] = {
    "send": ("send", _peer),
    "recv": ("recv", _peer),
    "recv_anysource": ("recv", _any_source),
    "broadcast": ("broadcast", _rooted(0, 1)),
    "reduce": ("reduce", _rooted(0, 1, reduces=True)),
    "gather": ("gather", _rooted(1, 2)),
    "scatter": ("scatter", _rooted(0, 2)),
    "allreduce": ("all_reduce", _reduced(0)),
    "allreduce_coalesced": ("all_reduce", _reduced(0)),
    "allgather": ("all_gather", _agreeing(1)),
    "allgather_coalesced": ("all_gather", _agreeing(1)),
    "all_gather_single": ("all_gather", _agreeing(1)),
    "_allgather_base": ("all_gather", _agreeing(1)),
    "all_gather_single_coalesced": ("all_gather", _agreeing(1)),
    "allgather_into_tensor_coalesced": ("all_gather", _agreeing(1)),
    "reduce_scatter": ("reduce_scatter", _reduced(1)),
    "reduce_scatter_single": ("reduce_scatter", _reduced(1)),
    "_reduce_scatter_base": ("reduce_scatter", _reduced(1)),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _reduced(1)),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _reduced(1)),
    "all_to_all_single": ("all_to_all", _uneven),
    "alltoall_base": ("all_to_all", _uneven),
    "alltoall": ("all_to_all", _pieces),
    "barrier": ("barrier", _nothing),
}


# Most methods write into their first argument what they read from their second.
_WRITE_WHAT_THEY_READ = frozenset(
    {"broadcast", "reduce", "allreduce", "allreduce_coalesced"}
)
_WRITE_ONLY = frozenset({"recv", "recv_anysource"})


def _buffers(
    observer: Observer, method: str, args: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The storages that a call reads, and those that it writes."""
    if method == "barrier":
        return (), ()
    first = observer.buffers(_flat(args[0]))
    if method == "send":
        return first, ()
    if method in _WRITE_ONLY:
        return (), first
    if method in _WRITE_WHAT_THEY_READ:
        return first, first
    return observer.buffers(_flat(args[1])), first


def _recorded(method: str, kind: Kind, describe: Callable[..., Call]) -> Any:
    def forward(self: RecordingGroup, *args: Any, **kwargs: Any) -> Any:
        call = describe(args, kwargs, len(self.ranks))
        return self.issue(method, kind, call, args, kwargs)

    forward.__name__ = method
    forward.__doc__ = f"Record a {kind}, then forward it."
    return forward


for _method, (_kind, _describe) in METHODS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordingGroup, _method, _recorded(_method, _kind, _describe))
