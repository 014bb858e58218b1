"""Ranks in a simulation: programs that are right, one fault in them, and what it does.

A program is written as one sequence of transfers, of which each rank takes its part in
order, so it cannot deadlock; waits come at once, later, or never. `Machine` runs it
with ranks in random order and tells the truth about it, by rules of its own.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from labkit.record.events import (
    P2P,
    CommEnd,
    Event,
    Kind,
    Site,
    WaitEnd,
    WaitStart,
)
from labkit.record.recorder import Recorder
from labkit.runtime.diagnosis import Ledger

WORLD = "world"
ANY_TAG = 9
COLLECTIVES: tuple[Kind, ...] = (
    "broadcast", "reduce", "all_reduce", "gather", "scatter", "all_gather",
    "reduce_scatter", "all_to_all", "barrier",
)  # fmt: skip
ROOTED: tuple[Kind, ...] = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("reduce", "all_reduce", "reduce_scatter")
How = Literal["now", "later", "never", "unseen"]


@dataclass(frozen=True)
class Op:
    """A rank's part of transfer `id`. `how` it waits: "unseen" is in C++, like DDP."""

    id: int
    kind: Kind
    group: str = WORLD
    peer: int | None = None
    tag: int = 0
    shapes: tuple[tuple[int, ...], ...] = ((4,),)
    dtype: str = "float32"
    op: str | None = None
    send_splits: tuple[int, ...] | None = None
    recv_splits: tuple[int, ...] | None = None
    how: How = "now"
    eager: bool = False  # ends as soon as the kind allows, not with the last rank
    makes: tuple[str, tuple[int, ...]] | None = None
    line: int = 0


@dataclass(frozen=True)
class WaitFor:
    """The rank waits for its part of transfer `id`."""

    id: int


Step = Op | WaitFor


@dataclass
class Program:
    """What each rank does, in order."""

    world_size: int
    steps: list[list[Step]]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rendezvous: bool = False

    def may_be_soft(self) -> bool:
        """Whether a buffer may let some call end before its peers come."""
        ops = [step for steps in self.steps for step in steps if isinstance(step, Op)]
        return any(
            (op.kind == "send" and not self.rendezvous)
            or op.kind in ROOTED
            or op.kind in ("all_to_all", "new_group")
            or (op.kind != "barrier" and numel(op) == 0)
            for op in ops
        )


def numel(op: Op) -> int:
    """Elements handed over."""
    return sum(prod(shape) for shape in op.shapes)


class Writer:
    """Writes a random right program."""

    def __init__(
        self,
        rng: random.Random,
        *,
        any_source: bool = False,
        leaning: bool = False,
        unseen: bool = False,
    ) -> None:
        self.rng = rng
        self.world_size = rng.randint(2, 5)
        self.rendezvous = rng.random() < 0.5
        self.steps: list[list[Step]] = [[] for _ in range(self.world_size)]
        self.groups = {WORLD: tuple(range(self.world_size))}
        self.num = 0
        self.any_source = any_source
        self.leaning = leaning
        self.hows: list[How] = ["now", "now", "later", "never"]
        if unseen:
            self.hows.append("unseen")

    def write(self, num_transfers: int) -> Program:
        """A program of about so many transfers."""
        writers: list[Callable[[], None]] = [
            self.collective, self.collective, self.collective, self.message,
            self.message, self.exchange, self.subgroup,
        ]  # fmt: skip
        if self.any_source:
            writers.append(self.gather_from_any)
        if self.leaning:
            writers.append(self.lean_on_buffer)
        for _ in range(num_transfers):
            self.rng.choice(writers)()
        program = Program(self.world_size, self.steps, self.groups, self.rendezvous)
        for steps in program.steps:
            self._put_waits(steps)
        return program

    def _put_waits(self, steps: list[Step]) -> None:
        for op in [op for op in steps if isinstance(op, Op) and op.how == "later"]:
            at = self.rng.randint(steps.index(op) + 1, len(steps))
            steps.insert(at, WaitFor(op.id))

    def _put(self, rank: int, op: Op) -> None:
        self.steps[rank].append(replace(op, line=len(self.steps[rank]) + 1))

    def _how(self) -> How:
        return self.rng.choice(self.hows)

    def _some_group(self, least: int = 1) -> str:
        names = [uid for uid, ranks in self.groups.items() if len(ranks) >= least]
        return self.rng.choice(names)

    def _next(self) -> int:
        self.num += 1
        return self.num

    def _payload(self) -> tuple[tuple[tuple[int, ...], ...], str]:
        shape = self.rng.choice([(), (0,), (4,), (2, 3), (6,), (100,)])
        return (shape,), self.rng.choice(["float32", "bfloat16", "int64"])

    def collective(self) -> None:
        """Every rank of a group makes one call, with shapes that agree in number."""
        rng, kind = self.rng, self.rng.choice(COLLECTIVES)
        uid = self._some_group()
        members = self.groups[uid]
        shapes, dtype = self._payload() if kind != "barrier" else ((), "")
        root = rng.choice(members) if kind in ROOTED else None
        reduction = rng.choice(["sum", "max"]) if kind in REDUCING else None
        base = Op(self._next(), kind, uid, root, 0, shapes, dtype, reduction)
        size = range(len(members))
        splits = [[rng.randint(0, 2) for _ in size] for _ in size]
        for i, rank in enumerate(members):
            op = replace(base, how=self._how(), eager=rng.random() < 0.5)
            if kind == "all_to_all":
                sends, recvs = tuple(splits[i]), tuple(splits[j][i] for j in size)
                op = replace(
                    op, shapes=((sum(sends),),), send_splits=sends, recv_splits=recvs
                )
            elif shapes == ((6,),) and rng.random() < 0.3:
                op = replace(op, shapes=((2, 3),))
            self._put(rank, op)

    def subgroup(self) -> None:
        """All ranks make a group of some of them."""
        size = self.rng.randint(1, self.world_size)
        ranks = tuple(sorted(self.rng.sample(range(self.world_size), size)))
        uid = f"g{len(self.groups)}"
        self.groups[uid] = ranks
        op = Op(
            self._next(), "new_group", shapes=(ranks,), dtype="", makes=(uid, ranks)
        )
        for rank in range(self.world_size):
            self._put(rank, replace(op, eager=self.rng.random() < 0.5))

    def message(self) -> None:
        """One rank sends, one receives."""
        self._message(*self._pair(), self._how(), self._how())

    def _pair(self) -> tuple[str, int, int]:
        uid = self._some_group(least=2)
        source, to = self.rng.sample(self.groups[uid], 2)
        return uid, source, to

    def _message(
        self, uid: str, source: int, to: int, send_how: How, recv_how: How
    ) -> None:
        shapes, dtype = self._payload()
        tag = self.rng.choice([0, 0, 1, 2])
        base = Op(self._next(), "send", uid, to, tag, shapes, dtype, how=send_how)
        self._put(source, base)
        self._put(to, replace(base, kind="recv", peer=source, how=recv_how))

    def exchange(self) -> None:
        """Two ranks send to each other and then wait; where sends buffer, at once."""
        uid, one, other = self._pair()
        if self.rendezvous or self.rng.random() < 0.5:
            self._message(uid, one, other, "later", "later")
            self._message(uid, other, one, "later", "later")
            return
        base = Op(self._next(), "send", uid, other)
        back = replace(base, id=self._next(), peer=one)
        self._put(one, base)
        self._put(other, back)
        self._put(other, replace(base, kind="recv", peer=one))
        self._put(one, replace(back, kind="recv", peer=other))

    def lean_on_buffer(self) -> None:
        """One rank goes on from a call whose peer comes only after its next message."""
        first, last = self.rng.sample(range(self.world_size), 2)
        base = self._leaning_op(first, last)
        note = Op(self._next(), "send", WORLD, last, 4)
        ranks = range(self.world_size)
        splits = [[int((i, j) != (last, first)) for j in ranks] for i in ranks]
        for rank in ranks:
            op = base
            if base.kind == "all_to_all":
                sends, recvs = tuple(splits[rank]), tuple(row[rank] for row in splits)
                op = replace(
                    op, shapes=((sum(sends),),), send_splits=sends, recv_splits=recvs
                )
            if rank == last:
                self._put(last, replace(note, kind="recv", peer=first))
            self._put(rank, op)
            if rank == first:
                self._put(first, note)

    def _leaning_op(self, first: int, last: int) -> Op:
        """A call of all ranks that `first` may end before `last` makes it."""
        base = Op(self._next(), "all_reduce", eager=True)
        others = tuple(rank for rank in range(self.world_size) if rank != last)
        uid = f"g{len(self.groups)}"
        group = replace(
            base, kind="new_group", shapes=(others,), dtype="", makes=(uid, others)
        )
        op = self.rng.choice([
            replace(base, kind="broadcast", peer=first),
            replace(base, kind="scatter", peer=first),
            replace(base, kind="reduce", peer=last, op="sum"),
            replace(base, kind="gather", peer=last),
            replace(base, kind="all_to_all"),
            replace(base, kind="all_reduce", op="sum", shapes=((0,),)),
            group,
        ])  # fmt: skip
        if op.makes is not None:
            self.groups[uid] = others
        return op

    def gather_from_any(self) -> None:
        """A rank receives from whoever sends; a barrier keeps the next such apart."""
        to = self.rng.randrange(self.world_size)
        senders = [rank for rank in range(self.world_size) if rank != to]
        senders = self.rng.choices(senders, k=self.rng.randint(1, 3))
        is_named = self.rng.random() < 0.3
        for source in senders:
            op = Op(self._next(), "send", WORLD, to, ANY_TAG, how=self._how())
            self._put(source, op)
            peer = source if is_named else None
            self._put(to, replace(op, kind="recv", peer=peer, how="now"))
        barrier = Op(self._next(), "barrier", shapes=(), dtype="")
        for rank in range(self.world_size):
            self._put(rank, barrier)


@dataclass
class Truth:
    """What really happened, once nothing moves any more."""

    blocked: set[int]
    has_misfit: bool
    has_leftover: bool

    def is_clean(self) -> bool:
        """Whether the program was right."""
        return not (self.blocked or self.has_misfit or self.has_leftover)


@dataclass
class Part:
    """One rank's part of a transfer under way."""

    rank: int
    op: Op
    comm_id: int
    match: Part | None = None
    round: dict[int, Part] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    ended: bool = False


class Machine:
    """Runs a program with ranks in random order, and tells a ledger of it, late."""

    def __init__(
        self, program: Program, rng: random.Random, look: Callable[[Ledger], None]
    ) -> None:
        self.program = program
        self.rng = rng
        self.look = look
        size = program.world_size
        self.ledger = Ledger(size, rendezvous=program.rendezvous)
        self.recorders = [Recorder() for _ in range(size)]
        self.outbox: list[deque[Event]] = [deque() for _ in range(size)]
        self.groups: list[dict[str, tuple[int, ...]]] = [{} for _ in range(size)]
        self.rounds: dict[tuple[str, int], dict[int, Part]] = defaultdict(dict)
        self.counts: dict[tuple[str, int], int] = defaultdict(int)
        self.boxes: dict[tuple[str, int, int], list[Part]] = defaultdict(list)
        self.parts: list[dict[int, Part]] = [{} for _ in range(size)]
        self.blocked: dict[int, tuple[Part, bool]] = {}
        self.at = [0] * size
        self.told: set[int] = set()
        self.has_misfit = False
        for rank in range(size):
            self._join(rank, WORLD, tuple(range(size)))

    def run(self) -> Truth:
        """Run until nothing moves, tell the ledger everything, and say the truth."""
        self.ledger.start(range(self.program.world_size))
        while movable := [r for r in range(self.program.world_size) if self._moves(r)]:
            self._step(self.rng.choice(movable))
            if self.rng.random() < 0.5:
                self._tell_some(self.rng.randrange(self.program.world_size))
        while any(self.outbox) or self._untold():
            self._tell_some(self.rng.randrange(self.program.world_size))
        left = any(self.boxes.values()) or any(
            len(calls) < len(next(iter(calls.values())).members)
            for calls in self.rounds.values()
        )
        return Truth(self._out(), self.has_misfit, left)

    def _out(self) -> set[int]:
        ranks = range(self.program.world_size)
        return {r for r in ranks if not self._has_returned(r)}

    def _has_returned(self, rank: int) -> bool:
        steps = self.program.steps[rank]
        return self.at[rank] == len(steps) and rank not in self.blocked

    def _untold(self) -> bool:
        ranks = range(self.program.world_size)
        return any(self._has_returned(r) and r not in self.told for r in ranks)

    def _tell_some(self, rank: int) -> None:
        box = self.outbox[rank]
        num = self.rng.randint(0, len(box))
        self.ledger.add(rank, [box.popleft() for _ in range(num)])
        if not box and self._has_returned(rank):
            self.told.add(rank)
            self.ledger.finish(rank)
        self.look(self.ledger)

    def _emit(self, rank: int, event: Event) -> None:
        self.recorders[rank].add(event)
        self.outbox[rank].extend(self.recorders[rank].drain())

    def _join(self, rank: int, uid: str, members: tuple[int, ...]) -> None:
        self.groups[rank][uid] = members
        self.recorders[rank].new_group(uid, members)
        self.outbox[rank].extend(self.recorders[rank].drain())

    def _moves(self, rank: int) -> bool:
        if rank in self.blocked:
            return self._is_over(self.blocked[rank][0])
        return self.at[rank] < len(self.program.steps[rank])

    def _step(self, rank: int) -> None:
        if rank in self.blocked:
            self._unblock(rank)
            return
        if self.rng.random() < 0.1:
            self._end_some(rank)
        step = self.program.steps[rank][self.at[rank]]
        self.at[rank] += 1
        if isinstance(step, WaitFor):
            self._block(rank, self.parts[rank][step.id], is_seen=True)
            return
        part = self._issue(rank, step)
        if step.how in ("now", "unseen"):
            self._block(rank, part, is_seen=step.how == "now")

    def _block(self, rank: int, part: Part, *, is_seen: bool) -> None:
        self.blocked[rank] = part, is_seen
        if is_seen:
            self._emit(rank, WaitStart(part.comm_id, 0, 0.0))

    def _unblock(self, rank: int) -> None:
        part, is_seen = self.blocked.pop(rank)
        part.ended = True
        if is_seen:
            self._emit(rank, WaitEnd(part.comm_id, 0.0, True))
        elif self.rng.random() < 0.5:
            self._emit(rank, CommEnd(part.comm_id, 0.0))
        if part.op.makes is not None and rank in part.op.makes[1]:
            self._join(rank, *part.op.makes)

    def _end_some(self, rank: int) -> None:
        for part in self.parts[rank].values():
            if not part.ended and self._is_over(part):
                part.ended = True
                self._emit(rank, CommEnd(part.comm_id, 0.0))

    def _issue(self, rank: int, op: Op) -> Part:
        recorder = self.recorders[rank]
        comm = recorder.comm(
            op.kind, op.group, peer=op.peer, tag=op.tag, shapes=op.shapes,
            dtype=op.dtype, op=op.op, send_splits=op.send_splits,
            recv_splits=op.recv_splits, site=Site("cell", op.line, "f"),
        )  # fmt: skip
        self.outbox[rank].extend(recorder.drain())
        part = self.parts[rank][op.id] = Part(rank, op, comm.id)
        if op.kind in P2P:
            self._post(part)
        else:
            self._meet(part)
        return part

    def _meet(self, part: Part) -> None:
        uid, rank = part.op.group, part.rank
        part.members = self.groups[rank][uid]
        seq = self.counts[uid, rank]
        self.counts[uid, rank] += 1
        part.round = self.rounds[uid, seq]
        self.has_misfit |= any(misfit(part, other) for other in part.round.values())
        part.round[rank] = part

    def _post(self, part: Part) -> None:
        op, rank = part.op, part.rank
        owner = op.peer if op.kind == "send" else rank
        assert owner is not None
        box = self.boxes[op.group, owner, op.tag]
        for other in box:
            if other.op.kind != op.kind and _accept(part, other):
                box.remove(other)
                part.match, other.match = other, part
                one, two = part.op, other.op
                self.has_misfit |= (one.dtype, numel(one)) != (two.dtype, numel(two))
                return
        box.append(part)

    def _is_over(self, part: Part) -> bool:
        op = part.op
        if op.kind == "send" and not self.program.rendezvous:
            return True
        if op.kind in P2P:
            return part.match is not None
        return part.round.keys() >= needed(part)


def _accept(one: Part, two: Part) -> bool:
    """Whether one of two, a send and a receive for the same rank, is for the other."""
    send, recv = (one, two) if one.op.kind == "send" else (two, one)
    return recv.op.peer in (None, send.rank)


def needed(part: Part) -> set[int]:
    """The members whose data this part cannot end without, or all of them."""
    op, members = part.op, set(part.members)
    if not op.eager or op.kind == "barrier":
        return members
    if op.makes is not None:
        return set(op.makes[1]) if part.rank in op.makes[1] else set()
    if op.kind == "all_to_all":
        assert op.recv_splits is not None
        return {r for r, n in zip(part.members, op.recv_splits, strict=True) if n}
    if numel(op) == 0:
        return set()
    if op.kind in ("broadcast", "scatter"):
        return {op.peer} if op.peer is not None else set()
    if op.kind in ("reduce", "gather"):
        return members if op.peer == part.rank else set()
    return members


def misfit(one: Part, two: Part) -> bool:
    """Whether two calls at the same place of a group differ where they must agree."""
    a, b = one.op, two.op
    if a.kind != b.kind or a.kind == "barrier":
        return a.kind != b.kind
    if a.kind == "new_group":
        return a.shapes != b.shapes
    if (a.peer, a.dtype, a.op) != (b.peer, b.dtype, b.op):
        return True
    if a.send_splits and b.send_splits and a.recv_splits and b.recv_splits:
        i, j = one.members.index(one.rank), one.members.index(two.rank)
        there = a.send_splits[j], a.recv_splits[j]
        return there != (b.recv_splits[i], b.send_splits[i])
    return numel(a) != numel(b)


# One fault in a right program. Each gives the faulty program, or None where the rank
# has no step that it could spoil.

Fault = Callable[[Program, int, random.Random], Program | None]


def _ops(program: Program, rank: int, kinds: Sequence[str] | None = None) -> list[int]:
    return [
        at
        for at, step in enumerate(program.steps[rank])
        if isinstance(step, Op) and (kinds is None or step.kind in kinds)
    ]


def _with(program: Program, rank: int, steps: list[Step]) -> Program:
    kept = {step.id for step in steps if isinstance(step, Op)}
    steps = [s for s in steps if isinstance(s, Op) or s.id in kept]
    every = [*program.steps]
    every[rank] = steps
    return replace(program, steps=every)


def _changing(
    kinds: Sequence[str], change: Callable[[Op, Program, random.Random], Op]
) -> Fault:
    def fault(program: Program, rank: int, rng: random.Random) -> Program | None:
        ops = _ops(program, rank, kinds)
        if not ops:
            return None
        steps = [*program.steps[rank]]
        at = rng.choice(ops)
        step = steps[at]
        assert isinstance(step, Op)
        steps[at] = change(step, program, rng)
        return _with(program, rank, steps)

    return fault


def drop_call(program: Program, rank: int, rng: random.Random) -> Program | None:
    """The rank leaves one call out."""
    ops = [at for at in _ops(program, rank) if _makes_nothing(program, rank, at)]
    if not ops:
        return None
    at = rng.choice(ops)
    steps = program.steps[rank]
    return _with(program, rank, steps[:at] + steps[at + 1 :])


def _makes_nothing(program: Program, rank: int, at: int) -> bool:
    step = program.steps[rank][at]
    return isinstance(step, Op) and step.makes is None


def extra_call(program: Program, rank: int, rng: random.Random) -> Program | None:
    """The rank makes a call more, of a kind that may fit in."""
    at = rng.randint(0, len(program.steps[rank]))
    kind: Kind = rng.choice(["all_reduce", "barrier", "broadcast", "send", "recv"])
    peer = (rank + 1) % program.world_size if kind in P2P else None
    peer = rank if kind == "broadcast" else peer
    how: How = rng.choice(["now", "never"])
    extra = Op(-1, kind, peer=peer, shapes=((),), how=how, line=99)
    steps = program.steps[rank]
    return _with(program, rank, [*steps[:at], extra, *steps[at:]])


def swap_calls(program: Program, rank: int, rng: random.Random) -> Program | None:
    """The rank makes two neighbouring calls in the other order."""
    steps = [*program.steps[rank]]
    ops = set(_ops(program, rank))
    pairs = [at for at in ops if at + 1 in ops and _makes_nothing(program, rank, at)]
    if not pairs:
        return None
    at = rng.choice(pairs)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    return _with(program, rank, steps)


def early_end(program: Program, rank: int, rng: random.Random) -> Program | None:
    """The rank returns before it has made all its calls."""
    ops = _ops(program, rank)
    return _with(program, rank, program.steps[rank][: rng.choice(ops)]) if ops else None


def _other_kind(op: Op, program: Program, rng: random.Random) -> Op:
    kinds: list[Kind] = ["all_reduce", "all_gather", "barrier"]
    kind = rng.choice([kind for kind in kinds if kind != op.kind])
    return replace(op, kind=kind, peer=None)


def _other_root(op: Op, program: Program, rng: random.Random) -> Op:
    return replace(op, peer=rng.choice(program.groups[op.group]))


def _other_size(op: Op, program: Program, rng: random.Random) -> Op:
    return replace(op, shapes=((numel(op) + rng.choice([1, 7]),),))


def _other_peer(op: Op, program: Program, rng: random.Random) -> Op:
    peers = range(program.world_size)
    return replace(op, group=WORLD, peer=rng.choice([p for p in peers if p != op.peer]))


SIZED = (
    "send", "recv", "broadcast", "reduce", "all_reduce", "gather", "scatter",
    "all_gather", "reduce_scatter",
)  # fmt: skip
TYPED = (*SIZED, "all_to_all")

FAULTS: dict[str, Fault] = {
    "dropped call": drop_call,
    "extra call": extra_call,
    "swapped calls": swap_calls,
    "early end": early_end,
    "other size": _changing(SIZED, _other_size),
    "other dtype": _changing(TYPED, lambda op, *_: replace(op, dtype="float16")),
    "other reduction": _changing(REDUCING, lambda op, *_: replace(op, op="min")),
    "other root": _changing(ROOTED, _other_root),
    "other kind": _changing([k for k in COLLECTIVES if k != "barrier"], _other_kind),
    "other peer": _changing(tuple(P2P), _other_peer),
    "other tag": _changing(tuple(P2P), lambda op, *_: replace(op, tag=op.tag + 5)),
}
