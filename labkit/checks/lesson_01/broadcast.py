"""Exercise 1.1: one rank's array on all ranks, in as few rounds as can be."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage
from labkit.checks.lesson_01 import case as cases
from labkit.checks.lesson_01.case import Came, Case
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.comm import collectives
from labkit.record.events import CommStart, WaitEnd

STALE = 99


def broadcast_on_rank(
    group: dist.ProcessGroup, broadcast_tree: Answer, case: Case
) -> Came:
    """What each rank runs: only the root has the array."""
    rank, root = dist.get_rank(group), case.root
    empty_N = torch.full((case.num_elements,), STALE, dtype=case.dtype)
    x_N = case.array(rank) if rank == root else empty_N
    return cases.on_rank(group, broadcast_tree, case, x_N, root)


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Every size, with roots other than 0 among them."""
    grid = cases.grid(seed, rooted=True)
    return cases.play_all(answer, stage, grid, broadcast_on_rank, faults_of, seed)


def faults_of(case: Case, played: Played) -> Iterator[Fault]:
    """Values everywhere, p - 1 messages, none of them from an idle root alone."""
    yield from cases.unless_failed(case, played, _faults, schedule=True)


def _faults(case: Case, played: Played) -> Iterator[Fault]:
    values = _values(case, played)
    if values is not None:
        yield Fault(Property.VALUES, case.name, values)
    traffic = messages.collectives(played.record) or _traffic(case, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, case.name, traffic)
    took, levels = verify.rounds(played.record), _levels(case)
    if took > levels:
        message = (
            f"takes {plural(took, 'round')}, {levels} are enough for {case.size} "
            "ranks: let every rank that has x send it in each round"
        )
        yield Fault(Property.SCHEDULE, case.name, message)


def _levels(case: Case) -> int:
    """ceil(log2 p): each round can double the ranks that know."""
    return (case.size - 1).bit_length()


def _values(case: Case, played: Played) -> str | None:
    assert case.root is not None
    for rank, came in enumerate(played.results):
        wrong = verify.differ("x_N", came.x_N, case.array(case.root))
        if wrong is None:
            continue
        early = _sent_too_early(case, played.record)
        if early is not None:
            return f"{early}; rank {rank}: {wrong}"
        if f"is {STALE}" in wrong:
            wrong += "; it holds what it held before the call"
        return f"rank {rank}, root {case.root}: {wrong}"
    return None


def _sent_too_early(case: Case, record: Record) -> str | None:
    """The message where a rank passed on what it had not received."""
    for rank, events in enumerate(record):
        received: set[int] = set()
        ended = rank == case.root
        for event in events:
            if isinstance(event, CommStart) and event.kind == "recv":
                received.add(event.id)
            elif isinstance(event, WaitEnd) and event.target in received:
                ended = True
            elif isinstance(event, CommStart) and event.kind == "send" and not ended:
                return (
                    f"rank {rank} sent before it had received: only the root, rank "
                    f"{case.root}, has x at first; count places from the root"
                )
    return None


def _traffic(case: Case, record: Record) -> str | None:
    left = messages.sent(record)
    total = sum(each.messages for each in left)
    if total > case.size - 1:
        return (
            f"{total} messages; {case.size - 1} are enough for {case.size} ranks: each "
            "rank but the root receives once"
        )
    bound = (case.size - 1) * case.num_elements * case.item_bytes
    payload = sum(each.payload_bytes for each in left)
    if payload > bound:
        return f"{payload} bytes sent; {bound} are enough: x once to each other rank"
    busiest = max(range(case.size), key=lambda rank: left[rank].messages)
    if left[busiest].messages > _levels(case):
        return (
            f"the busiest rank, {busiest}, sent {left[busiest].messages} messages; a "
            f"tree's sends at most {_levels(case)}: let others pass on what they know"
        )
    return None


EXERCISE = Exercise(
    id="1.1",
    title="Broadcast by tree",
    signature="broadcast_tree(x_N, root, group)",
    points={Property.VALUES: 4, Property.TRAFFIC: 3, Property.SCHEDULE: 3},
    hints=(
        "After the first round two ranks can know x. How many can after the second, if "
        "everybody who knows it tells somebody? After round k?",
        "Number the ranks from the root: place = (rank - root) % p. The root is then "
        "place 0, whoever it is; turn a place back into a rank where you send.",
        "In round k, the places below 2**k know x. Each sends it to place + 2**k, if "
        "there is such a place; the places from 2**k up to 2**(k + 1) receive.",
    ),
    judge=judge,
    reference=collectives.broadcast_tree,
)
