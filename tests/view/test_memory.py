"""The picture of memory: what is drawn, in plotly, as PNG and in words."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from labkit.errors import UsageError
from labkit.record.program import Program
from labkit.units import byte_unit, format_bytes
from labkit.view.bundle import PLOTLY, Still
from labkit.view.chart import WIDTH
from labkit.view.memory import MAX_POINTS, draw, memory
from labkit.view.memory_look import LOOKS
from tests.record import made

MIB = 1 << 20


def record(num_ranks: int = 2, **more: object) -> Program:
    """Rank r keeps 4 MiB of parameters, and 8 (r + 1) MiB of activations in forward."""
    ranks = made.ranks(num_ranks)
    for rank in ranks:
        size = 8 * MIB * (rank.rank + 1)
        rank.alloc(0, 4 * MIB, "parameters", 0.0)
        with rank.span("forward", 0.0, 2.0):
            rank.alloc(1, size, "activations", 1.0)
        rank.free(1, size, "activations", 3.0)
        rank.moment("end", 4.0)
    return made.program(*ranks, **{"level": "work", **more})


def pixels(still: Still) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(still.png)).convert("RGBA"))


def share_of(still: Still, color: str) -> float:
    rgb = tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))
    return float(np.all(pixels(still) == (*rgb, 255), axis=-1).mean())


def test_bars_are_each_rank_at_its_peak_in_a_unit_that_fits() -> None:
    drawn = draw(record())
    assert drawn.unit == "MiB"
    assert [(a.kind, a.bars) for a in drawn.areas] == [
        ("parameters", (4.0, 4.0)), ("activations", (8.0, 16.0)),
    ]  # fmt: skip
    assert drawn.bar_notes == ("12 MiB in forward", "20 MiB in forward")


def test_the_curve_is_the_highest_ranks_and_lasts_to_the_end() -> None:
    drawn = draw(record())
    assert (drawn.curve_label, drawn.curve_axis) == ("rank 1", "time (s)")
    assert drawn.curve_at == (0.0, 1.0, 3.0, 4.0)
    assert [area.curve for area in drawn.areas] == [(4.0, 4.0, 4.0), (0.0, 16.0, 0.0)]
    assert drawn.peak_at == 1.0


def test_the_curve_of_a_rank_that_is_asked_for() -> None:
    drawn = draw(record(), rank=0)
    assert drawn.curve_label == "rank 0"
    assert drawn.areas[1].curve == (0.0, 8.0, 0.0)
    with pytest.raises(UsageError, match="got rank 5"):
        memory(record(), rank=5)


def test_a_dry_run_counts_events_and_says_so() -> None:
    still = memory(record(source="dry"))
    drawn = draw(record(source="dry"))
    assert drawn.curve_axis == "event"
    assert drawn.curve_at == (0, 2, 3, 5)
    assert "storages of a dry run;" in still.text
    assert " at " not in still.text


def test_where_the_host_runs_ahead_events_are_counted_too() -> None:
    rank = made.Rank(0)
    with rank.span("step", 0.0, 5.0):
        rank.work(0.0, 5.0)
        rank.alloc(0, MIB, "scratch", 0.1)
    program = made.program(rank, level="work", source="replayed")
    drawn = draw(program)
    assert (drawn.curve_axis, drawn.curve_at) == ("event", (2, 3))
    assert drawn.guides == ((0, "step 0"),)
    assert " at " not in memory(program).text


def test_steps_are_marked_on_the_curve() -> None:
    rank = made.Rank(0)
    for step in range(30):
        with rank.span("step", float(step), step + 1.0):
            rank.alloc(step, MIB, "scratch", step + 0.5)
    program = made.program(rank, level="work")
    drawn = draw(program)
    assert drawn.guides[:2] == ((0.0, "step 0"), (3.0, "step 3"))
    assert len(drawn.guides) == 10
    layout = memory(program).bundle()[PLOTLY]["layout"]
    assert "step 27" in [note["text"] for note in layout["annotations"]]
    assert len(layout["shapes"]) == 10 + 1


def test_the_words_name_the_extremes_and_the_largest_kinds() -> None:
    text = memory(record(), title="Two ranks").text
    assert text.splitlines()[:3] == [
        "Two ranks",
        "Highest peak: rank 1, 20 MiB in forward at 1 s (activations 16 MiB, "
        "parameters 4 MiB).",
        "Lowest peak: rank 0, 12 MiB in forward at 1 s (activations 8 MiB, "
        "parameters 4 MiB).",
    ]


def test_plotly_stacks_each_kind_with_its_pattern() -> None:
    data = memory(record()).bundle()[PLOTLY]["data"]
    bars = {t["name"]: t for t in data if t["type"] == "bar"}
    curves = {t["name"]: t for t in data if t["type"] == "scatter"}
    assert list(bars) == list(curves) == ["parameters", "activations"]
    for kind in ("parameters", "activations"):
        look = LOOKS[kind]
        assert bars[kind]["marker"]["pattern"]["shape"] == look.pattern
        assert curves[kind]["fillpattern"]["shape"] == look.pattern
        assert curves[kind]["stackgroup"] == "held"
        assert len(curves[kind]["x"]) == len(curves[kind]["y"]) == 4


def test_no_two_kinds_look_alike_without_colour() -> None:
    assert len({look.pattern for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.hatch for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.color for look in LOOKS.values()}) == len(LOOKS)


def test_the_image_shows_the_kinds_on_nothing() -> None:
    still = memory(record())
    assert pixels(still).shape[:2] == (still.height, still.width)
    assert still.width == WIDTH
    assert share_of(still, LOOKS["parameters"].color) > 0.02
    assert share_of(still, LOOKS["activations"].color) > 0.05
    assert share_of(still, LOOKS["optimizer"].color) == 0
    assert pixels(still)[-1, -1, 3] == 0


def test_a_long_curve_is_thinned_and_keeps_its_peak_and_its_end() -> None:
    rank = made.Rank(0)
    for number in range(5000):
        rank.alloc(number, 1000 + number % 7, "scratch", float(number))
        if number != 2501:
            rank.free(number, 1000 + number % 7, "scratch", number + 0.5)
        if number == 2503:
            rank.free(2501, 1002, "scratch", number + 0.6)
    rank.alloc(9999, 5, "buffers", 5000.0)
    drawn = draw(made.program(rank, level="work"))
    assert len(drawn.curve_at) <= MAX_POINTS + 2
    totals = [sum(values) for values in zip(*(a.curve for a in drawn.areas))]  # noqa: B905
    scale, _ = byte_unit(2010)
    assert max(totals) * scale == 1002 + 1004
    assert drawn.peak_at == 2502.0 or drawn.peak_at == 2503.0
    assert totals[-1] * scale == 5
    assert len(json.dumps(memory(made.program(rank, level="work")).bundle())) < 400_000


def test_a_long_curve_keeps_a_peak_that_comes_just_before_its_end() -> None:
    rank = made.Rank(0)
    for number in range(3 * MAX_POINTS):
        rank.alloc(number, 1, "scratch")
    rank.free(0, 1, "scratch")
    drawn = draw(made.program(rank, level="work"))
    totals = [sum(values) for values in zip(*(a.curve for a in drawn.areas))]  # noqa: B905
    assert max(totals) == drawn.areas[0].bars[0]
    assert totals[-1] == max(totals) - 1 / byte_unit(3 * MAX_POINTS)[0]
    assert drawn.peak_at == 3 * MAX_POINTS - 1


@pytest.mark.parametrize("num_ranks", [1, 64, 256])
def test_any_number_of_ranks_fits_on_a_screen_or_two(num_ranks: int) -> None:
    still = memory(record(num_ranks))
    assert pixels(still).shape[0] == still.height < 2500
    assert still.figure.layout.height < 2500


def test_ranks_that_hold_nothing_are_a_picture_too() -> None:
    still = memory(made.program(*made.ranks(2), level="work"))
    assert "rank 0, 0 B" in still.text
    assert pixels(still).size


def test_names_from_the_notebook_are_shown_and_not_obeyed() -> None:
    evil = "<a href='x'>$\\frac{1}{0}$</a>"
    rank = made.Rank(0)
    with rank.span(evil, 0.0, 1.0):
        rank.alloc(0, 8, "buffers", 0.5)
    still = memory(made.program(rank, level="work"), title=evil)
    assert evil in still.text
    assert "<a href" not in json.dumps(still.bundle()[PLOTLY])


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(UsageError, match=r'record="work"'):
        memory(record(level="comm"))
    with pytest.raises(UsageError, match="this record has 0"):
        memory(made.program(level="work"))


def test_sizes_are_said_in_powers_of_two() -> None:
    assert byte_unit(0) == (1, "B")
    assert byte_unit(1023) == (1, "B")
    assert byte_unit(1024) == (1024, "KiB")
    assert byte_unit(3 * MIB) == (MIB, "MiB")
    assert byte_unit(2.0**70) == (1 << 50, "PiB")
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(-2048) == "-2 KiB"
    assert format_bytes(12) == "12 B"
