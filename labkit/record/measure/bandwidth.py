"""Bus bandwidth, by nccl-tests' definition: what a link would have to carry.

algbw = S / t, busbw = algbw x factor; with n ranks the factor is

    all_reduce 2(n-1)/n        all_gather, reduce_scatter, all_to_all,
    broadcast, reduce 1        gather, scatter (n-1)/n
    send, recv 1

S is the whole array: for an all_gather, a gather and a scatter what all ranks hand over
together. t is from when the last rank came until the transfer ended, on the rank where
that took longest: waiting for a late rank is no communication.
Paper: NVIDIA/nccl-tests, doc/PERFORMANCE.md and src/*.cu.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from labkit.record.events import Kind
from labkit.record.measure.clocks import Clocks
from labkit.record.measure.steps import Steps
from labkit.record.measure.transfers import Transfer

_SHARE = frozenset({"all_gather", "gather", "scatter"})
_PART = _SHARE | {"reduce_scatter", "all_to_all"}


class Bandwidth(NamedTuple):
    """Transfers of one kind and size among as many ranks, taken together.

    `array_bytes` is nccl-tests' S; `seconds` is the mean t. Messages are "send".
    """

    kind: Kind
    num_ranks: int
    array_bytes: int
    num_transfers: int
    seconds: float

    @property
    def algbw_bytes_per_s(self) -> float:
        """S / t."""
        return self.array_bytes / self.seconds

    @property
    def busbw_bytes_per_s(self) -> float:
        """S / t times the kind's factor."""
        return self.algbw_bytes_per_s * factor(self.kind, self.num_ranks)


def factor(kind: Kind, num_ranks: int) -> float:
    """What algbw is to be multiplied with to give busbw."""
    if kind == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    return (num_ranks - 1) / num_ranks if kind in _PART else 1.0


def of_transfers(
    transfers: Mapping[tuple[int, int], Transfer], steps: Steps, clocks: Clocks
) -> tuple[list[Bandwidth], int]:
    """The bandwidth of each kind and size, and how many transfers tell none.

    Left out are those whose end nobody saw when it came, those of which a rank is
    missing, and those shorter than the clocks can tell.
    """
    lengths: defaultdict[tuple[Kind, int, int], list[float]] = defaultdict(list)
    num_left_out = 0
    for transfer in {id(each): each for each in transfers.values()}.values():
        key = _key(transfer)
        if not key[2] or len(transfer.ranks) < 2 or not _is_in(transfer, steps):
            continue
        length_s = _length_s(transfer, clocks)
        if length_s is None:
            num_left_out += 1
        else:
            lengths[key].append(length_s)
    found = [
        Bandwidth(*key, len(all_s), sum(all_s) / len(all_s))
        for key, all_s in sorted(lengths.items())
    ]
    return found, num_left_out


def _key(transfer: Transfer) -> tuple[Kind, int, int]:
    """Kind, ranks and S."""
    payloads = [part.comm.logical_bytes for part in transfer.parts]
    kind = transfer.parts[0].comm.kind
    if kind == "recv":
        kind = "send"
    whole = sum(payloads) if kind in _SHARE else max(payloads)
    return kind, len(transfer.ranks), whole


def _is_in(transfer: Transfer, steps: Steps) -> bool:
    """Whether it was issued in a measured step."""
    comm = transfer.parts[0].comm
    return steps.covers[comm.rank].holds(comm.issued_s or 0.0)


def _length_s(transfer: Transfer, clocks: Clocks) -> float | None:
    """nccl-tests' t of one transfer; of a message the receiver's end tells it."""
    parts = [part for part in transfer.parts if part.comm.kind != "send"]
    if not transfer.is_whole or not all(part.end_is_known for part in parts):
        return None
    lengths = [
        (part.comm.ended_s or 0.0) - (part.comm.arrived_s or 0.0) for part in parts
    ]
    ranks = transfer.ranks
    apart_s = max(clocks.apart_s(ranks[0], rank) for rank in ranks)
    return max(lengths) if max(lengths) > apart_s else None
