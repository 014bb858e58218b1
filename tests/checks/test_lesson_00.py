"""Each check of lesson 00 against right answers, named wrong ones, and mutants."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit import check
from labkit.checks import assess, playing, progress, run
from labkit.checks.exercise import UNANSWERED, find
from labkit.checks.run import RankStage
from labkit.checks.verdict import Verdict
from labkit.course.source import read_lesson, strip_solution
from labkit.errors import CheckFailed, UsageError
from tests.checks import answers_00 as answers
from tests.mutants import Mutant, mutants

SOURCE = Path(__file__).parents[2] / "solutions" / "00_your_cluster.py"
HOLES = {
    cell.exercise: cell.text
    for cell in read_lesson(SOURCE).cells
    if cell.role == "hole"
}
NAMES = {"torch": torch, "dist": dist, "defaultdict": defaultdict}
FULL = {"0.1": [3, 4, 3], "0.2": [3, 2, 5], "0.3": [10]}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def stage() -> Iterator[RankStage]:
    """Ranks that the tests of this file share: they start once."""
    with RankStage() as ranks:
        yield ranks


def name_of(exercise: str) -> str:
    return find(exercise).signature.partition("(")[0]


def function(exercise: str, source: str) -> Callable[..., Any]:
    return Mutant("none", source).function(name_of(exercise), NAMES)


def judged(stage: RankStage, exercise: str, answer: Callable[..., Any]) -> Verdict:
    return assess(find(exercise), answer, stage, seed=None)


def points(verdict: Verdict) -> list[int]:
    return [line.points for line in verdict.lines]


@pytest.mark.parametrize("exercise", FULL)
def test_the_reference_passes(
    exercise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = check(exercise, function(exercise, HOLES[exercise]))
    assert points(verdict) == FULL[exercise]
    shown = capsys.readouterr().out
    assert "10 of 10 points" in shown
    assert "seed" in shown


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("exercise", FULL)
def test_the_reference_passes_for_other_seeds(
    stage: RankStage, exercise: str, seed: int
) -> None:
    answer = function(exercise, HOLES[exercise])
    verdict = assess(find(exercise), answer, stage, seed=seed)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("exercise", FULL)
def test_the_hole_fails(stage: RankStage, exercise: str) -> None:
    hole = function(exercise, strip_solution(HOLES[exercise]))
    verdict = judged(stage, exercise, hole)
    assert sum(points(verdict)) == 0
    assert "write your answer here" in str(verdict)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("0.1", answers.asynchronous),
        ("0.1", answers.rank_as_token),
        ("0.1", answers.batched),
        ("0.2", answers.batched_exchange),
        ("0.2", answers.send_started_first),
        ("0.2", answers.receive_started_first),
        ("0.3", answers.busy_time),
    ],
)
def test_other_right_answers_pass(
    stage: RankStage, exercise: str, answer: Callable[..., Any]
) -> None:
    verdict = judged(stage, exercise, answer)
    assert points(verdict) == FULL[exercise], str(verdict)


def test_receiving_from_whoever_sends_is_right_too() -> None:
    # Ranks of its own: what comes after must not be numbered after such a receive.
    assert check("0.1", answers.from_anybody).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "expected", "messages"),
    [
        (
            answers.by_the_clock,
            [3, 4, 0],
            ["order held by the clock: no message of rank 0 came before rank 1 spoke"],
        ),
        (
            answers.a_barrier_a_turn,
            [3, 0, 3],
            ["4 barriers; 3 messages are enough for 4 ranks"],
        ),
        (
            answers.gather_and_speak_on_0,
            [0, 0, 0],
            [
                "rank 1 never spoke, rank 0 spoke for it (4 times)",
                "1 gather; 3 messages",
            ],
        ),
        (
            answers.token_all_the_way_round,
            [0, 0, 0],
            ["4 messages, at most 3", "destination rank should not be the same"],
        ),
        (
            answers.send_then_speak,
            [3, 4, 0],
            ["the message that rank 0 sent came before its own say()"],
        ),
        (answers.at_once, [3, 4, 0], ["order held by the clock"]),
        (answers.twice, [0, 0, 0], ["rank 0 spoke 2 times; call say() once"]),
        (answers.never, [0, 0, 0], ["rank 0 never spoke"]),
        (answers.a_large_token, [3, 0, 3], ["a message of 12 bytes, at most 8"]),
        (answers.a_master_that_calls, [3, 0, 3], ["6 messages, at most 3"]),
        (
            answers.places_as_ranks,
            [0, 0, 0],
            ["a part of the world", "here the group is ranks 1, 3, 5 of 6: `dst="],
        ),
        (answers.whatever_the_group, [0, 0, 0], ["places in the group"]),
        (answers.only_for_four, [3, 4, 0], ["2 ranks, threads; and in 3 more cases"]),
    ],
)
def test_wrong_orders_are_told(
    stage: RankStage,
    answer: Callable[..., Any],
    expected: list[int],
    messages: list[str],
) -> None:
    verdict = judged(stage, "0.1", answer)
    for message in messages:
        assert message in str(verdict)
    assert points(verdict) == expected, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "expected", "messages"),
    [
        (answers.even_ranks_first, [3, 2, 2], ["rounds: a full-duplex link needs one"]),
        (
            answers.send_then_receive,
            [0, 0, 0],
            ["cyclic: rank 0 sends to 1 (line ", "rank 1 sends to 0 (line "],
        ),
        (
            answers.receive_then_send,
            [0, 0, 0],
            ["cyclic: rank 0 receives from 1 (line ", "rank 1 receives from 0 (line "],
        ),
        (
            answers.with_two_tags,
            [0, 0, 0],
            ["to 1 (line ", ") with tag 3"],
        ),
        (
            answers.partners_as_ranks,
            [0, 0, 0],
            ["a ring of 3 in a part of the world", "`group_dst=` and `group_src="],
        ),
        (
            answers.send_not_waited_for,
            [0, 0, 0],
            ["the buffer changed before the send had ended", "send to 1 (line "],
        ),
        (
            answers.receive_not_waited_for_on_0,
            [0, 0, 0],
            ["rank 0 must hold what rank 1 sent", "recv_M is stale", "(line "],
        ),
        (answers.by_gathering, [3, 0, 2], ["one message out and one in are enough"]),
        (
            answers.a_message_to_oneself,
            [3, 0, 5],
            ["a copy to oneself needs no message"],
        ),
        (answers.with_a_receipt, [3, 0, 2], ["sent 2 and received 2"]),
        (answers.into_a_new_tensor, [0, 0, 0], ["it holds what it held before"]),
        (answers.the_wrong_way_round, [0, 0, 0], ["must agree in number of elem"]),
    ],
)
def test_wrong_exchanges_are_told(
    stage: RankStage,
    answer: Callable[..., Any],
    expected: list[int],
    messages: list[str],
) -> None:
    verdict = judged(stage, "0.2", answer)
    for message in messages:
        assert message in str(verdict)
    assert points(verdict) == expected, str(verdict)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answers.longest_span, "it is a victim; the late rank spends least"),
        (
            answers.largest_total,
            "all ranks end together (or nearly): totals cannot tell",
        ),
        (answers.shortest_span, "left early, so its span is the shortest"),
        (answers.lost_once, "waiting ranks, got "),
        (answers.no_matter_who_is_missing, "rank 5 lacks a collective"),
        (answers.missing_without_a_name, "that names rank 5; got ValueError: somebody"),
        (answers.missing_as_a_key_error, "a ValueError is due; got KeyError"),
        (answers.highest_on_a_tie, "rank 1 expected, got 2; both waited equally"),
        (answers.first_collective_only, "s expected for 2 waiting ranks, got "),
        (answers.a_generator, "a list of (step, rank, seconds) is wanted; got gen"),
        (answers.as_a_dict, "a list of (step, rank, seconds) is wanted; got dict"),
        (answers.unordered, "in order of steps: [0, 1] expected, got [1, 0]"),
    ],
)
def test_wrong_stragglers_are_told(
    stage: RankStage, answer: Callable[..., Any], message: str
) -> None:
    verdict = judged(stage, "0.3", answer)
    assert message in str(verdict)
    assert points(verdict) == [0]


def test_lost_time_shows_both_numbers(stage: RankStage) -> None:
    text = str(judged(stage, "0.3", answers.lost_once))
    # Ranks of the first such case compute 8, 10, 20 and 9 sixteenths of a second.
    lost, once = (12 + 10 + 11) / 16, 12 / 16
    assert f"lost {lost:.4g} s expected for 3 waiting ranks, got {once:.4g}" in text


MIXED_UP = {
    "0.1": {"rank": "world_size", "world_size": "rank"},
    "0.2": {"to": "frm", "frm": "to", "send_N": "recv_M", "recv_M": "send_N"},
    "0.3": {"step": "rank", "name": "step"},
}
# These mutants keep every promise of the exercise: no check may reject them.
EQUIVALENT = {
    "0.1": (
        "one more (line 8: 1)",  # a token of 2 elements, 8 bytes
        "one less (line 8: 1)",  # a token of 0 bytes
        "swap lines before `permission",
    ),
    "0.2": (
        "swap lines before `outgoing = ",
        "swap lines before `outgoing.wait()`",
        "frm instead (line 7",  # who sends to itself receives from itself
    ),
    "0.3": (
        "list instead (line 7",  # a set of small whole numbers is in order already
        "swap lines before `starts = ",
        "swap lines before `waits = ",
        "rank instead (line 16",  # the ValueError says less
        "step instead (line 16",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("exercise", FULL)
def test_every_mutant_is_caught_that_breaks_a_promise(
    stage: RankStage, exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One fault is enough to know.
    monkeypatch.setattr(playing, "ENOUGH", 1)
    monkeypatch.setitem(run.LIMIT_S, "threads", 1.0)
    made = list(mutants(HOLES[exercise], MIXED_UP[exercise]))
    survivors = [m.change for m in made if _passes(stage, exercise, m)]
    expected = EQUIVALENT[exercise]
    assert len(made) >= 20
    assert [c for c in survivors if not c.startswith(expected)] == []
    assert len(survivors) == len(expected)


def _passes(stage: RankStage, exercise: str, mutant: Mutant) -> bool:
    answer = mutant.function(name_of(exercise), NAMES)
    return judged(stage, exercise, answer).passed


def not_a_function(say: Any) -> None:
    say()


def generator(say: Any, group: Any) -> Iterator[None]:
    yield say()


async def coroutine(say: Any, group: Any) -> None:
    say()


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            7,
            r"got 7 \(int\); pass the function itself.*check\(\"0\.1\", speak_in",
        ),
        (None, r"got None \(NoneType\)"),
        (not_a_function, r"2 arguments, by position; got not_a_function\(say"),
        (generator, "got a generator function.*take the `yield` out"),
        (coroutine, "got an async function.*take the `async` out"),
    ],
)
def test_what_is_no_answer_is_refused_before_any_rank_starts(
    odd: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RankStage", None)
    with pytest.raises(CheckFailed, match=message):
        check("0.1", odd)


@pytest.mark.parametrize("exercise", ["0.9", "0", "", "1.x", "99.1", None])
def test_an_exercise_that_does_not_exist(exercise: Any) -> None:
    with pytest.raises(UsageError, match=r"0\.1"):
        check(exercise, answers.at_once)


def loops(say: Any, group: Any) -> None:
    while True:
        pass


def shouts(say: Any, group: Any) -> None:
    for number in range(20_000):
        print("line", number, "of very many")
    say()


def raises(say: Any, group: Any) -> None:
    raise KeyError("my own mistake")


def dies(say: Any, group: Any) -> None:
    os._exit(3)


def exits(say: Any, group: Any) -> None:
    sys.exit(1)


def sleeps(say: Any, group: Any) -> None:
    time.sleep(600)


def unanswered_order(say: Any, group: Any) -> None:
    raise NotImplementedError(UNANSWERED)


def unanswered_straggler(spans: Any) -> None:
    raise NotImplementedError(UNANSWERED)


@pytest.mark.slow
@pytest.mark.parametrize("endless", [loops, sleeps])
def test_what_never_returns_is_stopped(
    endless: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.LIMIT_S, "threads", 0.5)
    with pytest.raises(CheckFailed, match=r"0\.1 Speak in order: 0 of 10") as caught:
        check("0.1", endless)
    assert "the function must return; after 0.5 s it had not" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "message"),
    [(raises, "my own mistake"), (dies, "exit status 3"), (exits, "SystemExit")],
)
def test_what_misbehaves_is_told(odd: Callable[..., Any], message: str) -> None:
    with pytest.raises(CheckFailed, match=r"0\.1 Speak in order: 0 of 10") as caught:
        check("0.1", odd)
    assert message in str(caught.value)


@pytest.mark.parametrize("exercise", ["0.1", "0.3"])
def test_a_hole_is_told_as_one_and_not_counted(
    exercise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.FOLDER, str(tmp_path))
    holes = {"0.1": unanswered_order, "0.3": unanswered_straggler}
    with pytest.raises(CheckFailed, match="is not answered yet") as caught:
        check(exercise, holes[exercise])
    assert UNANSWERED in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert progress.of(exercise) == progress.Entry()


@pytest.mark.slow
def test_what_a_function_prints_is_bounded() -> None:
    with pytest.raises(CheckFailed) as caught:
        check("0.1", shouts)
    assert "Your function printed:" in str(caught.value)
    assert len(str(caught.value)) < 2 * run.MAX_SHOWN_CHARS


def test_the_complaint_names_every_property_that_fails() -> None:
    with pytest.raises(CheckFailed) as caught:
        check("0.1", answers.gather_and_speak_on_0)
    lines = str(caught.value).splitlines()
    assert lines[0] == "0.1 Speak in order: 0 of 10 points"
    assert [line.partition(":")[0] for line in lines[1:4]] == [
        "values",
        "traffic",
        "schedule",
    ]
