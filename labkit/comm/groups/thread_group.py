"""A group of ranks that are threads: takes the calls that a gloo group takes.

Each method turns torch's call into a `Part` (what this rank brings, where it wants what
comes of it) and takes it to the group's `Room`.

[Note: both names] As in recording.py: torch renamed some methods in 2.13, and each is
there under both names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups import isolation
from labkit.comm.groups.exchange import Part, Room, check_movable, check_op
from labkit.comm.groups.thread_work import JoinedWork, ThreadWork, Turn
from labkit.record.events import Kind


class ThreadGroup(dist.ProcessGroup):
    """A group of ranks that are threads, as one of them sees it.

    Takes the calls that a gloo group takes from Python and from torch's C++, under the
    names of torch 2.11 to 2.14, and refuses what gloo refuses.
    """

    def __init__(self, turn: Turn, room: Room, group_rank: int) -> None:
        # torch's stubs know only the form with a store.
        super().__init__(group_rank, len(room.ranks))  # pyright: ignore[reportCallIssue]
        isolation.hold_name(self)
        self._turn = turn
        self._room = room
        self._me = group_rank
        self._size = len(room.ranks)
        self._coalesced: list[ThreadWork] | None = None

    def getBackendName(self) -> str:
        """The name of the backend; C++ asks for it under this name."""
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

    def gather(
        self, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> ThreadWork:
        """The root gets every rank's tensor, in rank order."""
        sent, wanted = _listed(inputs), _listed(outputs)
        root, _ = _read(*options, *named.values())
        if self._me == root:
            self._check_pieces("gather", wanted, sent[0])
        return self._meet(Part("gather", sent, wanted, root, None, sent, sent[0].dtype))

    def scatter(
        self, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> ThreadWork:
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

    def send(self, tensors: Sequence[Tensor], dstRank: int, tag: int = 0) -> ThreadWork:
        """Send a copy of a tensor to a member of the group."""
        (tensor,) = tensors
        self._check_message(tensor, dstRank, tag)
        self._turn.issue()
        transfer = self._room.send(self._me, dstRank, tag, tensor)
        return self._begun(ThreadWork(self._turn, transfer, (tensor,)))

    def recv(self, tensors: Sequence[Tensor], srcRank: int, tag: int = 0) -> ThreadWork:
        """Receive the next message that a member sends with this tag."""
        (tensor,) = tensors
        self._check_message(tensor, srcRank, tag)
        return self._receive(tensor, srcRank, tag)

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
        """The piece of each rank in `whole`, which joins them along dimension 0."""
        expected = (
            (piece.shape[0] * self._size, *piece.shape[1:]) if piece.dim() else ()
        )
        if piece.dim() and whole.shape == expected:
            return (
                whole.data.chunk(self._size)
                if piece.shape[0]
                else (whole,) * self._size
            )
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

    def _check_pieces(self, kind: Kind, pieces: Sequence[Tensor], like: Tensor) -> None:
        """One piece for each rank, each as large as the tensor that it is for."""
        self._check_count(kind, pieces)
        for at, piece in enumerate(pieces):
            if piece.shape != like.shape or piece.dtype != like.dtype:
                raise RuntimeError(
                    f"in {kind} every piece has the shape and type of {like.dtype} "
                    f"{tuple(like.shape)}; piece {at} is {piece.dtype} "
                    f"{tuple(piece.shape)}. Make all pieces alike, or use all_to_all"
                )


_SAME = {
    "allreduce_coalesced": "allreduce",
    "allgather_coalesced": "allgather",
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
for _other, _name in _SAME.items():
    setattr(ThreadGroup, _other, getattr(ThreadGroup, _name))


def _listed(tensors: Any) -> tuple[Tensor, ...]:
    """Every tensor of a tensor, a list of tensors, or a list of lists."""
    if isinstance(tensors, Tensor):
        return (tensors,)
    if all(isinstance(item, Tensor) for item in tensors):
        return tuple(tensors)
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
