"""What a rank tells of itself: one ordered stream of small events.

The kernel reads the stream while it grows: to explain a hang, to draw a timeline, to
count messages. A rank is named by whoever holds its stream, so no event repeats it.
Times are seconds of the machine's monotonic clock, the same for all its processes.

`lane` 0 is the thread that runs the learner's function; other threads have other lanes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal[
    "send", "recv", "broadcast", "reduce", "all_reduce", "gather", "scatter",
    "all_gather", "reduce_scatter", "all_to_all", "barrier", "new_group",
]  # fmt: skip
MemoryKind: TypeAlias = Literal[
    "parameters", "gradients", "optimizer", "activations", "buffers", "scratch"
]
P2P = frozenset({"send", "recv"})
# How fields that hold times are named.
TIMES = ("issued_s", "at_s", "start_s", "end_s")


class Site(NamedTuple):
    """The line of the learner's code that made a call."""

    filename: str
    line: int
    function: str


class NewGroup(NamedTuple):
    """The rank became a member of a group; `ranks` are global, in group order."""

    uid: str
    ranks: tuple[int, ...]


class CommStart(NamedTuple):
    """A transfer was issued. `id` numbers the rank's transfers from 0, over all groups.

    `group_seq` counts the collectives that this rank issued on the group before;
    `pair_seq` counts its sends (or receives) with the same peer and tag before.
    `peer` is the other end of a send or recv, or the root of a rooted collective, as a
    global rank; None where there is no root, and for a receive from any source.
    `shapes` are those of the tensors handed over: for a rooted collective, of the
    tensor that must agree between ranks.
    `send_splits` and `recv_splits` are set for an all_to_all: elements to and from each
    rank of the group. `stream` is the logical stream that was current, `batch` numbers
    the transfers that were issued as one, `reads` and `writes` are storages (known at
    level "work" only).
    """

    id: int
    kind: Kind
    group: str
    group_seq: int
    peer: int | None
    tag: int
    pair_seq: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    payload_bytes: int
    op: str | None
    send_splits: tuple[int, ...] | None
    recv_splits: tuple[int, ...] | None
    lane: int
    site: Site | None
    issued_s: float
    stream: int = 0
    batch: int | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Elements handed over."""
        total = 0
        for shape in self.shapes:
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


class WaitStart(NamedTuple):
    """A thread began to wait for transfer `target` and stands still until WaitEnd.

    A call that waits for its own transfer, such as `dist.send`, waits from the moment
    at which it was issued.
    """

    target: int
    lane: int
    at_s: float


class WaitEnd(NamedTuple):
    """The wait for transfer `target` is over; `ok` is False where it raised."""

    target: int
    at_s: float
    ok: bool


class CommEnd(NamedTuple):
    """Transfer `target` was seen to have ended, whether or not anybody waited.

    It ended at most `unsure_s` before `at_s`.
    """

    target: int
    at_s: float
    unsure_s: float = 0.0


class SpanStart(NamedTuple):
    """A named stretch of the rank's program began."""

    name: str
    lane: int
    at_s: float
    micro_batch: int | None = None
    stage: int | None = None


class SpanEnd(NamedTuple):
    """The lane's innermost open span ended."""

    lane: int
    at_s: float


class Moment(NamedTuple):
    """Something happened at one moment: `mark("spoke")`."""

    name: str
    lane: int
    at_s: float


class Operation(NamedTuple):
    """An operation ran, or was issued: see `labkit.record.program.Work`."""

    name: str
    lane: int
    stream: int
    flops: float
    moved_bytes: float
    kernels: int
    dtype: str
    fixed_s: float | None
    start_s: float
    end_s: float


class ValueRead(NamedTuple):
    """The host read a value that `stream` computes."""

    lane: int
    stream: int
    site: Site | None


class Touch(NamedTuple):
    """An operation used a buffer of transfer `target`, which C++ had waited for."""

    target: int
    lane: int
    stream: int
    cause: Literal["future", "storage"]
    site: Site | None


class RaceSeen(NamedTuple):
    """An operation used a buffer of transfer `target`, and nobody had waited for it."""

    target: int
    storage: int
    access: Literal["read", "write"]
    operation: str
    site: Site | None


class StreamMark(NamedTuple):
    """A logical stream was given event `id`: done when all before it is done."""

    id: int
    lane: int
    stream: int
    at_s: float


class StreamWait(NamedTuple):
    """What `stream` is given from now on waits: for a mark ("event") or a transfer."""

    target: int
    lane: int
    stream: int
    cause: Literal["event", "wait"]
    at_s: float


class StorageMade(NamedTuple):
    """A storage came to be, or came to be of this kind."""

    storage: int
    num_bytes: int
    kind: MemoryKind
    at_s: float


class StorageGone(NamedTuple):
    """A storage was freed, or is not of this kind any more."""

    storage: int
    num_bytes: int
    kind: MemoryKind
    at_s: float


class Caveat(NamedTuple):
    """Why another run may issue other events, or why the order is not in the record."""

    about: Literal["timing", "streams"]
    why: str
    site: Site | None


Event: TypeAlias = (
    NewGroup
    | CommStart
    | WaitStart
    | WaitEnd
    | CommEnd
    | SpanStart
    | SpanEnd
    | Moment
    | Operation
    | ValueRead
    | Touch
    | RaceSeen
    | StreamMark
    | StreamWait
    | StorageMade
    | StorageGone
    | Caveat
)
