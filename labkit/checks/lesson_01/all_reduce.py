"""Exercise 1.3: the whole sum on every rank, in place, round a ring."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage
from labkit.checks.lesson_01 import case as cases
from labkit.checks.lesson_01.case import Came, Case
from labkit.checks.lesson_01.reduce_scatter import (
    MAX_SCRATCH_CHUNKS,
    ring_only,
    scratch_message,
)
from labkit.checks.lesson_01.scratch import peak_bytes
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record
from labkit.comm import collectives
from labkit.comm.collectives import chunks


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Every size and length, then once more with the memory counted."""

    def all_cases() -> Iterator[Case]:
        yield from cases.grid(seed)
        yield cases.measured(seed)

    return cases.play_all(answer, stage, all_cases(), cases.sums, faults_of, seed)


def faults_of(case: Case, played: Played) -> Iterator[Fault]:
    """The sum on each rank, as few bytes as can be, with little scratch."""
    yield from cases.unless_failed(case, played, _faults)


def _faults(case: Case, played: Played) -> Iterator[Fault]:
    wrong = values(case, played)
    if wrong is not None:
        yield Fault(Property.VALUES, case.name, wrong)
    traffic = messages.collectives(played.record) or _traffic(case, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, case.name, traffic)
    if case.level == "work":
        yield from _memory(case, played.record)


def values(case: Case, played: Played) -> str | None:
    """The message where a rank does not hold the sum, with what it looks like."""
    expected = case.total()
    for rank, came in enumerate(played.results):
        wrong = verify.differ("x_N", came.x_N, expected)
        if wrong is not None:
            return f"rank {rank}: {wrong}{_looks_like(case, came)}"
    return None


def _looks_like(case: Case, came: Came) -> str:
    """What the wrong values are, where they are something else than garbage."""
    got, expected = came.x_N.double(), case.total().double()
    if got.shape != expected.shape:
        return ""
    if torch.equal(got * case.size, expected):
        return f"; it is the sum times 1/{case.size}: a sum is not a mean"
    parts, rotated = chunks(got, case.size), chunks(expected, case.size)
    for shift in range(1, case.size):
        if all(
            torch.equal(part, rotated[(number + shift) % case.size])
            for number, part in enumerate(parts)
        ):
            return f"; its chunks are the right ones, rotated by {shift}"
    return ""


def _traffic(case: Case, record: Record) -> str | None:
    size, item = case.size, case.item_bytes
    left = messages.sent(record)
    most_bytes = 2 * (size - 1) * case.longest * item
    for rank, each in enumerate(left):
        if each.messages > 2 * (size - 1):
            return (
                f"rank {rank} sent {each.messages} messages; {2 * (size - 1)} are "
                "enough: p - 1 steps to add, p - 1 to pass on"
            )
        if each.payload_bytes > most_bytes:
            return (
                f"rank {rank} sent {each.payload_bytes} bytes; at most {most_bytes} "
                "are needed, 2 (p - 1) / p of x: send one chunk a step, not the whole"
            )
    return ring_only(case, record)


def _memory(case: Case, record: Record) -> Iterator[Fault]:
    chunk_bytes = case.longest * case.item_bytes
    for rank, events in enumerate(record):
        scratch = peak_bytes(events)
        if scratch > MAX_SCRATCH_CHUNKS * chunk_bytes:
            message = scratch_message(rank, scratch, chunk_bytes, "beside x_N")
            yield Fault(Property.MEMORY, case.name, message)
            return


EXERCISE = Exercise(
    id="1.3",
    title="Ring all-reduce",
    signature="all_reduce_ring(x_N, group)",
    points={Property.VALUES: 4, Property.TRAFFIC: 4, Property.MEMORY: 2},
    hints=(
        "You have half of it: after a reduce-scatter every rank holds one chunk of the "
        "sum. What is left to do?",
        "Passing on needs no adding. Go round the ring once more, and let each rank "
        "write what it receives straight into x_N.",
        "The all-gather starts from the chunk that you finished: in step s, rank r "
        "sends chunk r - s and receives chunk r - s - 1; all modulo p.",
    ),
    judge=judge,
    reference=collectives.all_reduce_ring,
)
