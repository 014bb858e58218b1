"""Random programs of real torch.distributed calls, and what each must give.

A program is one sequence of steps, of which every rank takes its part in order, so it
cannot deadlock, whether a rank waits at once or later. The values come from a formula;
`expected` works them out with numpy alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

Members = tuple[int, ...]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
KINDS = (
    *ROOTED, "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier",
    "exchange", "send", "send", "send",
)  # fmt: skip
DTYPES = ("float32", "float64", "int32", "int64")
OPS = ("sum", "max", "min", "product")
FOLD = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


@dataclass(frozen=True)
class Step:
    """One transfer. `root` is a rank, or a message's source; `peer` its destination.

    `rows[i][j]` elements go from the i-th to the j-th member of an all_to_all; those of
    `later` do not wait at once.
    """

    number: int
    kind: str
    members: Members
    root: int
    peer: int
    size: int
    dtype: str
    op: str
    rows: tuple[tuple[int, ...], ...]
    later: Members
    tag: int = 0


@dataclass(frozen=True)
class Fault:
    """What one rank does wrong at one step."""

    number: int
    rank: int
    what: str


def subgroups(rng: random.Random, world_size: int, count: int) -> list[Members]:
    """Groups for a batch of programs; the first is the world."""
    world = tuple(range(world_size))
    sizes = [rng.randint(2, world_size) for _ in range(count)]
    return [world, *(tuple(sorted(rng.sample(world, size))) for size in sizes)]


def program(rng: random.Random, groups: Sequence[Members], length: int) -> list[Step]:
    """A correct program."""
    return [_step(rng, number, rng.choice(groups)) for number in range(length)]


def _step(rng: random.Random, number: int, members: Members) -> Step:
    root, peer = rng.sample(members, 2)
    return Step(
        number=number,
        kind=rng.choice(KINDS),
        members=members,
        root=root,
        peer=peer,
        size=rng.choice((1, 2, 5, 64, 700)),
        dtype=rng.choice(DTYPES),
        op=rng.choice(OPS),
        rows=tuple(tuple(rng.randrange(4) for _ in members) for _ in members),
        later=tuple(rank for rank in members if rng.random() < 0.4),
        tag=rng.choice((0, 0, 3)),
    )


def takes_part(step: Step, rank: int) -> bool:
    """Whether a rank has a part in a step."""
    return rank in ((step.root, step.peer) if step.kind == "send" else step.members)


def data(step: Step, rank: int, size: int) -> np.ndarray[Any, Any]:
    """What a rank hands over: small whole numbers, so that sums are exact."""
    values = (np.arange(size) * 3 + step.number * 7 + rank * 11) % 13
    return values.astype(step.dtype)


# What must come out.


def expected(step: Step, rank: int) -> list[float] | None:
    """What a step leaves on a rank; None where that is nothing, or unspecified."""
    if step.kind == "send":
        got = data(step, step.root, step.size) if rank == step.peer else None
    else:
        got = _EXPECTED[step.kind](step, rank, step.members.index(rank))
    return None if got is None else got.astype(float).tolist()


def _folded(step: Step, size: int) -> Any:
    return FOLD[step.op].reduce([data(step, rank, size) for rank in step.members])


def _joined(step: Step) -> Any:
    return np.concatenate([data(step, rank, step.size) for rank in step.members])


def _scattered(values: Any, step: Step, place: int) -> Any:
    return values[place * step.size : (place + 1) * step.size]


def _exchanged(step: Step, place: int) -> Any:
    parts = []
    for i, rank in enumerate(step.members):
        start = sum(step.rows[i][:place])
        sent = data(step, rank, sum(step.rows[i]))
        parts.append(sent[start : start + step.rows[i][place]])
    return np.concatenate(parts)


_EXPECTED: Mapping[str, Any] = {
    "barrier": lambda s, r, i: None,
    "broadcast": lambda s, r, i: data(s, s.root, s.size),
    "all_reduce": lambda s, r, i: _folded(s, s.size),
    "reduce": lambda s, r, i: _folded(s, s.size) if r == s.root else None,
    "all_gather": lambda s, r, i: _joined(s),
    "gather": lambda s, r, i: _joined(s) if r == s.root else None,
    "scatter": lambda s, r, i: _scattered(
        data(s, s.root, s.size * len(s.members)), s, i
    ),
    "reduce_scatter": lambda s, r, i: _scattered(
        _folded(s, s.size * len(s.members)), s, i
    ),
    "all_to_all": lambda s, r, i: _exchanged(s, i),
    "exchange": lambda s, r, i: data(s, s.members[i - 1], s.size),
}


# What ranks do.


def play_all(
    programs: Sequence[Sequence[Step]],
    groups: Sequence[Members],
    fault: Fault | None = None,
) -> list[list[tuple[int, list[float] | None]]]:
    """On a rank: play each program, and return what each of its steps left."""
    made = {groups[0]: dist.group.WORLD}
    for members in groups[1:]:
        if members not in made:
            made[members] = dist.new_group(list(members))
    results = [_play(steps, made, fault) for steps in programs]
    dist.barrier()
    rank = dist.get_rank()
    for members in list(made)[1:]:
        if rank in members:
            dist.destroy_process_group(made[members])
    return results


def _play(
    steps: Sequence[Step], groups: Mapping[Members, Any], fault: Fault | None
) -> list[tuple[int, list[float] | None]]:
    rank, outputs, pending = dist.get_rank(), [], []
    for step in steps:
        if not takes_part(step, rank):
            continue
        mine = step
        if fault is not None and (step.number, rank) == (fault.number, fault.rank):
            changed = spoil(step, fault)
            if changed is None:
                continue
            mine = changed
        out, works = _ISSUE[mine.kind](mine, rank, groups[mine.members])
        outputs.append((step.number, out))
        pending += [work for work in works if work is not None]
        if rank not in step.later or len(pending) > 3:
            while pending:
                pending.pop().wait()
    for work in pending:
        work.wait()
    return [
        (number, None if out is None else torch.cat(list(out)).double().tolist())
        for number, out in outputs
    ]


def _tensor(step: Step, rank: int, size: int) -> torch.Tensor:
    return torch.from_numpy(data(step, rank, size))


def _empty(step: Step, size: int) -> torch.Tensor:
    return torch.full((size,), 99, dtype=getattr(torch, step.dtype))


def _op(step: Step) -> Any:
    return getattr(dist.ReduceOp, step.op.upper())


def _barrier(step: Step, rank: int, group: Any) -> Any:
    return None, [dist.barrier(group, async_op=True)]


def _broadcast(step: Step, rank: int, group: Any) -> Any:
    is_root = rank == step.root
    out = _tensor(step, rank, step.size) if is_root else _empty(step, step.size)
    return [out], [dist.broadcast(out, step.root, group, async_op=True)]


def _all_reduce(step: Step, rank: int, group: Any) -> Any:
    out = _tensor(step, rank, step.size)
    return [out], [dist.all_reduce(out, _op(step), group, async_op=True)]


def _reduce(step: Step, rank: int, group: Any) -> Any:
    out = _tensor(step, rank, step.size)
    work = dist.reduce(out, step.root, _op(step), group, async_op=True)
    return [out] if rank == step.root else None, [work]


def _all_gather(step: Step, rank: int, group: Any) -> Any:
    out = [_empty(step, step.size) for _ in step.members]
    mine = _tensor(step, rank, step.size)
    return out, [dist.all_gather(out, mine, group, async_op=True)]


def _gather(step: Step, rank: int, group: Any) -> Any:
    is_root = rank == step.root
    out = [_empty(step, step.size) for _ in step.members] if is_root else None
    mine = _tensor(step, rank, step.size)
    return out, [dist.gather(mine, out, step.root, group, async_op=True)]


def _scatter(step: Step, rank: int, group: Any) -> Any:
    out, pieces = _empty(step, step.size), None
    if rank == step.root:
        whole = _tensor(step, rank, step.size * len(step.members))
        pieces = list(whole.split(step.size))
    return [out], [dist.scatter(out, pieces, step.root, group, async_op=True)]


def _reduce_scatter(step: Step, rank: int, group: Any) -> Any:
    out = _empty(step, step.size)
    whole = _tensor(step, rank, step.size * len(step.members))
    pieces = list(whole.split(step.size))
    return [out], [dist.reduce_scatter(out, pieces, _op(step), group, async_op=True)]


def _all_to_all(step: Step, rank: int, group: Any) -> Any:
    place = step.members.index(rank)
    send, recv = list(step.rows[place]), [row[place] for row in step.rows]
    out, mine = _empty(step, sum(recv)), _tensor(step, rank, sum(send))
    work = dist.all_to_all_single(out, mine, recv, send, group, async_op=True)
    return [out], [work]


def _exchange(step: Step, rank: int, group: Any) -> Any:
    """A ring: to the next member, from the one before, as one batch."""
    place, out = step.members.index(rank), _empty(step, step.size)
    after = step.members[(place + 1) % len(step.members)]
    mine = _tensor(step, rank, step.size)
    ops = [
        dist.P2POp(dist.isend, mine, after, group),
        dist.P2POp(dist.irecv, out, step.members[place - 1], group),
    ]
    return [out], dist.batch_isend_irecv(ops)


def _send(step: Step, rank: int, group: Any) -> Any:
    if rank == step.root:
        mine = _tensor(step, rank, step.size)
        return None, [dist.isend(mine, step.peer, group, step.tag)]
    out = _empty(step, step.size)
    if rank in step.later:
        return [out], [dist.irecv(out, step.root, group, step.tag)]
    dist.recv(out, step.root, group, step.tag)
    return [out], []


_ISSUE: Mapping[str, Any] = {
    "barrier": _barrier,
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "exchange": _exchange,
    "send": _send,
}

# Faults.

WHATS = ("size", "dtype", "kind", "root", "skip", "leave", "raise", "die")
SIZED = (
    *ROOTED, "all_reduce", "all_gather", "reduce_scatter", "send",
)  # fmt: skip
_FITS = {
    "size": lambda step: step.kind in SIZED,
    "dtype": lambda step: step.kind in SIZED,
    "kind": lambda step: step.kind not in ("send", "exchange"),
    "root": lambda step: step.kind in ROOTED,
}


class Leave(Exception):
    """A rank goes without a word: it returns from the middle of its program."""


def random_fault(rng: random.Random, steps: Sequence[Step], what: str) -> Fault | None:
    """A fault of that kind somewhere in the program; None where none fits."""
    fits = _FITS.get(what, lambda step: True)
    places = [
        (step.number, rank)
        for step in steps
        if fits(step)
        for rank in step.members
        if takes_part(step, rank)
    ]
    return Fault(*rng.choice(places), what) if places else None


def spoil(step: Step, fault: Fault) -> Step | None:
    """The step as the faulty rank takes it; None to leave it out."""
    other = {
        "float32": "int64",
        "int64": "float32",
        "float64": "int32",
        "int32": "float64",
    }
    match fault.what:
        case "size":
            return replace(step, size=step.size + 3)
        case "dtype":
            return replace(step, dtype=other[step.dtype])
        case "kind":
            kind = "all_reduce" if step.kind == "barrier" else "barrier"
            return replace(step, kind=kind)
        case "root":
            root = next(rank for rank in step.members if rank != step.root)
            return replace(step, root=root)
        case "leave":
            raise Leave
        case "raise":
            raise ValueError(f"on purpose, at step {step.number}")
        case "die":
            os._exit(9)
    return None


def play_or_leave(
    programs: Sequence[Sequence[Step]], groups: Sequence[Members], fault: Fault
) -> object:
    """Play with a fault; a rank that leaves returns as if it were done."""
    try:
        return play_all(programs, groups, fault)
    except Leave:
        return None
