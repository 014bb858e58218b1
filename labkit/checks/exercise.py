"""What an exercise is: its name, its points, its hints, and how an answer is judged."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.errors import CheckFailed, LabkitError, RunError, UsageError
from labkit.record.program import Level

# What a function raises that nobody has written yet.
UNANSWERED = "write your answer here"

Answer = Callable[..., Any]
Where = Literal["threads", "processes", "a part"]


class TooLong(RunError):
    """A case did not end in time."""


@dataclass(frozen=True)
class Played:
    """What came of one case: results and events by rank, or the error that ended it."""

    results: Sequence[Any]
    record: Record
    error: LabkitError | None = None


class Stage(Protocol):
    """Where cases are played: real ranks in a notebook, a fake in a test.

    On "threads" and "processes" the group is the world; "a part" is a group on threads
    that leaves out some of them, so that a place in it is not a rank (`checks.part`).
    """

    def play(
        self,
        where: Where,
        size: int,
        body: Callable[..., Any],
        *args: Any,
        level: Level = "comm",
    ) -> Played:
        """Run `body(group, *args)` on a group of `size` ranks, under rendezvous.

        Results and record are by place in the group. At level "work" the record says
        what memory came and went.
        """
        ...


@dataclass(frozen=True)
class Judged:
    """All faults of an answer, and a line on what was played."""

    faults: tuple[Fault, ...]
    played: str


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson.

    `also` are the signatures of further functions that it asks for; `judge` is then
    given all of them together. `reference` is what later lessons run on where the
    learner's own answer has not passed.
    """

    id: str
    title: str
    signature: str
    points: Mapping[Property, int]
    hints: tuple[str, ...]
    judge: Callable[[Any, Stage, int], Judged]
    also: tuple[str, ...] = ()
    reference: Callable[..., Any] | None = None

    @property
    def seed(self) -> int:
        """What the random cases are drawn from when no other seed is asked for."""
        return zlib.crc32(self.id.encode()) % 100_000


def find(exercise_id: str) -> Exercise:
    """The exercise with this id.

    Raises:
        UsageError: There is none.
    """
    found = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", str(exercise_id))
    name = f"labkit.checks.lesson_{int(found[1]):02d}" if found else ""
    if not found or importlib.util.find_spec(name) is None:
        raise UsageError(
            'an exercise is named by lesson and number, as "0.1"; got '
            f"{exercise_id!r}; the number stands in the exercise's title"
        )
    exercises: Mapping[str, Exercise] = importlib.import_module(name).EXERCISES
    if exercise_id not in exercises:
        raise UsageError(
            f"lesson {found[1]} has the exercises {', '.join(exercises)}; got "
            f"{exercise_id!r}; take the number from the exercise's title"
        )
    return exercises[exercise_id]


def refuse_odd(exercise: Exercise, *answers: Any) -> None:
    """Refuse what cannot be an answer, before any rank starts.

    Raises:
        CheckFailed: It is no plain function, comes with labkit, takes other arguments,
            or there are fewer or more functions than the exercise asks for.
    """
    signatures = (exercise.signature, *exercise.also)
    if len(answers) != len(signatures):
        raise CheckFailed(
            f"{exercise.id} wants {plural(len(signatures), 'function')}, "
            f"{' and '.join(signatures)}; got {len(answers)}; write {_call(exercise)}"
        )
    for signature, answer in zip(signatures, answers, strict=True):
        _refuse_one(exercise, signature, answer)


def _call(exercise: Exercise) -> str:
    names = [text.partition("(")[0] for text in (exercise.signature, *exercise.also)]
    return f'check("{exercise.id}", {", ".join(names)})'


def _refuse_one(exercise: Exercise, signature: str, answer: Any) -> None:
    wanted = f"{exercise.id} wants a function {signature}"
    if not callable(answer):
        raise CheckFailed(
            f"{wanted}; got {_describe(answer)}; pass the function itself, without "
            f"calling it: {_call(exercise)}"
        )
    for is_odd, kind, word in _ODD_FUNCTIONS:
        if is_odd(answer):
            raise CheckFailed(
                f"{wanted} that does its work when called; got {kind}, which does "
                f"nothing until somebody runs it; take the `{word}` out"
            )
    if str(getattr(answer, "__module__", "")).startswith("labkit."):
        raise CheckFailed(
            f"{wanted} of your own; got {answer.__module__}.{answer.__qualname__}, "
            "which comes with the course. Read it once you have passed; to begin: "
            f'hint("{exercise.id}")'
        )
    _refuse_arguments(signature, answer, wanted)


_ODD_FUNCTIONS = (
    (inspect.isgeneratorfunction, "a generator function", "yield"),
    (inspect.iscoroutinefunction, "an async function", "async"),
    (inspect.isasyncgenfunction, "an async generator function", "async"),
)


def _refuse_arguments(expected: str, answer: Answer, wanted: str) -> None:
    inside = expected[expected.index("(") + 1 : -1]
    names = [name.strip() for name in inside.split(",")]
    try:
        signature = inspect.signature(answer)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise CheckFailed(
            f"{wanted}: {len(names)} argument{'s' * (len(names) > 1)}, by position; "
            f"got {getattr(answer, '__name__', 'a function')}{signature} ({error}); "
            "keep the line `def` as the exercise gives it"
        ) from None


def _describe(value: Any) -> str:
    text = repr(value)
    shown = text if len(text) <= 40 else text[:37] + "..."
    return f"{shown} ({type(value).__name__})"
