"""Who has what: text, HTML, escaping, and rows that do not fit."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from labkit.errors import UsageError
from labkit.view.table import NOTHING, Cell, Table, table


class Reader(HTMLParser):
    """Collects tags and text, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: Table) -> Reader:
    reader = Reader()
    reader.feed(shown._repr_html_())
    return reader


def test_text_stands_in_columns() -> None:
    shown = table(
        ["name", "rank 0", "notebook"],
        [["counter", 1, 0], ["x", "tensor(1)", None]],
        "After the run.",
    )
    assert str(shown).splitlines() == [
        "name     rank 0     notebook",
        "-------  ---------  --------",
        "counter  1          0",
        f"x        tensor(1)  {NOTHING}",
        "After the run.",
    ]
    assert repr(shown) == str(shown)


def test_html_has_a_head_a_row_head_and_every_value() -> None:
    reader = read(table(["name", "rank 0"], [["x", 7], ["y", None]], "who has what"))
    assert reader.tags.count("tr") == 3
    assert reader.tags.count("th") == 2 + 2
    assert reader.tags.count("td") == 2
    assert reader.texts == ["who has what", "name", "rank 0", "x", "7", "y", NOTHING]


@pytest.mark.parametrize("place", ["column", "value", "caption", "cell"])
def test_no_text_becomes_a_tag(place: str) -> None:
    evil = '<img src=x onerror="alert(1)">&amp;'
    shown = table(
        [evil if place == "column" else "name"],
        [[Cell(evil, "bad") if place == "cell" else evil if place == "value" else 1]],
        evil if place == "caption" else "",
    )
    reader = read(shown)
    assert "img" not in reader.tags
    assert any(evil in text for text in reader.texts)


@pytest.mark.parametrize(
    ("tone", "sign"), [("good", "\u2713 "), ("warn", "! "), ("bad", "\u2717 ")]
)
def test_a_tone_is_a_sign_too_and_not_only_a_colour(tone: str, sign: str) -> None:
    shown = table(["check", "value"], [["memory", Cell("2 GiB", tone)]])  # type: ignore[arg-type]
    assert f"{sign}2 GiB" in str(shown)
    assert f"{sign}2 GiB" in read(shown).texts


def test_colours_are_those_of_the_theme() -> None:
    html = table(["a", "b"], [[1, Cell(2, "bad")]])._repr_html_()
    assert "var(--jp-ui-font-color1" in html
    assert "var(--jp-error-color0" in html
    assert "background:#" not in html


def test_values_of_many_lines_stay_in_their_row() -> None:
    text = str(table(["a"], [["one\ntwo"]]))
    assert text.splitlines()[2] == "one two"


def test_a_row_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        UsageError, match=r"row 2 has 3 values.*2 columns.*None"
    ) as error:
        table(["a", "b"], [[1, 2], [1, 2, 3]])
    assert "Use None" in str(error.value)


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one column; got none"):
        table([], [])


def test_a_table_without_rows_shows_its_head() -> None:
    assert str(table(["a", "bb"], [])) == "a  bb\n-  --"
