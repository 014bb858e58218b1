"""Exercise 1.5: what an all-reduce takes by two numbers, and where two lines cross.

A prediction is rounds x alpha + units x S x beta. So the answer is asked for one of the
two at a time, and told which of them is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.checks.exercise import Answer, Exercise, Judged, Stage
from labkit.checks.verdict import Fault, Property
from labkit.comm.collectives.price import price

REL_TOLERANCE = 1e-6
SIZES = (1, 2, 3, 4, 5, 8, 9, 64, 1000, 1024)


def crossover_bytes(num_ranks: int, alpha_s: float, beta_s_per_byte: float) -> float:
    """Bytes above which a ring is faster than a tree; 0 where it always is."""
    ring = price("all_reduce_ring", num_ranks)
    tree = price("all_reduce_tree", num_ranks)
    if ring.rounds <= tree.rounds:
        return 0.0
    rounds, arrays = ring.rounds - tree.rounds, tree.arrays - ring.arrays
    return alpha_s / beta_s_per_byte * rounds / arrays


@dataclass(frozen=True)
class Question:
    """One call of the answer: function 0 or 1, its arguments, and what is right."""

    function: int
    arguments: tuple[Any, ...]
    wanted: float
    about: str


def questions(seed: int) -> Iterator[Question]:
    """Rounds alone, bytes alone, both together; then where ring and tree cross."""
    source = random.Random(seed)
    for algorithm in ("naive", "tree", "ring", "halving"):
        for p in SIZES:
            if algorithm == "halving" and p & (p - 1):
                continue
            whole = price(f"all_reduce_{algorithm}", p)
            head = f"{algorithm}, p = {p}"
            yield Question(
                0, (algorithm, p, 1024, 1.0, 0.0), whole.rounds,
                f"{head}: rounds of alpha",
            )  # fmt: skip
            yield Question(
                0, (algorithm, p, 1, 0.0, 1.0), whole.arrays,
                f"{head}: units of S x beta",
            )  # fmt: skip
            yield Question(
                0, (algorithm, p, 0, 1e-5, 1e-9), whole.rounds * 1e-5,
                f"{head}, S = 0: s",
            )  # fmt: skip
            alpha_s, beta = source.uniform(1e-6, 1e-4), source.uniform(1e-11, 1e-9)
            num_bytes = source.randint(1, 1 << 30)
            yield Question(
                0, (algorithm, p, num_bytes, alpha_s, beta),
                whole.seconds(num_bytes, alpha_s, beta),
                f"{head}, S = {num_bytes}: s",
            )  # fmt: skip
    for p in SIZES:
        alpha_s, beta = source.uniform(1e-6, 1e-4), source.uniform(1e-11, 1e-9)
        yield Question(
            1, (p, alpha_s, beta), crossover_bytes(p, alpha_s, beta),
            f"crossover, p = {p}: bytes",
        )  # fmt: skip


class Told(NamedTuple):
    """What one call gave: a number, or in words what it was instead."""

    number: float | None
    odd: str = ""


def answer_on_rank(
    _: object, answers: Sequence[Answer], asked: Sequence[Question]
) -> list[Told]:
    """What the one rank runs: every question, one after another."""
    return [_told(answers[each.function], each.arguments) for each in asked]


def _told(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Told:
    try:
        got = function(*arguments)
    except Exception as error:
        return Told(None, f"raised {type(error).__name__}: {error}")
    if type(got) not in (int, float):
        return Told(None, f"returned {got!r:.40} ({type(got).__name__}), no number")
    return Told(float(got))


def judge(answers: Sequence[Answer], stage: Stage, seed: int) -> Judged:
    """Ask every question on one rank, and compare with the closed forms."""
    asked = list(questions(seed))
    played = stage.play("processes", 1, answer_on_rank, answers, asked)
    names = f"Played: {len(asked)} questions, p from 1 to {SIZES[-1]} (seed {seed})."
    if played.error is not None:
        fault = Fault(Property.VALUES, "on rank 0", str(played.error))
        return Judged((fault,), names)
    faults = (
        Fault(Property.VALUES, _call(question), message)
        for question, told in zip(asked, played.results[0], strict=True)
        if (message := fault_of(question, Told(*told))) is not None
    )
    return Judged(tuple(faults), names)


def fault_of(question: Question, told: Told) -> str | None:
    """What is wrong with one answer, if anything."""
    wanted = question.wanted
    if told.number is None:
        return f"{question.about}: {wanted:.6g} expected; it {told.odd}"
    if math.isclose(told.number, wanted, rel_tol=REL_TOLERANCE, abs_tol=1e-15):
        return None
    text = f"{question.about}: {wanted:.6g} expected, got {told.number:.6g}"
    if question.function == 1 and told.number < 0 <= wanted:
        return f"{text}; where the tree never wins, the ring is ahead from 0 bytes on"
    if question.about.endswith("rounds of alpha") and wanted:
        return f"{text}; alpha is paid in every round, and log2 p is rounded up"
    return text


def _call(question: Question) -> str:
    name = ("predict_s", "crossover_bytes")[question.function]
    return f"{name}({', '.join(map(repr, question.arguments))})"


EXERCISE = Exercise(
    id="1.5",
    title="Where the lines cross",
    signature="predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte)",
    also=("crossover_bytes(p, alpha_s, beta_s_per_byte)",),
    points={Property.VALUES: 10},
    hints=(
        "Count the rounds that follow each other, then the bytes that one rank sends "
        "in each of them. A round takes alpha, and beta for each of those bytes.",
        "Where the lines cross, tree and ring take equally long: set the two formulas "
        "equal, and solve for S.",
        "The difference of rounds goes above, the difference of bytes below. If a ring "
        "has no more rounds than the tree, it is ahead from the first byte: 0.",
    ),
    judge=judge,
)
