"""Figures and tables as plain text, and as HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from labkit.record.measure.figures import Figure, Grid


def text(names: Iterable[Figure], tables: Iterable[Grid], notes: Sequence[str]) -> str:
    """Everything as plain text."""
    lines = [f"{f.name}: {f.value}\n    {f.definition}" for f in names]
    for head, rows, definition in tables:
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines.append("")
        for row in (head, *rows):
            cells = (t.ljust(w) for t, w in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        lines.append(f"    {definition}")
    return "\n".join([*lines, *notes])


def as_html(
    names: Iterable[Figure], tables: Iterable[Grid], notes: Sequence[str]
) -> str:
    """Everything for a notebook."""
    small = "opacity:.75;font-size:90%"
    parts = [
        f"<div><b>{html.escape(f.name)}</b>: {html.escape(f.value)}"
        f'<div style="{small};margin:0 0 .4em 1.5em">{html.escape(f.definition)}</div>'
        "</div>"
        for f in names
    ]
    for head, rows, definition in tables:
        top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        parts.append(
            f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
            f'<div style="{small};margin-bottom:.8em">{html.escape(definition)}</div>'
        )
    parts += [f'<div style="{small}">{html.escape(note)}</div>' for note in notes]
    return "".join(parts)
