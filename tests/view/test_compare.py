"""A record over another: two bands, one axis, the differences in words."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from labkit.errors import UsageError
from labkit.record.events import Site
from labkit.record.program import Program, Race, Work
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta
from labkit.view import chart
from labkit.view.bundle import PLOTLY, Still
from labkit.view.compare import compare, draw, heading
from tests.record import made


def model(**more: float) -> AlphaBeta:
    return AlphaBeta(is_cpu=True, name="a slow link", **more)


def predicted(measured: Program, **more: float) -> Program:
    """The same compute, other transfers: stretches that are measured have no FLOPs."""
    events = tuple(
        tuple(e._replace(flops=0.0) if isinstance(e, Work) else e for e in rank)
        for rank in measured.events
    )
    stretches = replace(measured, events=events)
    return replay(stretches, model(**more), compute="as measured")


@pytest.fixture(scope="module")
def shown() -> Still:
    measured = made.training(world_size=2, steps=2, late=0.5)
    return compare(measured, predicted(measured), title="One over the other")


def test_the_second_lies_under_the_first_on_one_axis() -> None:
    measured = made.training(world_size=3, steps=2)
    drawn = draw(measured, predicted(measured, alpha_s=1.0))
    assert drawn.row_labels == ("rank 0", "rank 1", "rank 2") * 2
    places = drawn.places
    assert [text for _, text in drawn.headings] == [
        "measured: this machine", "predicted: a slow link",
    ]  # fmt: skip
    rows = {round(bar.top - chart.COMPUTE_ROW[0], 6) for bar in drawn.bars}
    assert {round(place, 6) for place in places} <= rows
    under = [bar.end for bar in drawn.bars if bar.top > places[3] - 0.5]
    above = [bar.end for bar in drawn.bars if bar.top < places[2] + 0.5]
    assert len(under) + len(above) == len(drawn.bars)
    assert max(under) > max(above)
    assert drawn.duration == max(under)


def test_headings_have_room_between_the_bands() -> None:
    drawn = draw(made.training(world_size=3), made.training(world_size=3))
    gaps = np.diff(drawn.places)
    assert gaps[2] == pytest.approx(1 + drawn.heading_rows)
    assert list(gaps[[0, 1, 3, 4]]) == [1.0] * 4
    assert drawn.num_rows == pytest.approx(6 + 2 * drawn.heading_rows)
    assert drawn.places[-1] < drawn.num_rows - 0.5


def test_each_band_has_its_own_steps() -> None:
    measured = made.training(world_size=2, steps=2)
    drawn = draw(measured, predicted(measured, alpha_s=1.0))
    steps = [(dot.x, dot.label) for dot in drawn.marks]
    assert steps[:2] == [(0.0, "step 0"), (1.75, "step 1")]
    assert [label for _, label in steps[2:]] == ["step 0", "step 1"]
    assert steps[3][0] > 1.75
    assert drawn.guides == ()


def test_the_words_say_how_much_longer_and_of_what(shown: Still) -> None:
    title, first, *rest = shown.text.splitlines()
    assert title == "One over the other"
    assert first.startswith("Measured and predicted: step time 1.75 s and 1.5")
    assert "exposed transfers 250 ms and " in first
    assert "waiting for late ranks 250 ms and 250 ms (x 1)" in first
    assert [line.split(":")[0] for line in rest] == ["Above", "Below"]
    assert "measured on this machine" in rest[0]
    assert "not measured" in rest[1]


def test_two_of_a_kind_are_above_and_below() -> None:
    measured = made.training()
    text = compare(measured, measured).text
    assert text.startswith("Above and below: step time 1.75 s and 1.75 s (x 1)")
    whole = made.Rank(0)
    whole.work(0.0, 2.0)
    alone = made.program(whole)
    assert "time 2 s and 2 s (x 1); of it" in compare(alone, alone).text
    assert "0 s and 0 s," in compare(alone, alone).text


def test_other_work_is_pointed_out() -> None:
    text = compare(made.training(steps=3), made.training(steps=2)).text
    assert "Not the same work: 3 and 2 steps, 6 and 4 transfers." in text
    assert "Not the same" not in compare(made.training(), made.training()).text


def test_a_replay_of_the_record_is_the_same_work() -> None:
    measured = made.training()
    assert "Not the same" not in compare(measured, predicted(measured)).text


def test_messages_and_races_come_along() -> None:
    sender, receiver = made.ranks(2)
    sender.call("send", 0.0, 1.0, 2.0, peer=1)
    receiver.call("recv", 1.0, 1.0, 2.0, peer=0)
    race = Race(1, 0, 3, "read", "aten.add", Site("cell", 2, "f"))
    both = made.program(sender, receiver, races=(race,))
    drawn = draw(both, both)
    assert [arrow.start[1] for arrow in drawn.arrows] == [
        drawn.places[0] + sum(chart.COMM_ROW) / 2,
        drawn.places[2] + sum(chart.COMM_ROW) / 2,
    ]
    assert [dot.y for dot in drawn.races] == [
        drawn.places[1] + sum(chart.COMM_ROW) / 2,
        drawn.places[3] + sum(chart.COMM_ROW) / 2,
    ]


def test_plotly_and_the_image_show_both_bands(shown: Still) -> None:
    layout = shown.bundle()[PLOTLY]["layout"]
    assert layout["yaxis"]["ticktext"] == ["rank 0", "rank 1"] * 2
    texts = [note["text"] for note in layout["annotations"]]
    assert "<b>measured: this machine</b>" in texts
    assert "<b>predicted: a slow link</b>" in texts
    image = np.asarray(Image.open(BytesIO(shown.png)).convert("RGBA"))
    assert image.shape[0] == shown.height
    blue = np.all(image == (0, 114, 178, 255), axis=-1)[60:].any(axis=1)
    bands = np.flatnonzero(np.diff(blue.astype(int)) == 1)
    assert len(bands) == 4, "forward of two ranks, twice"


def test_the_heading_says_what_stretches_times() -> None:
    header = made.program(made.Rank(0), level="work").header
    assert heading(header) == "measured: this machine, every operation recorded"


def test_what_cannot_be_compared_says_why() -> None:
    with pytest.raises(UsageError, match=r"ranks \(0, 1\), the second of \(0, 1, 2\)"):
        compare(made.training(world_size=2), made.training(world_size=3))
    with pytest.raises(UsageError, match=r"run\.replay"):
        compare(made.program(made.Rank(0), source="dry"), made.program(made.Rank(0)))
    with pytest.raises(UsageError, match=r"ranks \(\), the second of \(\)"):
        compare(made.program(), made.program())
