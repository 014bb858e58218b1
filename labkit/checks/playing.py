"""Plays the cases of an exercise one after another, and stops once enough are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from labkit.checks import part
from labkit.checks.exercise import Judged, Played, TooLong, Where
from labkit.checks.verdict import Fault, Property

# So many wrong cases show what is wrong; stuck ranks take a while to replace.
ENOUGH = 3


class Playable(Protocol):
    """A case: where it is played, with how many ranks, and its name in messages."""

    @property
    def where(self) -> Where:
        """Threads, processes, or a part of the world."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    @property
    def name(self) -> str:
        """What it is called."""
        ...


Case = TypeVar("Case", bound=Playable)


def play_all(
    cases: Iterable[Case],
    play: Callable[[Case], Played],
    judge: Callable[[Case, Played], Iterator[Fault]],
    seed: int,
) -> Judged:
    """Play every case; on processes only once the answer is right on threads.

    An answer that does not return costs its whole limit, so once is enough.
    """
    faults: list[Fault] = []
    names: list[str] = []
    for case in cases:
        wrong = sum(f.judged is Property.VALUES and not f.kept for f in faults)
        if wrong >= ENOUGH or (wrong and case.where == "processes"):
            names.append("the rest, and processes, once these are right")
            break
        played = play(case)
        found = judge(case, played)
        special = case.where == "a part"
        faults += [part.explained(f, case.size) if special else f for f in found]
        names.append(case.name)
        if isinstance(played.error, TooLong):
            names.append("the rest once this one ends")
            break
    return Judged(tuple(faults), f"Played: {'; '.join(names)} (seed {seed}).")
