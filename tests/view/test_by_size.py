"""Dots and lines by size: what is drawn in plotly and as PNG, said, and refused."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from labkit.errors import UsageError
from labkit.view.by_size import COLORS, Series, by_size

SIZES = [1 << 10, 1 << 20]


def series(name: str, factor: float = 1.0) -> Series:
    return Series(name, SIZES, [factor * 1e-3, factor * 2e-3], [1e-3, 3e-3])


def test_dots_are_what_was_measured_and_lines_the_model() -> None:
    still = by_size({"all-reduce": [series("ring", 2.0)]}, title="On 4 ranks")
    dots, line = still.figure.data
    assert (dots.mode, line.mode) == ("markers", "lines")
    assert list(dots.x) == list(line.x) == SIZES
    assert list(dots.y) == [2e-3, 4e-3]
    assert list(line.y) == [1e-3, 3e-3]
    assert dots.marker.color == line.line.color
    assert still.figure.layout.xaxis.type == still.figure.layout.yaxis.type == "log"
    assert "all-reduce, ring: 1 KiB took 2 ms (model 1 ms)" in still.text


def test_a_name_has_one_colour_and_one_legend_entry() -> None:
    still = by_size({
        "broadcast": [series("naive"), series("tree")], "reduce": [series("tree")]
    })  # fmt: skip
    dots = [trace for trace in still.figure.data if trace.mode == "markers"]
    assert [trace.name for trace in dots] == ["naive", "tree", "tree"]
    assert [trace.showlegend for trace in dots] == [True, True, False]
    assert dots[0].marker.color != dots[1].marker.color == dots[2].marker.color


def test_the_image_shows_every_series() -> None:
    still = by_size({"": [series("a"), series("b", 3.0)]})
    image = np.asarray(Image.open(BytesIO(still.png)).convert("RGBA"))
    assert image.shape[:2] == (still.height, still.width)
    for color in COLORS[:2]:
        wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
        assert (image[..., :3] == wanted).all(axis=-1).sum() > 50


def test_names_are_text_and_no_markup() -> None:
    still = by_size({"$x_1$": [series("<b>$y$</b>")]}, title="$z$")
    assert "<b>" not in str(still.figure.data[0].name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (([], [1.0], []), r"'ring' has 0 sizes, 1 measured and 0 model times"),
        (([1], [0.0], [1.0]), r"finite and above 0; 'ring' has 0\.0"),
        (([1], [1.0], [float("nan")]), r"finite and above 0; 'ring' has nan"),
    ],
    ids=["lengths", "zero", "nan"],
)
def test_what_has_no_place_on_the_scale_is_refused(
    values: tuple[list[float], ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Series("ring", *values)


def test_no_series_or_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match=r"1 to 5 names of series; got \[\]"):
        by_size({})
    with pytest.raises(UsageError, match="Draw several pictures"):
        by_size({"": [series(str(place)) for place in range(6)]})
    with pytest.raises(UsageError, match="at least one size"):
        Series("ring", [], [], [])
