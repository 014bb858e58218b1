"""Exercise 1.4: an all-reduce in log2 p rounds each way, in as few bytes as a ring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from labkit.checks import messages, verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage
from labkit.checks.lesson_01 import all_reduce
from labkit.checks.lesson_01 import case as cases
from labkit.checks.lesson_01.case import DTYPES, Case
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.comm import collectives

# What is left where only worlds that are no power of two go wrong.
KEPT = {Property.VALUES: 2, Property.TRAFFIC: 2}
POWERS, OTHERS = (1, 2, 4, 8), (3, 5, 6, 7)


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Powers of two first, odd and short arrays among them; then other worlds."""
    source = random.Random(seed)

    def all_cases() -> Iterator[Case]:
        for size in (*POWERS, *OTHERS):
            length = source.choice((size, 3 * size + 1, 256, 257))
            yield Case("threads", size, length, source.choice(DTYPES), seed)
        yield Case("threads", 8, source.choice((1, 3, 7)), DTYPES[0], seed)
        yield Case("threads", 4, 0, DTYPES[0], seed)
        yield Case("a part", 4, 10, DTYPES[0], seed)
        yield Case("processes", 4, 5003, DTYPES[0], seed)

    return cases.play_all(answer, stage, all_cases(), cases.sums, faults_of, seed)


def faults_of(case: Case, played: Played) -> Iterator[Fault]:
    """As in a ring, and log2 p rounds; beside powers of two some points stay."""
    for fault in cases.unless_failed(case, played, _faults, schedule=True):
        kept = 0 if _is_power(case.size) else KEPT.get(fault.judged, 0)
        yield replace(fault, kept=kept)


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


def _faults(case: Case, played: Played) -> Iterator[Fault]:
    wrong = all_reduce.values(case, played)
    if wrong is not None:
        yield Fault(Property.VALUES, case.name, wrong)
    traffic = messages.collectives(played.record) or _traffic(case, played.record)
    if traffic is not None:
        yield Fault(Property.TRAFFIC, case.name, traffic)
    if _is_power(case.size):
        yield from _rounds(case, played.record)
    if _is_power(case.size) and traffic is None:
        yield from _slow_link(case, played.record)


def _traffic(case: Case, record: Record) -> str | None:
    if not _is_power(case.size):
        return _folded(case, record)
    rounds = 2 * (case.size.bit_length() - 1)
    # Halves of odd lengths are rounded up, at most one element a round.
    most = 2 * (case.size - 1) * case.num_elements / case.size + rounds
    for rank, left in enumerate(messages.sent(record)):
        if left.messages > rounds:
            return (
                f"rank {rank} sent {plural(left.messages, 'message')}; {rounds} are "
                "enough: log2 p to halve, log2 p to double"
            )
        elements = left.payload_bytes / case.item_bytes
        if elements > most:
            return (
                f"rank {rank} sent {elements:g} elements; {most:g} are enough, 2 "
                f"(p - 1) / p of x's {case.num_elements}: send halves of what is left, "
                "not whole arrays (that would be recursive doubling, log2 p of x)"
            )
    return None


def _folded(case: Case, record: Record) -> str | None:
    """Beside powers of two: as many bytes in all as every other all-reduce."""
    total = sum(left.payload_bytes for left in messages.sent(record))
    elements, enough = total / case.item_bytes, 2 * (case.size - 1) * case.num_elements
    if elements > enough:
        return (
            f"all ranks together sent {elements:g} elements; {enough} are enough, 2 "
            "(p - 1) of x: a rank beyond the power of two sends x once, gets it once"
        )
    return None


def _rounds(case: Case, record: Record) -> Iterator[Fault]:
    took, enough = verify.rounds(record), 2 * (case.size.bit_length() - 1)
    if took > enough:
        message = f"takes {plural(took, 'round')}; {enough} are enough: 2 log2 p"
        yield Fault(Property.SCHEDULE, case.name, message)


def _slow_link(case: Case, record: Record) -> Iterator[Fault]:
    """On two nodes, what has to leave one is a whole array, and no more."""
    leaving, whole = _leaving(case, record), case.num_elements * case.item_bytes
    # Each round's middle may be an element off, for each rank of the node.
    slack = case.size * case.item_bytes if case.num_elements % case.size else 0
    if case.size >= 4 and leaving > whole + slack:
        message = (
            f"on two nodes of {case.size // 2} ranks, node 0 sent {leaving} bytes over "
            f"the slow link between them; {whole} are enough: exchange the big halves "
            "with near partners first, inside the node"
        )
        yield Fault(Property.SCHEDULE, case.name, message)


def _leaving(case: Case, record: Record) -> int:
    """Bytes that the lower half of the ranks sent to the upper half."""
    half = case.size // 2
    return sum(
        comm.payload_bytes
        for events in record[:half]
        for comm in verify.sends([events])
        if comm.peer is not None and comm.peer >= half
    )


EXERCISE = Exercise(
    id="1.4",
    title="Halving and doubling",
    signature="all_reduce_halving(x_N, group)",
    points={Property.VALUES: 4, Property.TRAFFIC: 4, Property.SCHEDULE: 2},
    hints=(
        "Two partners have a whole array each. They swap halves, and each adds what "
        "came to the half it kept. Who owns the sum of what now? With whom to go on?",
        "In round k the partner is rank ^ 2**k. Both must cut at the same middle, so "
        "remember which part you kept and which you gave away: the way back is the "
        "same list, from its end.",
        "Near partners first (2**k = 1, 2, 4, ...): the biggest halves then stay "
        "inside a node. For p that is no power of two, each rank from the largest "
        "power P up gives its x to rank - P before, and gets the sum from it after.",
    ),
    judge=judge,
    reference=collectives.all_reduce_halving,
)
