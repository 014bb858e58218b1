"""What leaves a rank: counted for a message, derived for a backend's own collective.

Two counts, never mixed. *Payload* is what the caller handed over, *wire* what left the
rank for others. A message sends its payload. What a collective sends follows from how
its backend does it, so it is derived, and two backends differ:

    S bytes a rank, n ranks      gloo                         NCCL, by rings
    broadcast                    S x children in a tree       S, but for the last
    reduce                       ring, then to the root       S, but for the root
    all_reduce                   2 (n - 1) / n S              2 (n - 1) / n S
    all_gather                   (n - 1) S                    (n - 1) S
    reduce_scatter               as all_reduce                (n - 1) / n S
    gather, scatter              straight to or from the root in both
    all_to_all                   straight to each rank in both

S is the payload: for a gather, a scatter or an all_gather one rank's share, for the
others the whole. Summed over the ranks of a group, a derived count is exact to the byte
but for framing; tests hold gloo's against the loopback device's own counters.

[Note: gloo's reduce] gloo cuts a tensor into a chunk a rank and each chunk into
segments of at most 1 MiB. Its reduce passes on all segments but two, where all but a
chunk would do: for large tensors it sends up to half as much again as a ring needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

from labkit.errors import UsageError
from labkit.record.events import CommStart, Kind
from labkit.record.program import Traffic

Backend: TypeAlias = Literal["gloo", "nccl"]

GLOO_SEGMENT_BYTES = 1024 * 1024
MAX_KEPT = 4096


class Share(NamedTuple):
    """One rank's part of a collective.

    Attributes:
        payload_bytes: What it handed over.
        size: Ranks of the group.
        position: Its place in the group, from 0.
        root: The root's place, where there is one.
        item_bytes: Size of an element: none is cut in two.
        own_bytes: What it keeps of an all_to_all; None for an equal part.
    """

    payload_bytes: int
    size: int
    position: int
    root: int = 0
    item_bytes: int = 1
    own_bytes: int | None = None

    @property
    def is_root(self) -> bool:
        """Whether the rank is the root."""
        return self.position == self.root

    @property
    def place(self) -> int:
        """Its place in the group, counted from the root."""
        return (self.position - self.root) % self.size


def wire_bytes(kind: Kind, share: Share, backend: Backend = "gloo") -> int:
    """Bytes that leave a rank for one transfer, without the framing of the network.

    Args:
        kind: What the transfer is.
        share: The rank's part of it.
        backend: Whose algorithm it is.

    Raises:
        UsageError: There is no such rank in the group, or sizes are negative.
    """
    _check(kind, share)
    if kind == "send":
        return share.payload_bytes
    if share.size == 1 or share.payload_bytes == 0:
        return 0
    sent = _SENT[backend].get(kind)
    return 0 if sent is None else sent(share)


def _check(kind: Kind, share: Share) -> None:
    places = range(share.size)
    if share.position not in places or share.root not in places:
        raise UsageError(
            f"a rank's and a root's place in a group of {share.size} are from 0 to "
            f"{share.size - 1}; {kind} got place {share.position} and root "
            f"{share.root}. Count them in the group, not in the world"
        )
    if share.payload_bytes < 0 or share.item_bytes < 1:
        raise UsageError(
            f"a payload has at least 0 bytes and an element at least 1; {kind} got "
            f"{share.payload_bytes} and {share.item_bytes}. Give the tensor's own"
        )


def _up(value: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-value // step) * step


def _straight(share: Share) -> int:
    """all_to_all: to each rank what is for it."""
    own = share.own_bytes
    return share.payload_bytes - (
        share.payload_bytes // share.size if own is None else own
    )


def _to_all_others(share: Share) -> int:
    """all_gather: a ring passes on every share but the last that comes."""
    return (share.size - 1) * share.payload_bytes


def _gather(share: Share) -> int:
    return 0 if share.is_root else share.payload_bytes


def _scatter(share: Share) -> int:
    return _to_all_others(share) if share.is_root else 0


class _Chunks(NamedTuple):
    """How gloo cuts a tensor: a chunk a rank, of `per_rank` segments each."""

    total: int
    size: int
    segment: int
    per_rank: int

    def between(self, first: int, last: int) -> int:
        """Bytes from segment `first` up to `last`; the last ones may be empty."""
        start = min(self.total, first * self.segment)
        return min(self.total, last * self.segment) - start

    def of(self, position: int) -> int:
        """Bytes of one rank's chunk."""
        at = position % self.size * self.per_rank
        return self.between(at, at + self.per_rank)


def _gloo_segment(item_bytes: int) -> int:
    return item_bytes * max(1, GLOO_SEGMENT_BYTES // item_bytes)


def _gloo_all_reduce(share: Share) -> int:
    """Around the ring twice: reduced, then handed out, each time all but one chunk."""
    total, size = share.payload_bytes, share.size
    at_least = -(-total // _gloo_segment(share.item_bytes))
    count = _up(max(at_least, 2 * size), size)
    segment = _up(-(-total // count), share.item_bytes)
    chunks = _Chunks(total, size, segment, count // size)
    return 2 * total - chunks.of(share.position) - chunks.of(share.position - 1)


def _gloo_reduce(share: Share) -> int:
    """Around the ring once, then each rank's chunk to the root."""
    total, size = share.payload_bytes, share.size
    segment = _up(
        min(-(-total // (2 * size)), _gloo_segment(share.item_bytes)), share.item_bytes
    )
    count = _up(max(-(-total // segment), 2 * size), size)
    chunks = _Chunks(total, size, segment, count // size)
    last = (share.position + 1) * chunks.per_rank
    around = total - chunks.between(last - 2, last)
    return around + (0 if share.is_root else chunks.of(share.position))


def _gloo_broadcast(share: Share) -> int:
    """A binomial tree: in round i, the first 2**i ranks send to as many others."""
    rounds = range((share.size - 1).bit_length())
    children = sum(share.place < 1 << i and share.place + (1 << i) < share.size
                   for i in rounds)  # fmt: skip
    return children * share.payload_bytes


def _ring_part(share: Share, position: int) -> int:
    """Bytes of one rank's part, where a tensor is cut as evenly as bytes allow."""
    total, size, at = share.payload_bytes, share.size, position % share.size
    return total * (at + 1) // size - total * at // size


def _ring_all_reduce(share: Share) -> int:
    kept = sum(_ring_part(share, share.position - back) for back in (0, 1))
    return 2 * share.payload_bytes - kept


def _ring_reduce_scatter(share: Share) -> int:
    return share.payload_bytes - _ring_part(share, share.position)


def _ring_broadcast(share: Share) -> int:
    """From the root around the ring; the last rank passes nothing on."""
    return 0 if share.place == share.size - 1 else share.payload_bytes


_IN_BOTH: dict[Kind, Callable[[Share], int]] = {
    "gather": _gather,
    "scatter": _scatter,
    "all_gather": _to_all_others,
    "all_to_all": _straight,
}
_SENT: dict[Backend, dict[Kind, Callable[[Share], int]]] = {
    "gloo": {
        **_IN_BOTH,
        "broadcast": _gloo_broadcast,
        "reduce": _gloo_reduce,
        "all_reduce": _gloo_all_reduce,
        "reduce_scatter": _gloo_all_reduce,
    },
    "nccl": {
        **_IN_BOTH,
        "broadcast": _ring_broadcast,
        "reduce": _gather,
        "all_reduce": _ring_all_reduce,
        "reduce_scatter": _ring_reduce_scatter,
    },
}


@cache
def item_bytes(dtype: str) -> int:
    """Size of an element, from its type's name: 2 for "bfloat16", 1 for "bool"."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


class Counters:
    """Adds up one rank's transfers by kind, group and peer: exact, never dropped.

    The rank's recorder calls `add` for each transfer, so it must be cheap.
    """

    def __init__(self, rank: int = 0, backend: Backend = "gloo") -> None:
        """`rank` is the rank that counts; `backend` the one whose algorithms count."""
        self.rank = rank
        self.backend: Backend = backend
        self._counts: dict[tuple[Kind, str, int | None], list[int]] = {}
        # A step makes the same calls again and again: what each sends is kept.
        self._sent: dict[tuple[Any, ...], int] = {}

    def clear(self) -> None:
        """Begin at 0 again."""
        self._counts.clear()
        self._sent.clear()

    def add(self, comm: CommStart, ranks: Sequence[int]) -> None:
        """Count a transfer on a group of these global ranks, in group order."""
        key = (comm.kind, comm.group, comm.peer)
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = [0, 0, 0]
        call = (key, comm.payload_bytes, comm.dtype, comm.send_splits)
        sent = self._sent.get(call)
        if sent is None:
            sent = self._wire_bytes(comm, ranks)
            if len(self._sent) < MAX_KEPT:
                self._sent[call] = sent
        count[0] += 1
        count[1] += comm.payload_bytes
        count[2] += sent

    def rows(self) -> tuple[Traffic, ...]:
        """What was counted, in the order in which each first occurred."""
        return tuple(
            Traffic(self.rank, *key, *count) for key, count in self._counts.items()
        )

    def _wire_bytes(self, comm: CommStart, ranks: Sequence[int]) -> int:
        if comm.kind == "send":
            return comm.payload_bytes
        if comm.payload_bytes == 0 or comm.kind == "recv":
            return 0
        return wire_bytes(comm.kind, self._share(comm, ranks), self.backend)

    def _share(self, comm: CommStart, ranks: Sequence[int]) -> Share:
        position = ranks.index(self.rank)
        root = 0 if comm.peer is None else ranks.index(comm.peer)
        size = item_bytes(comm.dtype)
        own = None
        # A call with too few pieces is counted before the backend refuses it.
        if comm.send_splits is not None and position < len(comm.send_splits):
            own = comm.send_splits[position] * size
        return Share(comm.payload_bytes, len(ranks), position, root, size, own)
