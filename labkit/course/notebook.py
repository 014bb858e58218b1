"""Reads a notebook, whatever small faults an editor or an upload left in it.

Read are: any of Unicode's encodings with or without a mark, and Latin-1; numbers that
JSON does not have; cells without metadata; the older format 3. What comes back can be
written as JSON and UTF-8 again.
"""

from __future__ import annotations

import codecs
import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.errors import UsageError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook; each cell has a type, a source in one text, and metadata.

    Raises:
        UsageError: It is missing, or no notebook.
    """
    try:
        notebook = _parsed(_text(path))
        cells = list(_cells(notebook))
    except RecursionError:
        raise _no_notebook(path, "it is nested too deeply") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_notebook(path, f"{type(error).__name__}: {error}") from error
    return {**notebook, "metadata": _dict(notebook.get("metadata")), "cells": cells}


def _no_notebook(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} must be a Jupyter notebook of format 4; reading it gave {reason}. Try "
        "opening it in JupyterLab, or start from a fresh copy: move it away and run "
        "`labkit lab`."
    )


def _text(path: Path) -> str:
    # Opening a pipe would wait for a writer, and reading a device has no end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no file")
    content = path.read_bytes()
    if content.startswith(_UTF_16):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _parsed(text: str) -> dict[str, Any]:
    notebook = _loads(text)
    # A second time, because half a surrogate pair cannot be written as UTF-8, nor a
    # number that is too large for JSON.
    whole = json.dumps(notebook, ensure_ascii=False).encode(errors="replace")
    return _loads(whole.decode())


def _loads(text: str) -> dict[str, Any]:
    loaded: Any = json.loads(text, parse_constant=lambda name: None)
    if not isinstance(loaded, dict):
        raise TypeError(f"a {type(loaded).__name__} at the top")
    return loaded  # pyright: ignore[reportUnknownVariableType]


def _cells(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "cells" in notebook or not notebook.get("worksheets"):
        yield from map(_cell, notebook["cells"])
        return
    for sheet in notebook["worksheets"]:
        yield from map(_old_cell, sheet["cells"])


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    source, kind = cell["source"], cell["cell_type"]
    if kind not in ("code", "markdown", "raw"):
        raise ValueError(f"a cell of type {kind!r}")
    text = source if isinstance(source, str) else "".join(source)
    text = text.replace("\r\n", "\n")
    return {**cell, "source": text, "metadata": _dict(cell.get("metadata"))}


def _old_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell of format 3: other names, headings, outputs that nobody shows any more."""
    kind = "markdown" if cell["cell_type"] == "heading" else cell["cell_type"]
    made = {"cell_type": kind, "metadata": cell.get("metadata")}
    if kind == "code":
        return _cell({**made, "source": cell["input"], "outputs": []})
    return _cell({**made, "source": cell["source"]})


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
