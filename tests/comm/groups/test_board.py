"""The notice board stops a rank before it issues, or uses, what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.comm.groups.board import NUM_SLOTS, Board
from labkit.errors import MismatchError
from labkit.record.events import CommStart
from labkit.record.recorder import Recorder

WORLD = (0, 1)


@pytest.fixture
def boards(tmp_path: Path) -> list[Board]:
    return [Board(str(tmp_path / "board"), rank, 2) for rank in WORLD]


def reduce(recorder: Recorder, size: int, **more: Any) -> CommStart:
    options = {"shapes": ((size,),), "dtype": "float32", "op": "sum"} | more
    return recorder.comm("all_reduce", "0", **options)


def message(
    recorder: Recorder, kind: Any, peer: int, size: int, tag: int = 0
) -> CommStart:
    shapes = ((size,),)
    return recorder.comm(kind, "0", peer=peer, tag=tag, shapes=shapes, dtype="float32")


def test_equal_calls_pass(boards: list[Board]) -> None:
    for rank in WORLD:
        comm = reduce(Recorder(), 4)
        boards[rank].post(comm)
        boards[rank].compare(comm, WORLD)


@pytest.mark.parametrize(
    "other",
    [{"shapes": ((5,),)}, {"dtype": "int32"}, {"op": "max"}, {"peer": 1}],
    ids=str,
)
def test_whoever_comes_second_is_stopped(
    boards: list[Board], other: dict[str, Any]
) -> None:
    boards[0].post(reduce(Recorder(), 4))
    comm = reduce(Recorder(), 4, **other)
    boards[1].post(comm)
    with pytest.raises(MismatchError, match="rank 0's does not match rank 1's all_red"):
        boards[1].compare(comm, WORLD)


def test_another_shape_of_as_many_elements_passes(boards: list[Board]) -> None:
    boards[0].post(reduce(Recorder(), 6))
    boards[1].compare(reduce(Recorder(), 6, shapes=((2, 3),)), WORLD)


def test_many_calls_under_way_do_not_hide_each_other(boards: list[Board]) -> None:
    """Each of the last calls of a rank still stands when the other comes to it."""
    ahead, behind = Recorder(), Recorder()
    for _ in range(32):
        boards[0].post(reduce(ahead, 4))
        for tag in range(4):
            boards[0].post(message(ahead, "send", 1, 8, tag))
    seen = 0
    for _ in range(32):
        calls = [reduce(behind, 5)]
        calls += [message(behind, "recv", 0, 9, tag) for tag in range(4)]
        for comm in calls:
            try:
                boards[1].compare(comm, WORLD)
            except MismatchError:
                seen += 1
    assert seen > 0.97 * 32 * 5


def test_a_slot_that_was_taken_over_is_no_mismatch(boards: list[Board]) -> None:
    ahead, behind = Recorder(), Recorder()
    for size in range(2 * NUM_SLOTS):
        boards[0].post(reduce(ahead, size))
    for size in range(2 * NUM_SLOTS):
        boards[1].compare(reduce(behind, size), WORLD)


def test_a_message_is_compared_with_its_other_end_only(tmp_path: Path) -> None:
    boards = [Board(str(tmp_path / "board"), rank, 3) for rank in range(3)]
    boards[2].post(message(Recorder(), "send", 1, 7))
    boards[0].post(message(Recorder(), "send", 1, 8))
    boards[1].compare(message(Recorder(), "recv", 0, 8), ())
    with pytest.raises(MismatchError, match="rank 2's"):
        boards[1].compare(message(Recorder(), "recv", 2, 8), ())


class TakenOver:
    """A board whose slots go to a later call between two looks at them."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._num_reads = 0

    def __getitem__(self, at: int) -> int:
        self._num_reads += 1
        return [self._words[at], 17, 0][self._num_reads - 1]


def test_a_slot_read_while_it_is_taken_over_is_no_mismatch(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of one call and the signature of the next must never be read as one."""
    comm = reduce(Recorder(), 4)
    boards[0].post(comm)
    monkeypatch.setattr(boards[1], "_words", TakenOver(boards[1]._words))
    boards[1].compare(comm, (0,))


class Witness:
    """Looks at a slot after each word that is written to it."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self.seen: list[tuple[int, int]] = []

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value
        slot = at - at % 2
        self.seen.append((self._words[slot], self._words[slot + 1]))


def test_a_key_stands_only_beside_its_own_signature(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    """See [Note: whole words]: at every moment another process may look."""
    old, new = reduce(Recorder(), 4), reduce(Recorder(), 5)
    boards[0].post(old)
    witness = Witness(boards[0]._words)
    monkeypatch.setattr(boards[0], "_words", witness)
    boards[0].post(new)
    (first_key, _), (second_key, signature), last = witness.seen
    assert (first_key, second_key) == (0, 0)
    assert last[0] != 0
    assert last[1] == signature
