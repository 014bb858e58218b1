"""Refuses a Program that cannot be given other times, and says why.

A run, `load` and a schedule give whole Programs; one written by hand may lack anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import cast, get_args

from labkit.errors import UsageError
from labkit.record.events import Kind
from labkit.record.program import (
    Alloc,
    Comm,
    Event,
    Free,
    HostRead,
    Mark,
    Moment,
    Program,
    Span,
    Wait,
    Work,
)
from labkit.replay.machine import Machine
from labkit.replay.prices import is_stretch

# What must be a whole number.
_WHOLE: dict[type, tuple[str, ...]] = {
    Work: ("lane", "stream", "seq"),
    Comm: ("lane", "stream", "seq", "id", "group_seq", "tag", "pair_seq"),
    Wait: ("lane", "stream", "seq", "target"),
    Mark: ("lane", "stream", "seq", "id"),
    HostRead: ("lane", "stream", "seq"),
    Alloc: ("seq",),
    Free: ("seq",),
    Span: ("lane", "seq", "id", "last_seq"),
    Moment: ("lane", "seq"),
}
_KINDS: tuple[str, ...] = get_args(Kind)
# There may be a million of these.
_PLACES_OF_WORK = itemgetter(*map(Work._fields.index, _WHOLE[Work]))
_AGAIN = "Record again, or mend the plan"


def require_asked(machine: object, compute: object) -> None:
    """Hold that it is a machine whose times are asked for, and a way to time compute.

    Raises:
        UsageError: It is none.
    """
    if isinstance(machine, type) or not hasattr(machine, "launch_s"):
        raise UsageError(
            "a replay takes the times of a machine; got "
            f'{machine!r:.80}. Name one, as in "dgx-h100", or make one: AlphaBeta()'
        )
    if compute not in ("by cost", "as measured"):
        raise UsageError(
            'compute is timed "by cost" or "as measured"; got '
            f"{compute!r:.80}. Leave it out to time every operation by its cost"
        )


def require_replayable(
    program: Program, machine: Machine, *, keeps_stretches: bool
) -> None:
    """Hold that another run, or another machine, would repeat the Program.

    Args:
        program: What is to be given other times.
        machine: Whose times: for the message.
        keeps_stretches: Whether stretches of compute, of which only times are known,
            keep these.

    Raises:
        UsageError: It is no whole Program, or depends on what it does not hold.
    """
    _check_ranks(program)
    _check_header(program)
    for rank, events in zip(program.header.ranks, program.events, strict=True):
        _check_numbers(rank, events)
    if program.header.level == "comm" and not keeps_stretches:
        _check_costs(program, machine)


def _check_ranks(program: Program) -> None:
    ranks = program.header.ranks
    if not ranks or len(ranks) != len(program.events):
        raise UsageError(
            f"a replay needs the events of at least one rank; the header has "
            f"{len(ranks)} ranks, and there are events of {len(program.events)}. "
            "Record a run: cluster.run(fn).record"
        )
    if len(set(ranks)) < len(ranks):
        raise UsageError(
            f"each rank must be there once; the header has {ranks}. {_AGAIN}"
        )


def _check_header(program: Program) -> None:
    header = program.header
    for rank, dropped in zip(header.ranks, header.dropped, strict=False):
        if dropped:
            raise UsageError(
                f"to be replayed, a record must have all its events; on rank {rank} "
                f"{dropped} found no room. Record fewer steps"
            )
    if header.timing_dependent:
        raise UsageError(
            "to be replayed, a program must do the same whatever the times; this one "
            f"need not: {header.timing_dependent}. Wait for what it looks for"
        )
    if header.stream_ordered and header.device == "cpu":
        raise UsageError(
            "a program that is ordered by CUDA streams must have been recorded on a "
            f"GPU; this record was made on a CPU, where they order nothing: "
            f"{header.stream_ordered}. Record it on a GPU, or use labkit's streams"
        )


def _check_numbers(rank: int, events: Sequence[Event]) -> None:
    """Hold that every event is the rank's, and says where it belongs."""
    for event, name in _faults(rank, events):
        raise UsageError(
            f"an event's rank must be that of its list, its places and numbers whole, "
            f"and its kind known; rank {rank} has a {type(event).__name__} with "
            f"{name} = {getattr(event, name)!r}. {_AGAIN}"
        )


def _faults(rank: int, events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
    """What is wrong: an event, and which of its fields."""
    for event in events if set(map(itemgetter(0), events)) - {rank} else ():
        if event.rank != rank:
            yield event, "rank"
    works = [event for event in events if type(event) is Work]
    places = chain.from_iterable(map(_PLACES_OF_WORK, works))
    is_well = set(map(type, places)) <= {int}
    for event in [e for e in events if type(e) is not Work] if is_well else events:
        for name in _WHOLE[type(event)]:
            if type(getattr(event, name)) is not int:
                yield event, name
        if type(event) is Comm:
            yield from ((event, name) for name in _strange(event))


def _strange(comm: Comm) -> Iterator[str]:
    """Fields of a transfer by which no others can be told that it needs."""
    if comm.kind not in _KINDS:
        yield "kind"
    if comm.peer is not None and type(comm.peer) is not int:
        yield "peer"
    for name in ("send_splits", "recv_splits"):
        splits: object = getattr(comm, name)
        if splits is not None and not _are_counts(splits):
            yield name


def _are_counts(splits: object) -> bool:
    return isinstance(splits, tuple) and all(
        type(part) is int and part >= 0 for part in cast("tuple[object, ...]", splits)
    )


def _check_costs(program: Program, machine: Machine) -> None:
    """Refuse to give stretches of compute, of which only times are known, a cost."""
    for event in program:
        if type(event) is Work and is_stretch(event):
            length_s = (event.end_s or 0.0) - (event.start_s or 0.0)
            raise UsageError(
                f"to be timed on {machine.name!r}, work needs its costs; this record "
                f'has level "comm": rank {event.rank} computed for {length_s:.3g} s, '
                'which does not say how much. Record the operations (record="work", or '
                'cluster.dry), or keep those times: compute="as measured"'
            )
