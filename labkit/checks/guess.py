"""Predict, commit, reveal: a number guessed before the cell that computes it.

A guess is kept until the computed number is there, and shown beside it. It is worth no
points: being wrong out loud, then seeing why, is what makes the answer stay.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from labkit.checks.show import show
from labkit.errors import UsageError
from labkit.units import digits, format_seconds

_guesses: dict[str, float] = {}


@dataclass(frozen=True)
class Revealed:
    """A guess beside the number that was computed."""

    name: str
    guess: float | None
    computed: float
    unit: str = ""

    def __str__(self) -> str:
        """One line: what you said, what it is."""
        computed = _number(self.computed, self.unit)
        if self.guess is None:
            return f"{self.name}: it is {computed} (you made no guess)"
        said = _number(self.guess, self.unit)
        same = " - as you said" if said == computed else ""
        return f"{self.name}: you said {said}, it is {computed}{same}"

    def to_html(self) -> str:
        """The line, with the computed number in bold."""
        return f"<div>{html.escape(str(self))}</div>"


def predict(name: str, guess: Any) -> None:
    """Keep one number as the learner's guess; `...` in its place means no guess yet.

    Raises:
        UsageError: The guess is not one number.
    """
    if guess is ...:
        _guesses.pop(name, None)
        print(
            f"{name}: put a number in place of `...` and run this again, or just go on"
        )
        return
    is_number = isinstance(guess, (int, float)) and not isinstance(guess, bool)
    if not is_number or not math.isfinite(guess):
        raise UsageError(
            f"a prediction is one number; got {guess!r}; write, say, "
            f'predict("{name}", 3)'
        )
    _guesses[name] = float(guess)
    print(f"{name}: kept, you say {_number(guess, '')}")


def reveal(name: str, computed: float, unit: str = "") -> None:
    """Show the computed number beside the guess; `unit` "s" formats it as a time."""
    show(Revealed(name, _guesses.get(name), float(computed), unit))


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return format_seconds(value)
    text = f"{value:,.0f}" if value == int(value) else digits(value)
    return f"{text} {unit}".rstrip()
