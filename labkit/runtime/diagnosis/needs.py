"""Whom a transfer cannot end without.

A wait is over only when each rank of `sure` has made its call, and one of `any_of`. It
may be over without the ranks of `maybe`: their part can lie in a buffer. What rests on
`sure` and `any_of` alone is exact, whatever the backend does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.record.events import CommStart


@dataclass(frozen=True)
class Need:
    """The ranks whose call a transfer still waits for."""

    sure: tuple[int, ...] = ()
    maybe: tuple[int, ...] = ()
    any_of: tuple[int, ...] = ()

    def peers(self, *, soft: bool) -> tuple[int, ...]:
        """Those that it waits for; with `soft`, those of `maybe` too."""
        return self.sure + self.any_of + (self.maybe if soft else ())


def collective_need(
    rank: int, comm: CommStart, members: tuple[int, ...], missing: Sequence[int]
) -> Need:
    """What `rank` still needs of the `missing` members to end a collective."""
    sure = tuple(peer for peer in missing if _is_sure(rank, comm, members, peer))
    return Need(sure, tuple(peer for peer in missing if peer not in sure))


def _is_sure(rank: int, comm: CommStart, members: tuple[int, ...], peer: int) -> bool:
    kind = comm.kind
    if kind == "barrier":
        return True
    # Without TORCH_DIST_INIT_BARRIER=1 new_group waits for the new members, or nobody.
    if kind == "new_group":
        return False
    if kind == "all_to_all":
        splits = comm.recv_splits
        return splits is not None and splits[members.index(peer)] > 0
    if _has_nothing(comm):
        return False
    if kind in ("broadcast", "scatter"):
        return peer == comm.peer
    if kind in ("reduce", "gather"):
        return rank == comm.peer
    return True


def _has_nothing(comm: CommStart) -> bool:
    return any(0 in shape for shape in comm.shapes)


def p2p_need(comm: CommStart, *, rendezvous: bool) -> Need:
    """What a send or receive that has not been answered needs of its peer."""
    assert comm.peer is not None
    is_sure = rendezvous if comm.kind == "send" else not _has_nothing(comm)
    return Need(sure=(comm.peer,)) if is_sure else Need(maybe=(comm.peer,))
