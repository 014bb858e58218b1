"""Each check of lesson 01 against right answers, named wrong ones, and mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit.checks import assess, check, playing, run
from labkit.checks.exercise import Played, find
from labkit.checks.lesson_01 import EXERCISES, all_reduce
from labkit.checks.lesson_01.case import Came, Case
from labkit.checks.run import RankStage
from labkit.checks.verdict import Verdict
from labkit.comm import collectives
from labkit.course.source import read_lesson, strip_solution
from labkit.errors import CheckFailed
from tests.checks import answers_01 as answers
from tests.mutants import Mutant, mutants

SOURCE = Path(__file__).parents[2] / "solutions" / "01_collectives.py"
HOLES = {
    cell.exercise: cell.text
    for cell in read_lesson(SOURCE).cells
    if cell.role == "hole" and cell.exercise is not None
}
NAMES = {
    "torch": torch, "dist": dist, "exchange": collectives.exchange,
    "chunk_sizes": collectives.chunk_sizes,
}  # fmt: skip
FULL = {
    "1.1": [4, 3, 3], "1.2": [4, 4, 2], "1.3": [4, 4, 2], "1.4": [4, 4, 2],
    "1.5": [10], "1.6": [4, 3, 3],
}  # fmt: skip
pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture(scope="module")
def stage() -> Iterator[RankStage]:
    """Ranks that the tests of this file share: they start once."""
    with RankStage() as ranks:
        yield ranks


def answer(exercise: str, source: str) -> Any:
    """The function that a hole's source defines, or all that its exercise asks for."""
    wanted = find(exercise)
    names = [text.partition("(")[0] for text in (wanted.signature, *wanted.also)]
    found = tuple(Mutant("none", source).function(name, NAMES) for name in names)
    return found if wanted.also else found[0]


def judged(stage: RankStage, exercise: str, given: Any) -> Verdict:
    return assess(find(exercise), given, stage, seed=None)


def points(verdict: Verdict) -> list[int]:
    return [line.points for line in verdict.lines]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("exercise", FULL)
def test_the_reference_passes_for_any_seed(
    stage: RankStage, exercise: str, seed: int | None
) -> None:
    verdict = assess(
        find(exercise), answer(exercise, HOLES[exercise]), stage, seed=seed
    )
    assert points(verdict) == FULL[exercise], str(verdict)


@pytest.mark.parametrize("exercise", FULL)
def test_the_hole_fails(stage: RankStage, exercise: str) -> None:
    verdict = judged(stage, exercise, answer(exercise, strip_solution(HOLES[exercise])))
    assert verdict.points == 0
    assert "write your answer here" in str(verdict)


@pytest.mark.parametrize("exercise", [e.id for e in EXERCISES.values() if e.reference])
def test_what_comes_with_the_course_is_nobodys_answer(exercise: str) -> None:
    with pytest.raises(CheckFailed, match=r"of your own; got labkit\..* comes with"):
        check(exercise, find(exercise).reference)


@pytest.mark.parametrize("exercise", [e.id for e in EXERCISES.values() if e.reference])
def test_what_later_lessons_run_on_passes_too(stage: RankStage, exercise: str) -> None:
    assert judged(stage, exercise, find(exercise).reference).passed


@pytest.mark.parametrize(
    ("exercise", "other"),
    [
        ("1.1", answers.by_halving_the_range),
        ("1.2", answers.the_other_way_round),
        ("1.3", answers.from_two_halves),
        ("1.2", answers.ring_sums),
        ("1.3", answers.ring_sum_everywhere),
        ("1.4", answers.by_recursion),
        ("1.4", answers.halve_and_double),
        ("1.5", (answers.predict_s, answers.by_bisection)),
        ("1.6", answers.all_started_at_once),
        ("1.6", answers.a_tuple),
    ],
)
def test_other_right_answers_pass(stage: RankStage, exercise: str, other: Any) -> None:
    verdict = judged(stage, exercise, other)
    assert points(verdict) == FULL[exercise], str(verdict)


@pytest.mark.parametrize(
    ("exercise", "wrong", "expected", "message"),
    [
        ("1.1", answers.root_to_all, [4, 0, 0], "a tree's sends at most 2"),
        ("1.1", answers.chain, [4, 3, 0], "rounds, 2 are enough for 4 ranks"),
        ("1.1", answers.absolute_ranks, [0, 0, 0], "rank 0 sent before it had rec"),
        ("1.1", answers.places_as_ranks, [0, 0, 0], "ranks 1, 3, 5 of 6: `dst=`"),
        ("1.1", answers.one_too_far, [0, 0, 0], "a member of its group"),
        ("1.1", answers.the_backends_broadcast, [4, 0, 3], "1 broadcast of the back"),
        ("1.1", answers.not_waited_for, [0, 0, 0], "was not waited for"),
        ("1.2", answers.whole_arrays, [4, 0, 0], "(p - 1) / p of x"),
        ("1.2", answers.off_by_one, [0, 0, 0], "complete, chunk 0 expected"),
        ("1.2", answers.torchs_chunks, [0, 0, 0], "balanced chunks have ["),
        ("1.2", answers.into_x_itself, [0, 0, 0], "x_N must be as it was"),
        ("1.2", answers.everything_kept, [4, 4, 0], "chunks of scratch"),
        ("1.2", answers.straight_to_each, [4, 0, 2], "a ring turns one way"),
        ("1.2", answers.returns_nothing, [0, 0, 0], "must return its chunk; got None"),
        ("1.3", answers.gathers_whole_arrays, [4, 0, 0], "2 (p - 1) / p of x"),
        ("1.3", answers.a_mean, [0, 0, 0], "a sum is not a mean"),
        ("1.3", answers.buffers_in_a_list, [4, 4, 0], "6 chunks of scratch"),
        ("1.3", answers.half_of_it, [0, 0, 0], "x_N must be"),
        ("1.3", answers.the_backends_all_reduce, [4, 0, 2], "all_reduce of the back"),
        ("1.4", answers.powers_only, [2, 4, 2], "a member of its group"),
        ("1.4", answers.recursive_doubling, [4, 0, 2], "that would be recursive doub"),
        ("1.4", answers.far_first, [4, 4, 0], "over the slow link between them"),
        ("1.4", answers.plus_instead_of_xor, [0, 0, 0], "a member of its group"),
        ("1.4", answers.ring_sum_everywhere, [4, 0, 0], "2 log2 p"),
        ("1.6", answers.from_0_to_the_last, [4, 3, 0], "received 2 messages"),
        ("1.6", answers.padded, [4, 0, 3], "send each piece at its own size"),
        ("1.6", answers.in_order_of_arrival, [0, 0, 0], "not of arrival"),
        ("1.6", answers.skips_empty_sends, [0, 0, 0], "cyclic: rank"),
        ("1.6", answers.one_tensor, [0, 0, 0], "must return a list of 1 tensors"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_answer_is_told_what_is_wrong(
    stage: RankStage,
    exercise: str,
    wrong: Callable[..., Any],
    expected: list[int],
    message: str,
) -> None:
    verdict = judged(stage, exercise, wrong)
    assert message in str(verdict), str(verdict)
    assert points(verdict) == expected, str(verdict)


def test_right_chunks_in_the_wrong_places_are_told_as_such() -> None:
    case = Case("threads", 4, 12, torch.float32, seed=3)
    rolled = [Came(case.total().roll(3), None)] * 4
    message = all_reduce.values(case, Played(rolled, [[]] * 4))
    assert message is not None
    assert "its chunks are the right ones, rotated by 3" in message


@pytest.mark.parametrize(
    ("predict_s", "crossover_bytes", "message"),
    [
        (answers.alpha_once, answers.crossover_bytes,
         "ring, p = 2: rounds of alpha: 2 expected, got 1; alpha is paid in every"),
        (answers.rounded_down, answers.crossover_bytes,
         "tree, p = 3: rounds of alpha: 4 expected, got 2"),
        (answers.whole_arrays_round_the_ring, answers.crossover_bytes,
         "ring, p = 2: units of S x beta: 1 expected, got 2"),
        (answers.predict_s, answers.below_zero, "the ring is ahead from 0 bytes on"),
        (answers.predict_s, lambda p, a, b: None, "returned None (NoneType), no num"),
        (answers.predict_s, lambda p, a, b: 1 / (p - 1), "it raised ZeroDivisionError"),
        (answers.predict_s, lambda p, a, b: float("nan"), "got nan"),
    ],
)  # fmt: skip
def test_a_wrong_formula_is_told_which_term_is_wrong(
    stage: RankStage, predict_s: Any, crossover_bytes: Any, message: str
) -> None:
    verdict = judged(stage, "1.5", (predict_s, crossover_bytes))
    assert message in str(verdict), str(verdict)
    assert verdict.points == 0


def test_an_exercise_of_two_functions_wants_both() -> None:
    with pytest.raises(CheckFailed, match=r"1\.5 wants 2 functions, predict_s.*got 1"):
        check("1.5", answers.predict_s)
    with pytest.raises(CheckFailed, match="2 functions"):
        check("1.5")
    assert check("1.5", answers.predict_s, answers.crossover_bytes).passed


MIXED_UP = {
    "1.1": {"rank": "root", "place": "rank"},
    "1.2": {"own": "arrived", "step": "rank"},
    "1.3": {"right": "left", "own": "arrived", "known": "missing"},
    "1.4": {"mine": "theirs", "power": "p", "peer": "rank"},
    "1.6": {"to": "frm", "frm": "to", "rank": "p"},
}


@pytest.mark.parametrize(
    "every", [4, pytest.param(1, marks=pytest.mark.grid)], ids=["some", "all"]
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("exercise", MIXED_UP)
def test_nine_in_ten_mutants_are_caught(
    stage: RankStage, exercise: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make test` takes every fourth mutant, `make test-all` all of them."""
    # One fault is enough to know.
    monkeypatch.setattr(playing, "ENOUGH", 1)
    monkeypatch.setitem(run.LIMIT_S, "threads", 1.0)
    made = list(mutants(HOLES[exercise], MIXED_UP[exercise]))[::every]
    survivors = [
        mutant.change for mutant in made
        if judged(stage, exercise, answer(exercise, mutant.source)).passed
    ]  # fmt: skip
    assert len(made) >= 20 / every
    assert len(survivors) <= len(made) / 10, survivors
