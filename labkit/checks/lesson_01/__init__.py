"""The exercises of lesson 01: what runs on ranks, and how it is judged."""

from __future__ import annotations

from labkit.checks.exercise import Exercise
from labkit.checks.lesson_01 import (
    all_reduce,
    all_to_all,
    broadcast,
    crossover,
    halving,
    reduce_scatter,
)

EXERCISES: dict[str, Exercise] = {
    exercise.id: exercise
    for exercise in (
        broadcast.EXERCISE, reduce_scatter.EXERCISE, all_reduce.EXERCISE,
        halving.EXERCISE, crossover.EXERCISE, all_to_all.EXERCISE,
    )
}  # fmt: skip

__all__ = ["EXERCISES"]
