"""Checks of the exercises: `check("0.1", speak_in_order)`.

A check runs the learner's function on real ranks, judges what it did by what was
recorded, and says, property by property, what holds. It never reads source code.
`hint("0.1")` gives the next hint; `mine("0.2")` an answer that has passed; `predict`
and `reveal` keep a guess until the number is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.checks import progress
from labkit.checks.exercise import UNANSWERED, Exercise, Stage, find, refuse_odd
from labkit.checks.guess import predict, reveal
from labkit.checks.mine import keep, mine
from labkit.checks.show import notebook_shell, show
from labkit.checks.verdict import Property, Verdict, judge
from labkit.errors import CheckFailed

__all__ = [
    "Property",
    "Verdict",
    "assess",
    "check",
    "hint",
    "mine",
    "predict",
    "reveal",
]

_hints_given: dict[str, int] = {}


def check(
    exercise_id: str, *answer: Callable[..., Any], seed: int | None = None
) -> Verdict:
    """Run an answer through its exercise's cases and show the points by property.

    Most exercises ask for one function; where one asks for more, all are given.

    The random cases are drawn from `seed`: by default the same ones each time, so that
    a fault can be looked at again.

    Raises:
        UsageError: There is no such exercise.
        CheckFailed: A property does not hold; the message names it, what must hold,
            what was seen, and what to try.
    """
    from labkit.checks.run import RankStage

    exercise = find(exercise_id)
    refuse_odd(exercise, *answer)
    with RankStage() as stage:
        judged = answer if exercise.also else answer[0]
        verdict = assess(exercise, judged, stage, seed=seed)
        verdict = replace(verdict, printed=stage.printed)
    if any(f"NotImplementedError: {UNANSWERED}" in x.message for x in verdict.lines):
        raise CheckFailed(_not_answered(exercise))
    progress.attempted(exercise.id, verdict.points, verdict.out_of)
    in_notebook = notebook_shell() is not None
    if verdict.passed or in_notebook:
        show(verdict)
    if not verdict.passed:
        raise CheckFailed(verdict.complaint(), shown=in_notebook)
    if exercise.reference is not None:
        keep(exercise.id, answer[0])
    return verdict


def assess(
    exercise: Exercise, answer: Any, stage: Stage, *, seed: int | None
) -> Verdict:
    """Judge an answer on a stage; raises for nothing that the answer does.

    It is a function, or a tuple of them where the exercise asks for more than one.
    """
    judged = exercise.judge(answer, stage, exercise.seed if seed is None else seed)
    return judge(
        exercise.id, exercise.title, exercise.points, judged.faults, judged.played
    )


def _not_answered(exercise: Exercise) -> str:
    return (
        f"{exercise.id} {exercise.title} is not answered yet: a rank came to the line "
        f'`raise NotImplementedError("{UNANSWERED}")`. Write your code in its place, '
        f'run that cell, then this one. To begin: hint("{exercise.id}")'
    )


def hint(exercise_id: str) -> None:
    """Show one more hint for an exercise; each call unfolds the next step.

    Raises:
        UsageError: There is no such exercise.
    """
    exercise = find(exercise_id)
    before = max(_hints_given.get(exercise_id, 0), progress.of(exercise_id).hints)
    given = min(before + 1, len(exercise.hints))
    _hints_given[exercise_id] = given
    progress.hinted(exercise_id, given)
    for number, text in enumerate(exercise.hints[:given], 1):
        print(f"Hint {number} of {len(exercise.hints)}: {text}")
    if given == len(exercise.hints):
        print("That was the last one; an answer stands in the solutions folder.")
