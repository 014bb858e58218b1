"""Which calls fit together, judged from what each rank handed over.

Shapes may differ where the number of elements agrees: torch allows it.
"""

from __future__ import annotations

from math import prod

from labkit.record.events import CommStart
from labkit.runtime.diagnosis.findings import Differs


def collective_difference(
    rank: int,
    mine: CommStart,
    other_rank: int,
    theirs: CommStart,
    members: tuple[int, ...],
) -> Differs | None:
    """In what two ranks' calls at the same place of a group differ, if they do."""
    if mine.kind != theirs.kind:
        return Differs.KIND
    if mine.kind == "barrier":
        return None
    if mine.kind == "new_group":
        return Differs.RANKS if mine.shapes != theirs.shapes else None
    if mine.peer != theirs.peer:
        return Differs.ROOT
    if mine.dtype != theirs.dtype:
        return Differs.DTYPE
    if mine.op != theirs.op:
        return Differs.OP
    if mine.recv_splits is not None or theirs.recv_splits is not None:
        i, j = members.index(rank), members.index(other_rank)
        fit = _reaches(mine, i, theirs, j) and _reaches(theirs, j, mine, i)
        return None if fit else Differs.SPLITS
    return None if _same_elements(mine, theirs) else Differs.ELEMENTS


def p2p_difference(mine: CommStart, theirs: CommStart) -> Differs | None:
    """In what a send and its receive differ, if they do."""
    if mine.dtype != theirs.dtype:
        return Differs.DTYPE
    return None if mine.numel == theirs.numel else Differs.ELEMENTS


def _same_elements(mine: CommStart, theirs: CommStart) -> bool:
    if mine.shapes == theirs.shapes or mine.kind == "all_to_all":
        return True
    return [*map(prod, mine.shapes)] == [*map(prod, theirs.shapes)]


def sent_elements(sender: CommStart, to: int) -> int | None:
    """Elements that a rank's call sends to the group's `to`-th rank, if it is known."""
    if sender.send_splits is not None:
        return sender.send_splits[to] if to < len(sender.send_splits) else None
    return sender.numel if sender.kind == "all_gather" else None


def _reaches(sender: CommStart, i: int, receiver: CommStart, j: int) -> bool:
    """Whether what the i-th rank sends to the j-th is what the j-th expects."""
    sent = sent_elements(sender, j)
    if receiver.recv_splits is None or sent is None or i >= len(receiver.recv_splits):
        return True
    return sent == receiver.recv_splits[i]
