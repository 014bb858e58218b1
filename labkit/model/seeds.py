"""One seed for each use, from the run's seed and what it is for."""

from __future__ import annotations

from hashlib import sha256


def seed_from(*parts: int | str) -> int:
    """A seed that depends on all parts: `seed_from(seed, "epoch", 3)`.

    Sums will not do: seed 0 in epoch 1 would be seed 1 in epoch 0. Nor will `hash`,
    which differs from process to process.
    """
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:7])
