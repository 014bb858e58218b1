"""What each collective takes by two numbers: the alpha-beta model.

    seconds = rounds * alpha + arrays * S * beta

Alpha is the latency of a message in seconds, beta the time of a byte, S the bytes of
the whole array (of an all-to-all: of all that a rank has for others and itself). Rounds
follow each other; `arrays` is what moves in them, one round after another, in whole
arrays. Adding numbers up is taken to cost nothing.
Paper: Thakur, Rabenseifner, Gropp 2005, section 3 ("Cost model") and section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from labkit.errors import UsageError


class Price(NamedTuple):
    """Latencies one after another, and whole arrays' worth of bytes.

    Attributes:
        rounds: How many messages follow each other.
        arrays: Their sizes added up, in whole arrays.
    """

    rounds: int
    arrays: float

    def seconds(
        self, num_bytes: float, alpha_s: float, beta_s_per_byte: float
    ) -> float:
        """The time for an array of `num_bytes`."""
        return self.rounds * alpha_s + self.arrays * num_bytes * beta_s_per_byte


def price(name: str, num_ranks: int) -> Price:
    """The price of a collective of `labkit.comm.collectives` on so many ranks.

    Raises:
        UsageError: There is no such collective, or no rank.
    """
    if name not in _PRICES:
        raise UsageError(
            f"a price is known of {', '.join(_PRICES)}; {name!r} was asked for. Give "
            "the name of a function of labkit.comm.collectives"
        )
    if num_ranks < 1:
        raise UsageError(
            f"a group has at least 1 rank; {num_ranks} were given. Give the number of "
            "ranks that take part"
        )
    return _PRICES[name](num_ranks)


def _star(p: int) -> Price:
    return Price(p - 1, p - 1)


def _tree(p: int) -> Price:
    return Price(_levels(p), _levels(p))


def _once_round(p: int) -> Price:
    return Price(p - 1, (p - 1) / p)


def _twice(one: Callable[[int], Price]) -> Callable[[int], Price]:
    return lambda p: Price(2 * one(p).rounds, 2 * one(p).arrays)


def _halving(p: int) -> Price:
    """Two walks over the largest power of two; ranks beyond it give and get S."""
    power = 1 << (p.bit_length() - 1)
    beyond = 2 * (power < p)
    return Price(2 * _levels(power) + beyond, 2 * (power - 1) / power + beyond)


def _barrier(p: int) -> Price:
    return Price(_levels(p), 0.0)


def _levels(p: int) -> int:
    """log2 p, rounded up."""
    return (p - 1).bit_length()


_PRICES: dict[str, Callable[[int], Price]] = {
    "broadcast_naive": _star,
    "reduce_naive": _star,
    "all_reduce_naive": _twice(_star),
    "broadcast_tree": _tree,
    "reduce_tree": _tree,
    "all_reduce_tree": _twice(_tree),
    "reduce_scatter_ring": _once_round,
    "reduce_scatter_direct": _once_round,
    "all_gather_ring": _once_round,
    "all_reduce_ring": _twice(_once_round),
    "all_reduce_halving": _halving,
    "all_to_all": _once_round,
    "gather": _once_round,
    "scatter": _once_round,
    "barrier": _barrier,
}
