"""Points and messages that come of faults; guesses, hints, and what they show."""

from __future__ import annotations

import pytest

from labkit import hint, predict, reveal
from labkit.checks import guess
from labkit.checks.verdict import Fault, Property, Verdict, judge
from labkit.errors import UsageError

OUT_OF = {Property.VALUES: 3, Property.TRAFFIC: 2, Property.SCHEDULE: 5}


def verdict(*faults: Fault) -> Verdict:
    return judge("0.2", "Exchange <fast>", OUT_OF, faults, "Played: <all>.")


def points(given: Verdict) -> list[int]:
    return [line.points for line in given.lines]


def test_no_fault_earns_everything() -> None:
    assert points(verdict()) == [3, 2, 5]
    assert verdict().passed


def test_a_fault_costs_its_own_property() -> None:
    given = verdict(Fault(Property.TRAFFIC, "a pair", "3 messages, at most 1"))
    assert points(given) == [3, 0, 5]
    assert not given.passed
    assert "3 messages, at most 1 (a pair)" in str(given)


def test_a_partial_fault_keeps_some_points() -> None:
    given = verdict(
        Fault(Property.SCHEDULE, "a pair", "2 rounds", kept=2),
        Fault(Property.SCHEDULE, "a ring", "3 rounds", kept=2),
    )
    assert points(given) == [3, 2, 2]
    assert "2 rounds (a pair; and in 1 more case)" in str(given)


def test_the_gravest_fault_counts_and_is_shown() -> None:
    given = verdict(
        Fault(Property.SCHEDULE, "a pair", "2 rounds", kept=2),
        Fault(Property.SCHEDULE, "a ring", "stuck"),
    )
    assert points(given) == [3, 2, 0]
    assert "stuck (a ring; and in 1 more case)" in str(given)


def test_wrong_values_earn_nothing_anywhere_and_every_message_is_shown() -> None:
    given = verdict(
        Fault(Property.VALUES, "a pair", "must be 2, is 5"),
        Fault(Property.SCHEDULE, "a pair", "2 rounds", kept=2),
    )
    assert points(given) == [0, 0, 0]
    text = str(given)
    for message in ("must be 2, is 5", "2 rounds", "wrong values earn nothing"):
        assert message in text


def test_html_escapes_what_a_function_says() -> None:
    given = verdict(Fault(Property.VALUES, "a pair", "<script>alert()</script>"))
    shown = given.to_html()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "Exchange &lt;fast&gt;" in shown
    assert "Played: &lt;all&gt;." in shown


def test_lines_of_a_message_stay_in_their_column() -> None:
    given = verdict(Fault(Property.VALUES, "a pair", "one\ntwo"))
    first, second = str(given).splitlines()[1:3]
    assert second.index("two") == first.index("one")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guess, "_guesses", {})
    monkeypatch.setattr("labkit.checks._hints_given", {})


@pytest.mark.parametrize(
    ("guessed", "computed", "unit", "shown"),
    [
        (4, 0, "", "counter: you said 4, it is 0"),
        (0, 0, "", "counter: you said 0, it is 0 - as you said"),
        (0.5, 62.5, "", "counter: you said 0.5, it is 62.5"),
        (2, 0.116, "s", "counter: you said 2 s, it is 116 ms"),
        (3, 1800, "km", "counter: you said 3 km, it is 1,800 km"),
    ],
)
def test_a_guess_is_shown_beside_the_number(
    guessed: float,
    computed: float,
    unit: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    predict("counter", guessed)
    reveal("counter", computed, unit)
    assert capsys.readouterr().out.splitlines()[-1] == shown


def test_no_guess_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    predict("counter", 4)
    predict("counter", ...)
    reveal("counter", 0)
    assert "it is 0 (you made no guess)" in capsys.readouterr().out


@pytest.mark.parametrize("odd", ["4", None, True, float("nan"), float("inf"), [4]])
def test_a_guess_is_one_number(odd: object) -> None:
    with pytest.raises(UsageError, match="a prediction is one number; got"):
        predict("counter", odd)


def test_hints_unfold_one_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(4):
        hint("0.1")
        told.append(capsys.readouterr().out)
    assert [text.count("Hint ") for text in told] == [1, 2, 3, 3]
    assert "the last one" in told[2]
    assert "the last one" not in told[1]


def test_hints_of_an_exercise_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"0\.1, 0\.2, 0\.3; got '0\.7'"):
        hint("0.7")
