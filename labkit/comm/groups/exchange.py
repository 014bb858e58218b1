"""Where ranks of one process meet: collectives and messages of one group.

A `Room` is shared by the members of a group. A collective is a `Meeting`: each rank
brings its `Part`, and the last to come moves the values, rank by rank in rank order. A
message waits in the room until its receive is there, or the other way round; messages
of one source, destination and tag stay in order.

[Note: same as gloo] A program must not pass here and fail on processes, so what gloo
refuses (torch 2.13) is refused here, with a message that says more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.comm.groups.isolation import unseen
from labkit.errors import MismatchError
from labkit.record.events import Kind


class Transfer:
    """Something that ends, well or with an error: a collective or a message."""

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self.source = -1

    def end(self, error: Exception | None = None) -> None:
        """From now on nobody waits for this any more."""
        self.error = error
        self.done = True

    def result(self) -> None:
        """Raise what went wrong, in the thread of each rank that asks."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)


class Part(NamedTuple):
    """What one rank brings to a collective, and where it wants what comes of it.

    `agree` holds the tensors whose number of elements must be the same on every rank.
    """

    kind: Kind
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    root: int | None = None
    op: str | None = None
    agree: tuple[Tensor, ...] = ()
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        words = [f"{self.dtype}".removeprefix("torch.")] if self.dtype else []
        words += [str(tuple(tensor.shape)) for tensor in self.agree]
        words += [f"op {self.op}"] if self.op else []
        words += [f"root {self.root}"] if self.root is not None else []
        return f"{self.kind}({', '.join(words)})"

    def fits(self, other: Part) -> bool:
        """Whether two ranks make the same call."""
        return (
            self.kind == other.kind
            and self.op == other.op
            and self.root == other.root
            and self.dtype is other.dtype
            and len(self.agree) == len(other.agree)
            and all(map(_same_size, self.agree, other.agree))
        )


def _same_size(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel()


class Meeting(Transfer):
    """One collective of a group."""

    def __init__(self, ranks: Sequence[int], position: int) -> None:
        super().__init__()
        self._ranks = ranks
        self._position = position
        self._parts: dict[int, Part] = {}
        self.num_arrived = 0

    def join(self, rank: int, part: Part) -> None:
        """Rank `rank` of the group is here; the last one makes it happen."""
        self.num_arrived += 1
        if self.done:
            return
        for other, earlier in self._parts.items():
            if not part.fits(earlier):
                self._refuse(other, earlier, rank, part)
                return
            break
        self._parts[rank] = part
        if len(self._parts) == len(self._ranks):
            self._happen()

    def _happen(self) -> None:
        parts = [self._parts[rank] for rank in range(len(self._ranks))]
        self._parts = {}
        try:
            if parts[0].kind == "all_to_all":
                self._check_pieces(parts)
            with unseen():
                _MOVES[parts[0].kind](parts)
        except Exception as error:
            self.end(error)
        else:
            self.end()

    def _check_pieces(self, parts: Sequence[Part]) -> None:
        """In an all_to_all every pair of ranks must agree on what goes between them."""
        for to, part in enumerate(parts):
            for source, output in enumerate(part.outputs):
                num_sent = parts[source].inputs[to].numel()
                if num_sent != output.numel():
                    raise MismatchError(
                        "in an all_to_all each rank must expect what the other sends "
                        f"it; rank {self._ranks[source]} sends {num_sent} elements to "
                        f"rank {self._ranks[to]}, which expects {output.numel()}. "
                        "Exchange the split sizes first"
                    )

    def _refuse(self, first: int, earlier: Part, rank: int, part: Part) -> None:
        self._parts = {}
        self.end(
            MismatchError(
                "every rank of a group must make the same calls in the same order; "
                f"as call {self._position + 1} of its group, rank {self._ranks[first]} "
                f"made {earlier} and rank {self._ranks[rank]} made {part}. Compare the "
                "lines where these two ranks stand"
            )
        )


@dataclass(eq=False)
class Letter:
    """A message or a receive that waits for its other end.

    `peer` is None for a receive from any source.
    """

    peer: int | None
    tag: int
    tensor: Tensor
    transfer: Transfer = field(default_factory=Transfer)


class Room:
    """What the members of one group share. `ranks` are global, in group order."""

    def __init__(self, ranks: Sequence[int], *, rendezvous: bool) -> None:
        self.ranks = tuple(ranks)
        self._rendezvous = rendezvous
        self._position = [0] * len(self.ranks)
        self._meetings: dict[int, Meeting] = {}
        self._sent: list[list[Letter]] = [[] for _ in self.ranks]
        self._expected: list[list[Letter]] = [[] for _ in self.ranks]

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way and every rank has made the same calls."""
        return not self._meetings and not any(self._sent) and not any(self._expected)

    def meet(self, rank: int, part: Part) -> Meeting:
        """Bring `part` to the rank's next collective."""
        position = self._position[rank]
        self._position[rank] += 1
        meeting = self._meetings.get(position)
        if meeting is None:
            meeting = self._meetings[position] = Meeting(self.ranks, position)
        meeting.join(rank, part)
        if meeting.num_arrived == len(self.ranks):
            del self._meetings[position]
        return meeting

    def send(self, source: int, to: int, tag: int, tensor: Tensor) -> Transfer:
        """Send a copy of `tensor`; ended at once, or when received under rendezvous."""
        with unseen():
            letter = Letter(source, tag, tensor.data.clone())
        for expected in self._expected[to]:
            if expected.tag == tag and expected.peer in (source, None):
                self._expected[to].remove(expected)
                self._deliver(letter, expected, to)
                return letter.transfer
        self._sent[to].append(letter)
        if not self._rendezvous:
            letter.transfer.end()
        return letter.transfer

    def receive(
        self, at: int, source: int | None, tag: int, tensor: Tensor
    ) -> Transfer:
        """Receive the next message of `source`, or of anybody, into `tensor`."""
        expected = Letter(source, tag, tensor)
        for letter in self._sent[at]:
            if letter.tag == tag and source in (letter.peer, None):
                self._sent[at].remove(letter)
                self._deliver(letter, expected, at)
                return expected.transfer
        self._expected[at].append(expected)
        return expected.transfer

    def _deliver(self, letter: Letter, expected: Letter, at: int) -> None:
        sent, wanted = letter.tensor, expected.tensor
        assert letter.peer is not None
        expected.transfer.source = letter.peer
        error = None
        if sent.dtype != wanted.dtype or sent.numel() != wanted.numel():
            error = MismatchError(
                "a message and its receive must have the same type and number of "
                f"elements; rank {self.ranks[letter.peer]} sent {_describe(sent)} and "
                f"rank {self.ranks[at]} receives {_describe(wanted)}. Give the receive "
                "a tensor like the one that is sent"
            )
        else:
            with unseen():
                _write(wanted, sent)
        expected.transfer.end(error)
        letter.transfer.end(error if self._rendezvous else None)


class Founding(Transfer):
    """The members of a new group find each other."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room = room
        self._missing = set(room.ranks)

    def join(self, rank: int, members: Sequence[int]) -> None:
        """Rank `rank` is here, and takes `members` for the members."""
        if self.room.ranks != tuple(members):
            self.end(
                MismatchError(
                    "every member of a new group must name the same ranks; rank "
                    f"{rank} named {list(members)} where another named "
                    f"{list(self.room.ranks)}. Make groups in the same order, with the "
                    "same ranks, on every rank"
                )
            )
            return
        self._missing.discard(rank)
        if not self._missing:
            self.end()


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _write(output: Tensor, value: Tensor) -> None:
    """Copy, unseen by autograd: gloo writes through a pointer, which counts nothing."""
    if output.shape != value.shape:
        value = value.reshape(output.shape)
    output.data.copy_(value.data)


_Combine = Callable[[Tensor, Tensor], Any]
_COMBINE: dict[str, _Combine] = {
    "SUM": Tensor.add_,
    "AVG": Tensor.add_,
    "PRODUCT": Tensor.mul_,
    "MIN": lambda total, value: torch.minimum(total, value, out=total),
    "MAX": lambda total, value: torch.maximum(total, value, out=total),
    "BAND": Tensor.bitwise_and_,
    "BOR": Tensor.bitwise_or_,
    "BXOR": Tensor.bitwise_xor_,
}
_BITWISE = frozenset({"BAND", "BOR", "BXOR"})
# What gloo can move (see [Note: same as gloo]); messages may be of any type.
_MOVABLE = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip
_COMPLEX = frozenset({torch.complex64, torch.complex128})


def check_movable(kind: Kind, dtype: torch.dtype) -> None:
    """Refuse a type that gloo cannot move in a collective."""
    if dtype in _MOVABLE or (dtype in _COMPLEX and kind != "gather"):
        return
    raise RuntimeError(
        "Invalid scalar type: a collective moves floats of 16 to 64 bits, int8, int32, "
        f"int64, uint8, bool or complex; {kind} got {dtype}. Convert it, or move its "
        "bytes with tensor.view(torch.uint8)"
    )


def check_op(kind: Kind, op: str, dtype: torch.dtype) -> None:
    """Refuse a reduction that gloo refuses."""
    if op not in _COMBINE:
        raise RuntimeError(
            f"{kind} reduces by one of {', '.join(_COMBINE)}; got {op}. Scale the "
            "tensor yourself and use SUM"
        )
    if op in _BITWISE and dtype.is_floating_point:
        raise RuntimeError(
            f"ReduceOp.{op} works on whole numbers; {kind} got {dtype}. Convert it to "
            "an integer type"
        )
    if op == "AVG" and not dtype.is_floating_point:
        raise RuntimeError(
            f"ReduceOp.AVG divides, so it needs floats; {kind} got {dtype}. Use SUM "
            "and divide, or convert it to float32"
        )


def _reduced(op: str, values: Sequence[Tensor]) -> Tensor:
    """Combine in rank order, in the tensors' own type; only counts must agree."""
    total = values[0].data.clone()
    combine = _COMBINE[op]
    for value in values[1:]:
        combine(total, value.data.reshape(total.shape))
    return total.div_(len(values)) if op == "AVG" else total


def _all_reduce(parts: Sequence[Part]) -> None:
    op = parts[0].op or ""
    for at in range(len(parts[0].inputs)):
        total = _reduced(op, [part.inputs[at] for part in parts])
        for part in parts:
            _write(part.outputs[at], total)


def _reduce(parts: Sequence[Part]) -> None:
    total = _reduced(parts[0].op or "", [part.inputs[0] for part in parts])
    _write(parts[parts[0].root or 0].outputs[0], total)


def _broadcast(parts: Sequence[Part]) -> None:
    root = parts[0].root or 0
    for rank, part in enumerate(parts):
        if rank != root:
            for output, value in zip(part.outputs, parts[root].inputs, strict=True):
                _write(output, value)


def _all_gather(parts: Sequence[Part]) -> None:
    """Outputs: for each input, one tensor from each rank."""
    for part in parts:
        for at, output in enumerate(part.outputs):
            item, source = divmod(at, len(parts))
            _write(output, parts[source].inputs[item])


def _gather(parts: Sequence[Part]) -> None:
    for output, part in zip(parts[parts[0].root or 0].outputs, parts, strict=True):
        _write(output, part.inputs[0])


def _scatter(parts: Sequence[Part]) -> None:
    for value, part in zip(parts[parts[0].root or 0].inputs, parts, strict=True):
        _write(part.outputs[0], value)


def _reduce_scatter(parts: Sequence[Part]) -> None:
    """Inputs: for each output, one tensor for each rank."""
    for rank, part in enumerate(parts):
        for item, output in enumerate(part.outputs):
            at = item * len(parts) + rank
            values = [each.inputs[at] for each in parts]
            _write(output, _reduced(part.op or "", values))


def _all_to_all(parts: Sequence[Part]) -> None:
    # An output may be an input of the same rank: all is read before any is written.
    sent = [[value.data.clone() for value in part.inputs] for part in parts]
    for to, part in enumerate(parts):
        for source, output in enumerate(part.outputs):
            _write(output, sent[source][to])


def _barrier(parts: Sequence[Part]) -> None:
    """Nothing moves."""


_MOVES: dict[Kind, Callable[[Sequence[Part]], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
