"""Who has what: a small table for a notebook, in HTML and in plain text.

Colours are JupyterLab's own, so that it reads in dark and light, and never the only
sign: a cell that stands out carries a sign and a bold face as well.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from labkit.errors import UsageError

Tone: TypeAlias = Literal["plain", "good", "warn", "bad", "missing"]
_SIGN: dict[Tone, str] = {
    "plain": "", "good": "\u2713 ", "warn": "! ", "bad": "\u2717 ", "missing": "",
}  # fmt: skip
NOTHING = "\u2014"

_TABLE = (
    "border-collapse:collapse;margin:.4em 0;font-size:var(--jp-ui-font-size1,13px);"
    "color:var(--jp-ui-font-color1,inherit);background:transparent"
)
_LINE = "1px solid var(--jp-border-color2,#bdbdbd)"
_HEAD = f"text-align:left;padding:.3em .8em;border-bottom:{_LINE};font-weight:600"
_CELL = (
    f"text-align:left;vertical-align:top;padding:.3em .8em;border-bottom:{_LINE};"
    "white-space:pre-wrap;overflow-wrap:anywhere;max-width:40em"
)
_TONE: dict[Tone, str] = {
    "plain": "",
    "good": ";font-weight:600;color:var(--jp-success-color0,#009e73)",
    "warn": ";font-weight:600;color:var(--jp-warn-color0,#b85c00)",
    "bad": ";font-weight:600;color:var(--jp-error-color0,#d55e00)",
    "missing": ";opacity:.55",
}
_CAPTION = "caption-side:bottom;text-align:left;padding-top:.4em;opacity:.8"


class Cell(NamedTuple):
    """A value that stands out: by a sign, a bold face and a colour."""

    value: Any
    tone: Tone = "plain"

    @property
    def text(self) -> str:
        """The value as it is shown, with its sign."""
        return _SIGN[self.tone] + (NOTHING if self.value is None else str(self.value))


@dataclass(frozen=True, repr=False)
class Table:
    """A table that shows itself at the end of a cell."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __str__(self) -> str:
        lines = [self.columns, *(tuple(cell.text for cell in row) for row in self.rows)]
        flat = [tuple(" ".join(text.split()) for text in line) for line in lines]
        widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
        rule = tuple("-" * width for width in widths)
        shown = [
            "  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip()
            for line in (flat[0], rule, *flat[1:])
        ]
        return "\n".join([*shown, self.caption] if self.caption else shown)

    __repr__ = __str__

    def html(self) -> str:
        """The table for a notebook; every text in it is shown, none is obeyed."""
        head = "".join(_tag("th", name, _HEAD, scope="col") for name in self.columns)
        body = "".join(f"<tr>{_html_row(row)}</tr>" for row in self.rows)
        caption = _tag("caption", self.caption, _CAPTION) if self.caption else ""
        return (
            f'<table style="{_TABLE}">{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    _repr_html_ = html


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = ""
) -> Table:
    """Make a table: a row for each thing, a column for each holder.

    A value is shown as its text, None as a dash; `Cell(value, tone)` stands out.

    Raises UsageError for a table without columns, or a row that does not fit them.
    """
    names = tuple(str(name) for name in columns)
    if not names:
        raise UsageError(
            "a table has at least one column; got none. Name what the values are of, "
            'as in table(["variable", "rank 0"], rows)'
        )
    made: list[tuple[Cell, ...]] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise UsageError(
                f"each row of a table has one value for each column: row {number} has "
                f"{len(row)} values, and there are {len(names)} columns ({names}). Use "
                "None for what is not there"
            )
        made.append(tuple(_cell(value) for value in row))
    return Table(names, tuple(made), caption)


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(value, "missing" if value is None else "plain")


def _html_row(row: Sequence[Cell]) -> str:
    first, *rest = row
    # A name breaks between words, unless one word alone is too long.
    style = f"{_CELL};overflow-wrap:break-word;font-weight:600{_TONE[first.tone]}"
    head = _tag("th", first.text, style, scope="row")
    cells = (_tag("td", cell.text, _CELL + _TONE[cell.tone]) for cell in rest)
    return head + "".join(cells)


def _tag(name: str, text: str, style: str, **attributes: str) -> str:
    more = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<{name} style="{style}"{more}>{html.escape(text)}</{name}>'
