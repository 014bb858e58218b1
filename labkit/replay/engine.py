"""The one engine that gives times to a Program.

Before: what every rank does, in which order, and what waits for what. After: the same
events with the times of a machine, all ranks on one clock from 0. The same bytes every
time, in whatever order the ranks are given.

    matching   the ranks' parts of each transfer       labkit.replay.transfers
    prices     what each thing takes on the machine    labkit.replay.prices
    lanes      host threads issue, in order            labkit.replay.lanes
    streams    devices do, in order                    labkit.replay.streams
    network    when transfers begin and end            labkit.replay.transit, .links

The rules are those of [Note: streams] in `labkit.record.program`. Collectives run one
after another on the queue of their group, each when its last rank has come, and end on
all ranks together. A message begins when both ends have come and those before it, from
the same sender to the same receiver, have ended. Messages wait for no collective, nor
for those of the other direction.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from labkit.record.program import Header, Program
from labkit.replay.circles import refuse_circle
from labkit.replay.lanes import Lane, lanes_of
from labkit.replay.links import Links
from labkit.replay.machine import Machine
from labkit.replay.prices import Prices
from labkit.replay.refusal import require_asked, require_replayable
from labkit.replay.retimed import retimed
from labkit.replay.streams import Rank
from labkit.replay.transfers import Matching, Transfer
from labkit.replay.transit import FreeNetwork, SharedNetwork

Compute: TypeAlias = Literal["by cost", "as measured"]


def replay(
    program: Program, machine: Machine, *, compute: Compute = "by cost"
) -> Program:
    """Give a Program the times of a machine.

    Args:
        program: A record, a schedule or a plan.
        machine: Whose times.
        compute: "by cost": operations take what the machine says. "as measured": in a
            record of level "comm", which has no costs, stretches of compute take what
            they took, on the lane that computed.

    Returns:
        The same events, traffic and races, with times; `header.source` is "replayed".

    Raises:
        UsageError: The record is incomplete, or depends on what it does not hold; a
            number of it or of the machine is none; waits form a circle.
    """
    with _collector_paused():
        settled = settle(program, machine, compute=compute)
        has_times = program.header.has_times
        return replace(
            program,
            header=_header(program.header, machine),
            events=tuple(
                retimed(settled.ranks[rank], settled.lanes[rank], has_times=has_times)
                for rank in program.header.ranks
            ),
        )


@contextmanager
def _collector_paused() -> Generator[None]:
    """Spare the garbage collector to look through a million tuples again and again.

    None of what is made here becomes garbage before the end; to look takes longer than
    all the rest.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Settled:
    """When everything happens: what replay writes down, and what led to it.

    Attributes:
        ranks: By number: all their times are known.
        lanes: Of each rank.
        transfers: In their order; all have ended.
    """

    ranks: dict[int, Rank]
    lanes: dict[int, list[Lane]]
    transfers: list[Transfer]


def settle(program: Program, machine: Machine, *, compute: Compute) -> Settled:
    """Find all times of a Program on a machine. See `replay`.

    Raises:
        UsageError: As `replay` does.
    """
    require_asked(machine, compute)
    require_replayable(program, machine, keeps_stretches=compute == "as measured")
    matching = Matching(program)
    has_stretches = compute == "as measured" and program.header.level == "comm"
    prices = Prices(machine, as_measured=has_stretches)
    capacities = prices.price(matching.transfers)
    has_fixed_order = all(queue.is_fixed for queue in matching.queues.values())
    if capacities or not has_fixed_order:
        network = SharedNetwork(matching.transfers, Links(capacities))
    else:
        network = FreeNetwork()
    ranks = {
        number: Rank(number, program.of(number), transfers, prices, network)
        for number, transfers in matching.of_rank.items()
    }
    lanes_by_rank = {number: lanes_of(rank) for number, rank in ranks.items()}
    lanes = [lane for lanes in lanes_by_rank.values() for lane in lanes]
    network.awake.extend(lanes)
    network.run()
    if not _is_done(lanes, matching):
        refuse_circle(lanes, machine.name)
    return Settled(ranks, lanes_by_rank, matching.transfers)


def _is_done(lanes: list[Lane], matching: Matching) -> bool:
    streams = [s for lane in lanes for s in lane.rank.streams.values()]
    return (
        all(lane.at == len(lane.positions) for lane in lanes)
        and all(transfer.ended_s is not None for transfer in matching.transfers)
        and not any(stream.given for stream in streams)
    )


def _header(header: Header, machine: Machine) -> Header:
    return replace(header, source="replayed", hardware=machine.name, clocks=())
