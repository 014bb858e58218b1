"""The line alpha + bytes * beta that comes closest to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A size and the median of its repeats."""

    num_bytes: int
    seconds: float


class Fit(NamedTuple):
    """seconds = alpha_s + num_bytes * beta_s_per_byte."""

    alpha_s: float
    beta_s_per_byte: float

    def seconds(self, num_bytes: float) -> float:
        """What the line says of a size."""
        return self.alpha_s + num_bytes * self.beta_s_per_byte

    def worst(self, points: Sequence[Point]) -> float:
        """How far a point lies from the line at most, as a share of the point."""
        return max(abs(self.seconds(size) / seconds - 1) for size, seconds in points)


def fit(points: Sequence[Point]) -> Fit:
    """The alpha and beta, none below 0, with the least squares of relative errors."""
    num_bytes = np.array([point.num_bytes for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    columns = np.stack([1 / seconds, num_bytes / seconds], axis=1)
    (alpha_s, beta), *_ = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)
    if alpha_s < 0:
        alpha_s, beta = 0.0, _only(num_bytes / seconds)
    if beta < 0:
        alpha_s, beta = _only(1 / seconds), 0.0
    return Fit(float(alpha_s), float(beta))


def _only(column: Any) -> float:
    """The factor of one column that comes closest to 1 everywhere."""
    return float(column.sum() / (column * column).sum())
