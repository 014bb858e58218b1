"""Exercise 1.2: each rank gets its chunk of the sum, round a ring."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage
from labkit.checks.lesson_01 import case as cases
from labkit.checks.lesson_01.case import Came, Case
from labkit.checks.lesson_01.scratch import peak_bytes
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record
from labkit.comm import collectives

MAX_SCRATCH_CHUNKS = 2


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Every size and length, then once more with the memory counted."""

    def all_cases() -> Iterator[Case]:
        yield from cases.grid(seed)
        yield cases.measured(seed)

    return cases.play_all(answer, stage, all_cases(), cases.sums, faults_of, seed)


def faults_of(case: Case, played: Played) -> Iterator[Fault]:
    """The right chunk on each rank, from neighbours only, with little scratch."""
    yield from cases.unless_failed(case, played, _faults)


def _faults(case: Case, played: Played) -> Iterator[Fault]:
    for rank, came in enumerate(played.results):
        wrong = _values(case, rank, came)
        if wrong is not None:
            yield Fault(Property.VALUES, case.name, wrong)
            break
    traffic = messages.collectives(played.record) or _traffic(case, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, case.name, traffic)
    if case.level == "work":
        yield from _memory(case, played.record)


def _values(case: Case, rank: int, came: Came) -> str | None:
    changed = verify.differ("x_N", came.x_N, case.array(rank))
    if changed is not None:
        return (
            f"rank {rank}'s x_N must be as it was, so that it can be used again; "
            f"{changed}; add into what you received, not into x_N"
        )
    got, expected = came.returned, case.chunk(rank)
    if type(got) is not Tensor:
        return f"rank {rank} must return its chunk; got {type(got).__name__}"
    other = _whose(case, got)
    if other is not None and other != rank and not _same(got, expected):
        return (
            f"rank {rank} holds chunk {other} complete, chunk {rank} expected: send "
            "another chunk first, so that your own comes last"
        )
    wrong = verify.differ("the chunk", got, expected)
    if wrong is None:
        return None
    sizes = [case.chunk(each).numel() for each in range(case.size)]
    return f"rank {rank}: {wrong}; balanced chunks have {sizes} elements"


def _whose(case: Case, got: Tensor) -> int | None:
    """Of which rank this is the complete chunk."""
    for rank in range(case.size):
        chunk = case.chunk(rank)
        if chunk.numel() and _same(got, chunk):
            return rank
    return None


def _same(got: Tensor, expected: Tensor) -> bool:
    return verify.differ("", got, expected) is None


def _traffic(case: Case, record: Record) -> str | None:
    most = (case.size - 1) * case.longest * case.item_bytes
    for rank, left in enumerate(messages.sent(record)):
        if left.messages > case.size - 1:
            return (
                f"rank {rank} sent {left.messages} messages; {case.size - 1} are "
                f"enough: one chunk in each of p - 1 steps"
            )
        if left.payload_bytes > most:
            return (
                f"rank {rank} sent {left.payload_bytes} bytes; at most {most} are "
                "needed, (p - 1) / p of x: send one chunk a step, not the whole"
            )
    return ring_only(case, record)


def ring_only(case: Case, record: Record) -> str | None:
    """The message where a rank sends past its neighbours, or in both directions."""
    directions: set[int] = set()
    for rank, left in enumerate(messages.sent(record)):
        for peer in left.peers:
            if peer is None:
                continue
            directions.add((peer - rank) % case.size)
            if (peer - rank) % case.size not in (1, case.size - 1):
                return (
                    f"rank {rank} sent to rank {peer}; round a ring it sends to a "
                    f"neighbour only, {(rank + 1) % case.size}"
                )
    if len(directions) > 1:
        return "ranks sent to the right and to the left; a ring turns one way"
    return None


def _memory(case: Case, record: Record) -> Iterator[Fault]:
    chunk_bytes = case.longest * case.item_bytes
    for rank, events in enumerate(record):
        scratch = peak_bytes(events) - chunk_bytes
        if scratch > MAX_SCRATCH_CHUNKS * chunk_bytes:
            yield Fault(Property.MEMORY, case.name, scratch_message(
                rank, scratch, chunk_bytes, "beside its result"))  # fmt: skip
            return


def scratch_message(rank: int, scratch: int, chunk_bytes: int, beside: str) -> str:
    """What a rank took, in chunks, and what is enough."""
    return (
        f"rank {rank} had {scratch / chunk_bytes:.3g} chunks of scratch at its peak "
        f"{beside}; {MAX_SCRATCH_CHUNKS} are enough: let go of what you have passed on"
    )


EXERCISE = Exercise(
    id="1.2",
    title="Ring reduce-scatter",
    signature="reduce_scatter_ring(x_N, group)",
    points={Property.VALUES: 4, Property.TRAFFIC: 4, Property.MEMORY: 2},
    hints=(
        "Follow one chunk once round the ring: every rank that it passes adds its own "
        "part. After p - 1 steps it is complete. Where is it then?",
        "The sum of chunk r must end on rank r. So it was on rank r - 1 one step "
        "before, ..., and on rank r + 1 at first. Which chunk does rank r send first?",
        "In step s, rank r sends chunk r - s - 1 to rank r + 1, receives chunk "
        "r - s - 2 from rank r - 1, and adds its own part of that chunk; all modulo p.",
    ),
    judge=judge,
    reference=collectives.reduce_scatter_ring,
)
