"""A bounded set of records: what is kept, what is new, what is given up."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.record.slots import Floats, Slots


def records(*lengths: float) -> tuple[Floats, Floats]:
    """Records of one number, which is also their weight."""
    made = np.array(lengths, dtype=float)
    return made[:, None], made


def test_what_is_new_is_taken_once() -> None:
    slots = Slots(8, 2)
    slots.put(*records(3.0, 1.0))
    assert slots.take(9).tolist() == [[0, 3], [1, 1]]
    assert slots.take(9).tolist() == []
    slots.put(*records(2.0))
    assert slots.take(9).tolist() == [[2, 2]]


def test_of_too_much_at_once_the_longest_goes_first_and_the_rest_later() -> None:
    slots = Slots(8, 2)
    slots.put(*records(3.0, 1.0, 4.0, 2.0))
    assert slots.take(2).tolist() == [[0, 3], [2, 4]]
    assert slots.take(2).tolist() == [[1, 1], [3, 2]]
    assert slots.take(0).tolist() == []


def test_resend_gives_everything_again() -> None:
    slots = Slots(8, 2)
    slots.put(*records(3.0, 1.0))
    first = slots.take(9)
    slots.resend()
    assert slots.take(9).tolist() == first.tolist()


def test_a_full_set_gives_up_the_shortest_half() -> None:
    slots = Slots(4, 2)
    slots.put(*records(5.0, 1.0))
    slots.put(*records(6.0, 2.0))
    slots.take(9)
    slots.put(*records(3.0))
    assert slots.take(9).tolist() == [[1, 3]]
    slots.resend()
    assert slots.take(9).tolist() == [[0, 5], [1, 3], [2, 6]]
    assert (slots.total, slots.count) == (5, 3)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_draws_by_slot_has_what_is_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(2, 40))
    slots, drawn, put = Slots(capacity, 2), dict[float, float](), list[float]()
    for _ in range(60):
        made = rng.random(int(rng.integers(0, 30)))
        slots.put(made[:, None], made)
        put += made.tolist()
        for slot, length in slots.take(int(rng.integers(0, 20))).tolist():
            drawn[slot] = length
    drawn |= dict(slots.take(capacity).tolist())
    slots.resend()
    kept = dict(slots.take(capacity).tolist())
    assert kept.items() <= drawn.items()
    assert len(kept) == slots.count <= capacity
    assert slots.total == len(put)
    assert max(kept.values()) == max(put)


def test_a_flood_greater_than_the_set_keeps_its_longest() -> None:
    slots = Slots(6, 2)
    slots.put(*records(*range(100)))
    assert slots.take(9)[:, 1].tolist() == [97, 98, 99]
