"""The exercises of lesson 00: what runs on ranks, and how it is judged."""

from __future__ import annotations

from labkit.checks.exercise import Exercise
from labkit.checks.lesson_00 import exchange, order, straggler
from labkit.checks.lesson_00.straggler import spans

EXERCISES: dict[str, Exercise] = {
    exercise.id: exercise
    for exercise in (order.EXERCISE, exchange.EXERCISE, straggler.EXERCISE)
}

__all__ = ["EXERCISES", "spans"]
