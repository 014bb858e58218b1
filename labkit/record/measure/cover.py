"""Stretches of time that do not overlap, in order: their union, common part, length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

Piece: TypeAlias = tuple[float, float]


class Cover:
    """The times that some pieces cover, each counted once."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        """`pieces` are (start, end), in any order; they may overlap."""
        self.pieces: list[Piece] = []
        for start, end in sorted(pieces):
            if self.pieces and start <= self.pieces[-1][1]:
                first, last = self.pieces[-1]
                self.pieces[-1] = first, max(last, end)
            elif end > start:
                self.pieces.append((start, end))
        self._starts = [start for start, _ in self.pieces]

    @property
    def length(self) -> float:
        """How long it is, in seconds."""
        return sum(end - start for start, end in self.pieces)

    def holds(self, at: float) -> bool:
        """Whether it covers a moment: its beginning yes, its end no."""
        place = bisect_right(self._starts, at) - 1
        return place >= 0 and at < self.pieces[place][1]

    def within(self, start: float, end: float) -> list[Piece]:
        """The parts of it that lie between two times."""
        found: list[Piece] = []
        place = max(0, bisect_right(self._starts, start) - 1)
        while place < len(self.pieces) and self.pieces[place][0] < end:
            first, last = self.pieces[place]
            if last > start:
                found.append((max(first, start), min(last, end)))
            place += 1
        return found

    def length_within(self, start: float, end: float) -> float:
        """How much of the time between two times it covers, in seconds."""
        return sum(last - first for first, last in self.within(start, end))

    def common(self, other: Cover) -> Cover:
        """What both cover."""
        return Cover(part for piece in self.pieces for part in other.within(*piece))

    def without(self, other: Cover) -> Cover:
        """What it covers and the other does not."""
        left: list[Piece] = []
        for start, end in self.pieces:
            for first, last in other.within(start, end):
                left.append((start, first))
                start = last
            left.append((start, end))
        return Cover(piece for piece in left if piece[1] > piece[0])
