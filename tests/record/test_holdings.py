"""What ranks hold, by kind: records of which the answer is known by hand."""

from __future__ import annotations

import random

import pytest

from labkit.errors import UsageError
from labkit.record.holdings import KINDS, curve, held, peaks
from labkit.record.program import Program
from tests.record import made


def step() -> made.Rank:
    """Parameters, a forward that keeps activations, a backward that makes gradients."""
    rank = made.Rank(0)
    with rank.span("step", 0.0, 4.0):
        rank.alloc(0, 100, "scratch", 0.0)
        rank.free(0, 100, "scratch", 0.1)
        rank.alloc(0, 100, "parameters", 0.1)
        with rank.span("forward", 1.0, 2.0):
            rank.alloc(1, 300, "activations", 1.0)
            rank.alloc(2, 50, "scratch", 1.5)
        with rank.span("backward", 2.0, 4.0):
            rank.alloc(3, 100, "gradients", 2.0)
            rank.free(2, 50, "scratch", 2.5)
            rank.free(1, 300, "activations", 3.0)
    return rank


def record(*ranks: made.Rank, level: str = "work", **more: object) -> Program:
    return made.program(*ranks, level=level, **more)


def test_the_peak_is_where_a_rank_holds_the_most() -> None:
    (peak,) = peaks(record(step()))
    assert peak.total_bytes == 550
    assert (peak.at_s, peak.span, peak.num_storages) == (2.0, "backward", 4)
    assert peak.bytes_by_kind == {
        "parameters": 100, "gradients": 100, "optimizer": 0, "activations": 300,
        "buffers": 0, "scratch": 50,
    }  # fmt: skip


def test_of_equal_peaks_the_first_counts() -> None:
    rank = made.Rank(0)
    for storage in range(3):
        rank.alloc(storage, 10, "scratch", float(storage))
        rank.free(storage, 10, "scratch", storage + 0.5)
    assert peaks(record(rank))[0].at_s == 0.0


def test_a_storage_found_to_be_of_another_kind_is_one_moment() -> None:
    found = curve(record(step()), 0)
    assert found.totals == (100, 100, 400, 450, 550, 500, 200)
    assert found.bytes_by_kind["scratch"] == (100, 0, 0, 50, 50, 0, 0)
    assert found.bytes_by_kind["parameters"] == (0, 100, 100, 100, 100, 100, 100)
    assert found.times_s == (0.0, 0.1, 1.0, 1.5, 2.0, 2.5, 3.0)
    assert set(found.bytes_by_kind) == set(KINDS)


def test_a_resized_storage_is_one_moment_too() -> None:
    """FSDP2 frees its parameters by making them empty."""
    rank = made.Rank(0)
    rank.alloc(0, 0, "parameters")
    for size, other in ((0, 800), (800, 0)):
        rank.free(0, size, "parameters")
        rank.alloc(0, other, "parameters")
    found = curve(record(rank, source="dry"), 0)
    assert found.totals == (0, 800, 0)
    assert found.times_s is None
    assert found.seqs == (0, 2, 4)


def test_a_dry_run_has_no_times_even_if_it_took_some() -> None:
    (peak,) = peaks(record(step(), source="dry"))
    assert (peak.total_bytes, peak.at_s) == (550, None)


def test_what_is_held_after_a_span_and_at_the_end() -> None:
    made_up = record(step())
    (after,) = held(made_up, after="forward")
    assert after is not None
    assert after.total_bytes == 450
    (end,) = held(made_up)
    assert end is not None
    assert end.total_bytes == 200
    assert end.num_storages == 2
    (in_step,) = held(made_up, step=0)
    assert in_step is not None
    assert in_step.total_bytes == 200


def test_the_end_is_before_the_function_lets_go_of_what_it_held() -> None:
    rank = made.Rank(0)
    with rank.span("train()", 0.0, 4.0):
        with rank.span("step", 0.0, 3.0):
            rank.alloc(0, 100, "parameters", 0.0)
            rank.alloc(1, 30, "scratch", 1.0)
            rank.free(1, 30, "scratch", 2.0)
        rank.free(0, 100, "parameters", 4.0)
    (end,) = held(record(rank))
    assert end is not None
    assert end.total_bytes == 100
    only = made.Rank(0)
    only.alloc(0, 10, "scratch", 0.0)
    (end,) = held(record(only))
    assert end is not None
    assert end.total_bytes == 10


def test_the_last_span_of_a_name_counts_unless_a_step_is_named() -> None:
    rank = made.Rank(0)
    for number in range(3):
        with rank.span("step", None, None), rank.span("forward", None, None):
            rank.alloc(number, 10, "activations")
    made_up = record(rank, source="dry")
    for step_number, expected in ((None, 30), (0, 10), (1, 20)):
        (found,) = held(made_up, after="forward", step=step_number)
        assert found is not None
        assert found.total_bytes == expected


def test_a_rank_without_the_span_has_no_answer() -> None:
    other = made.Rank(1)
    other.alloc(0, 7, "scratch", 0.0)
    first, second = held(record(step(), other), after="backward")
    assert first is not None
    assert second is None


def test_a_rank_that_allocates_nothing_holds_nothing() -> None:
    (peak,) = peaks(record(made.Rank(0)))
    assert (peak.total_bytes, peak.seq, peak.at_s) == (0, -1, None)
    assert curve(record(made.Rank(0)), 0).totals == ()
    assert peaks(record()) == held(record()) == []


@pytest.mark.parametrize("seed", range(20))
def test_peaks_and_curves_agree_with_counting_by_hand(seed: int) -> None:
    rng = random.Random(seed)
    rank = made.Rank(0)
    alive: dict[int, tuple[int, str]] = {}
    most = 0
    for number in range(200):
        if alive and rng.random() < 0.45:
            storage = rng.choice(sorted(alive))
            rank.free(storage, *alive.pop(storage), at=float(number))  # type: ignore[arg-type]
        else:
            alive[number] = rng.randrange(1000), rng.choice(KINDS)
            rank.alloc(number, *alive[number], at=float(number))  # type: ignore[arg-type]
        most = max(most, sum(size for size, _ in alive.values()))
    made_up = record(rank)
    (peak,), found = peaks(made_up), curve(made_up, 0)
    assert peak.total_bytes == max(found.totals) == most
    assert found.totals[-1] == sum(size for size, _ in alive.values())
    assert found.times_s is not None
    assert peak.at_s == found.times_s[found.totals.index(most)]


def test_a_record_that_does_not_tell_of_memory_says_what_to_do() -> None:
    for look in (peaks, held, lambda p: curve(p, 0)):
        with pytest.raises(UsageError, match=r"level 'comm'.*record=\"work\""):
            look(record(step(), level="comm"))
        with pytest.raises(UsageError, match="rank 0 lost 3"):
            look(record(step(), dropped=(3,)))


def test_a_rank_or_span_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"ranks \(0,\); got rank 4"):
        curve(record(step()), 4)
    with pytest.raises(UsageError, match=r"named 'fwd'.*backward, forward, step"):
        held(record(step()), after="fwd")
    with pytest.raises(UsageError, match=r"in step 5; the record has 1 steps"):
        held(record(step()), after="forward", step=5)


def wrong(*changes: tuple[str, int, int, str]) -> Program:
    rank = made.Rank(0)
    for what, storage, size, kind in changes:
        getattr(rank, what)(storage, size, kind, 0.0)
    return record(rank)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("free", 3, 8, "scratch")], "storage 3, 8 bytes of scratch, but it is not"),
        ([("alloc", 0, 8, "scratch")] * 2, "holds 8 bytes of scratch already"),
        ([("alloc", 0, 8, "scratch"), ("free", 0, 9, "scratch")], "it holds 8 bytes"),
        ([("alloc", 0, 8, "scratch"), ("free", 0, 8, "buffers")], "bytes of scratch"),
    ],
    ids=["freed twice", "made twice", "another size", "another kind"],
)
def test_a_ledger_that_cannot_be_is_refused(changes: list, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        peaks(wrong(*changes))
