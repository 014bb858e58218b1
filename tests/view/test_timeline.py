"""The picture of a record: what is drawn, in plotly, as PNG and in words."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.record.events import (
    CommStart,
    Event,
    Kind,
    Moment,
    Site,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)
from labkit.record.program import Program, Race
from labkit.record.reduce import of_events
from labkit.view import chart, image, interactive
from labkit.view import timeline as timelines
from labkit.view.bundle import PLOTLY, Still
from labkit.view.chart import WIDTH
from labkit.view.image import SHARPNESS
from labkit.view.timeline import MAX_DRAWN
from tests.record import made

GREEN, ORANGE, BLUE = (0, 158, 115), (230, 159, 0), (0, 114, 178)


def timeline(
    record: Sequence[Sequence[Event]],
    *,
    ranks: Sequence[int] | None = None,
    **texts: str,
) -> Still:
    """The picture of bare telemetry."""
    return timelines.timeline(of_events(record, ranks=ranks), **texts)


def comm(
    comm_id: int, kind: Kind, at: float, *, seq: int = 0, peer: int | None = None
) -> CommStart:
    site = Site("cell", 7, "train<T>")
    return CommStart(
        comm_id, kind, "world", seq, peer, 0, seq, ((256,),), "float32", 1024,
        "sum", None, None, 0, site, at,
    )  # fmt: skip


def training(
    world_size: int = 4, steps: int = 10, slow: int = 2, seed: int = 0
) -> list[list[Event]]:
    """Steps of forward, backward and one all_reduce; one rank takes twice as long."""
    rng = random.Random(seed)
    record: list[list[Event]] = [[] for _ in range(world_size)]
    clocks = [50.0] * world_size
    for step in range(steps):
        for rank, events in enumerate(record):
            events.append(SpanStart("step", 0, clocks[rank]))
            for name, seconds in (("forward", 0.01), ("backward", 0.02)):
                events.append(SpanStart(name, 0, clocks[rank]))
                clocks[rank] += (
                    seconds * (2 if rank == slow else 1) * rng.uniform(1, 1.1)
                )
                events.append(SpanEnd(0, clocks[rank]))
        end = max(clocks) + 0.003
        for rank, events in enumerate(record):
            call = comm(step, "all_reduce", clocks[rank], seq=step)
            events += [call, WaitStart(step, 0, clocks[rank]), WaitEnd(step, end, True)]
            events.append(SpanEnd(0, end))
            clocks[rank] = end
    return record


def messages(count: int) -> list[list[Event]]:
    """Rank 0 sends `count` messages to rank 1."""
    record: list[list[Event]] = [[], []]
    for n in range(count):
        at = n * 0.01
        for rank, kind in ((0, "send"), (1, "recv")):
            call = comm(n, kind, at + rank * 0.001, seq=n, peer=1 - rank)  # type: ignore[arg-type]
            end = WaitEnd(n, at + 0.005, True)
            record[rank] += [call, WaitStart(n, 0, call.issued_s), end]
    return record


def pixels(still: Still) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(still.png)).convert("RGBA"))


def share_of(image: np.ndarray, color: tuple[int, int, int]) -> float:
    """The share of pixels that have a colour, opaque."""
    return float(np.all(image == (*color, 255), axis=-1).mean())


def traces(still: Still) -> dict[str, dict]:
    return {trace["name"]: trace for trace in still.bundle()[PLOTLY]["data"]}


@pytest.fixture(scope="module")
def trained() -> Still:
    return timeline(training(), title="Ten steps")


def test_the_image_has_the_size_that_it_says(trained: Still) -> None:
    height, width, _ = pixels(trained).shape
    assert (width, height) == (trained.width * SHARPNESS, trained.height * SHARPNESS)
    assert trained.width == WIDTH


def test_the_image_shows_compute_and_transfer_on_nothing(trained: Still) -> None:
    image = pixels(trained)
    assert share_of(image, BLUE) > 0.01
    assert share_of(image, ORANGE) > 0.02
    assert share_of(image, GREEN) > 0.001
    corner = image[-1, -1]
    assert corner[3] == 0, "the background is transparent, for dark themes"


def test_an_all_reduce_of_a_few_bytes_can_still_be_seen() -> None:
    """A transfer much thinner than a pixel keeps its outline."""
    record: list[list[Event]] = []
    for rank in range(2):
        at = 0.2 * rank
        call = comm(0, "all_reduce", at)
        record.append(
            [Moment("m", 0, 0.0), call, WaitStart(0, 0, at), WaitEnd(0, 0.200001, True),
             Moment("m", 0, 5.0)]
        )  # fmt: skip
    below_the_legend = pixels(timeline(record))[40 * SHARPNESS :]
    image = below_the_legend.astype(int)
    red, green, blue, alpha = (image[..., channel] for channel in range(4))
    greenish = (alpha > 60) & (green > red + 60) & (green > blue + 15)
    assert greenish.sum() > 10 * SHARPNESS


def test_waiting_is_hatched_and_apart_from_transfer(trained: Still) -> None:
    shown = traces(trained)
    waiting, transfer = shown[chart.WAITING.label], shown[chart.COLLECTIVE.label]
    assert waiting["marker"]["pattern"]["shape"] == "/"
    assert "pattern" not in transfer["marker"]
    assert len(transfer["x"]) == 40
    assert len(waiting["x"]) == 30, "every rank waits at every step, but the slow one"
    slow_row = 2 + sum(chart.COMM_ROW) / 2
    assert slow_row not in waiting["y"]


def test_the_words_say_who_waited(trained: Still) -> None:
    first, second, third = trained.text.splitlines()
    assert first == "Ten steps"
    assert second.startswith("4 ranks, 10 steps, ")
    assert "Calls: all_reduce. Times: measured on this machine." in second
    assert third.startswith("Waited for other ranks: rank 0: ")
    assert "rank 2: 0 s" in third


def test_of_many_ranks_the_words_name_the_extremes() -> None:
    text = timeline(training(world_size=9, steps=2, slow=4)).text
    assert "from 0 s (rank 4) to " in text


def test_hover_says_what_where_when_how_long_and_how_much(trained: Still) -> None:
    hover = traces(trained)[chart.COLLECTIVE.label]["hovertext"][0]
    assert "all_reduce#1" in hover
    assert "rank" in hover
    assert "3 ms from" in hover
    assert "payload 1 KiB, 333 KiB/s" in hover
    assert "line 7 of train&lt;T&gt;" in hover


def test_hover_says_who_ended_a_wait(trained: Still) -> None:
    hovers = traces(trained)[chart.WAITING.label]["hovertext"]
    assert all("until rank 2 came, the last" in hover for hover in hovers)
    assert "came, the last" not in str(traces(trained)[chart.COLLECTIVE.label])


def racing(num_races: int) -> Program:
    """Rank 1 of two touches a buffer that its all_reduce still used."""
    ranks = made.ranks(2)
    for rank in ranks:
        number = rank.comm("all_reduce", 1.0, 2.0, 1.0)
        rank.wait(number, 1.5, 2.0)
    site = Site("cell", 7, "train<T>")
    races = [Race(1, 0, n, "write", "aten.add_", site) for n in range(num_races)]
    return made.program(*ranks, races=tuple(races))


def test_races_are_marked_where_their_transfer_was_issued() -> None:
    still = timelines.timeline(racing(2))
    shown = traces(still)["race"]
    assert shown["x"] == [1.0, 1.0]
    assert shown["y"] == [1 + sum(chart.COMM_ROW) / 2] * 2
    assert "rank 1: aten.add_ writes a buffer of all_reduce#1" in shown["hovertext"][0]
    assert "line 7 of train&lt;T&gt;" in shown["hovertext"][0]
    assert still.text.splitlines()[-1] == (
        "Race, before a wait: rank 1: aten.add_ writes a buffer of all_reduce#1 "
        "(line 7 of train<T>); 1 more."
    )
    yellow = (240, 228, 66)
    assert share_of(pixels(still), yellow) > 0
    without = timelines.timeline(racing(0))
    assert "race" not in traces(without)
    assert share_of(pixels(without), yellow) == 0


def test_a_long_legend_stays_in_the_image_and_off_the_title() -> None:
    """Seven looks once ran over the right edge, and over the title in plotly."""
    drawn = timelines.draw(racing(1))
    bar = drawn.bars[0]
    looks = [bar._replace(look=look, end=bar.start + 0.5) for look in chart.LOOKS]
    full = replace(drawn, bars=tuple(looks))
    png, _ = image.render(full)
    shown = np.asarray(Image.open(BytesIO(png)).convert("RGBA"))
    assert not shown[:40, -5:, 3].any()
    assert interactive.figure(full).layout.margin.t > (
        interactive.figure(drawn).layout.margin.t
    )


def test_messages_are_arrows() -> None:
    shown = traces(timeline(messages(3)))
    x = shown["message"]["x"]
    assert len(x) == 9
    assert x[:3] == [0.0, 5.0, None]
    assert "rank 0 to rank 1, 1 KiB" in shown["message"]["hovertext"]


def test_marks_are_named_where_there_is_room() -> None:
    moments = [("spoke", 0.0), ("a", 9.0), ("b", 9.001), ("c", 9.002), ("end", 20.0)]
    still = timeline([[Moment(name, 0, at) for name, at in moments]])
    shown = traces(still)["mark"]
    assert shown["text"] == ["spoke", "a", "", "c", "end"]
    sides = [where.removeprefix("middle ") for where in shown["textposition"]]
    assert sides[0] == "right", "nothing lies left of the first moment"
    assert sides[1] == "left", "the two that follow at once are in the way"
    assert sides[4] == "left", "the picture ends there"


def test_calls_whose_end_is_unknown_are_marked_as_such() -> None:
    record: list[list[Event]] = [[Moment("m", 0, 0.0), comm(0, "all_reduce", 1.0)]]
    shown = traces(timeline(record))
    assert shown["call, end not recorded"]["x"] == [1000.0]


def test_a_long_record_is_cut_and_says_so() -> None:
    still = timeline(training(steps=200))
    drawn = sum(len(t["x"]) for t in traces(still).values() if t["type"] == "bar")
    assert drawn == MAX_DRAWN
    total = 4 * 200 * 3 + 3 * 200
    assert f"{total - MAX_DRAWN} of {total} stretches are not drawn" in still.text
    assert len(still.figure.layout.shapes) < 50, "not a guide for each of 200 steps"


def test_many_ranks_share_one_screen() -> None:
    still = timeline(training(world_size=64, steps=1, slow=5))
    assert still.height < 1300
    assert pixels(still).shape[0] == still.height * SHARPNESS
    assert still.figure.layout.height < 1300


def test_a_name_in_another_script_is_no_warning() -> None:
    still = timeline([[Moment("话", 0, 0.0), Moment("b", 0, 1.0)]], title="你好")
    assert still.text.startswith("你好")


def test_names_from_the_notebook_are_shown_and_not_obeyed() -> None:
    evil = "<a href='x'>$\\frac{1}{0}$ & more</a>"
    record: list[list[Event]] = [
        [SpanStart(evil, 0, 0.0), Moment(evil, 0, 0.5), SpanEnd(0, 1.0)]
    ]
    still = timeline(record, title=evil, caption=evil)
    assert evil in still.text
    assert "<a href" not in json.dumps(still.bundle()[PLOTLY])


def test_a_long_caption_is_folded_below_the_picture() -> None:
    caption = "Left out: " + "nothing of note, " * 30 + "as it happens."
    plain, told = timeline(training()), timeline(training(), caption=caption)
    texts = [note.text for note in told.figure.layout.annotations]
    assert max(map(len, texts)) <= 128
    assert "as it happens." in " ".join(texts)
    assert told.figure.layout.height > plain.figure.layout.height
    assert told.height > plain.height
    assert caption in told.text


@pytest.mark.parametrize(
    "record",
    [[], [[]], [[], []], [[Moment("m", 0, 3.0)]]],
    ids=["no ranks", "no events", "two silent ranks", "one moment"],
)
def test_an_empty_record_is_a_picture_too(record: list[list[Event]]) -> None:
    still = timeline(record)
    assert "No communication." in still.text
    assert pixels(still).size


def test_ranks_of_a_partial_run_keep_their_numbers() -> None:
    still = timeline(training(world_size=2, slow=1), ranks=[1, 3])
    assert still.figure.layout.yaxis.ticktext == ("rank 1", "rank 3")


def test_the_time_axis_takes_a_unit_that_fits() -> None:
    def unit(seconds: float) -> str:
        shown = timeline([[Moment("a", 0, 0.0), Moment("b", 0, seconds)]])
        return shown.figure.layout.xaxis.title.text

    assert unit(3.0) == "time (s)"
    assert unit(0.3) == "time (ms)"
    assert unit(3e-5) == "time (us)"


def test_the_bundle_is_what_a_saved_notebook_needs(
    trained: Still, tmp_path: Path
) -> None:
    data, metadata = trained._repr_mimebundle_()
    assert set(data) == {PLOTLY, "image/png", "text/plain"}
    assert json.loads(json.dumps(data)) == data
    assert base64.b64decode(data["image/png"]) == trained.png
    size = {"width": trained.width, "height": trained.height}
    assert metadata == {"image/png": size}
    trained.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == trained.png


def test_the_bundle_honours_what_the_front_end_asks_for(trained: Still) -> None:
    data, metadata = trained._repr_mimebundle_(include={"text/plain"})
    assert (set(data), metadata) == ({"text/plain"}, {})
    data, _ = trained._repr_mimebundle_(exclude={PLOTLY})
    assert PLOTLY not in data


def test_ipython_shows_all_three_forms(trained: Still) -> None:
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(trained)
    assert {PLOTLY, "image/png", "text/plain"} <= set(data)
    assert data["text/plain"] == trained.text
    assert metadata["image/png"]["width"] == WIDTH


def test_a_picture_of_the_largest_size_stays_small() -> None:
    """A notebook with a few pictures can still be committed."""
    still = timeline(training(steps=200))
    assert len(json.dumps(still.bundle())) < 1_500_000


def test_a_name_that_has_no_room_is_left_out_and_its_line_stays() -> None:
    steps = [(0.0, "step 0"), (0.2, "step 1"), (2.0, "step 2"), (9.0, "step 3")]
    kept = list(chart.spaced(steps, 10.0, 20))
    assert kept == [(0.0, "step 0"), (0.2, ""), (2.0, "step 2"), (9.0, "step 3")]
    assert len(list(chart.spaced(steps * 10, 10.0, 20))) == 20
    assert list(chart.spaced([], 0.0, 20)) == []
