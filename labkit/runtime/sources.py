"""Names for lines of code: as the notebook numbers its cells, with the line's text."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from labkit.errors import UsageError
from labkit.record.events import Site


def shell() -> Any:
    """The running IPython shell, or None in a plain interpreter."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


def in_notebook() -> bool:
    """Whether output goes to a notebook, which can show more than text."""
    running = shell()
    return running is not None and getattr(running, "kernel", None) is not None


def label(filename: str) -> str:
    """`Cell In[5]` for the file name of a cell, `File "train.py"` for a file."""
    running = shell()
    named = running.compile.format_code_name(filename) if running is not None else None
    return " ".join(named) if named else f'File "{Path(filename).name}"'


def named(text: str) -> str:
    """A line as Python tells it, `File "...", line 3: x`, with the file's label."""
    return re.sub(r'File "([^"\n]+)"', lambda found: label(found[1]), text)


def where(site: Site | None) -> str:
    """`Cell In[5], line 3: dist.all_reduce(x)`."""
    if site is None:
        return "a line outside the notebook"
    text = linecache.getline(site.filename, site.line).strip()
    place = f"{label(site.filename)}, line {site.line}"
    return f"{place}: {text}" if text else place


def cells(filenames: Iterable[str]) -> dict[str, str]:
    """The sources of those files that exist in memory only: cells."""
    sources = {}
    for filename in filenames:
        # Unlike Path.exists, False for a file that must not be looked at.
        if not os.path.exists(filename):  # noqa: PTH110
            lines = linecache.getlines(filename)
            if lines:
                sources[filename] = "".join(lines)
    return sources


def local_modules() -> dict[str, float]:
    """The learner's own modules, with the time their file last changed."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and is_own(name, path):
            try:
                found[name] = Path(path).stat().st_mtime
            except OSError:
                continue
    return found


_INSTALLED = ("site-packages", "dist-packages")


@cache
def is_own(name: str, path: str) -> bool:
    """Whether a module is the learner's: not installed, not Python's, not labkit's."""
    if name == "__main__" or name.partition(".")[0] == "labkit":
        return False
    if path.startswith(os.path.dirname(os.__file__)):  # noqa: PTH120
        return False
    return not any(part in path for part in _INSTALLED) and path.endswith(".py")


def _names(code: CodeType) -> set[str]:
    """Every name that a piece of code looks up, in its inner functions too."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def cell_context(source: str) -> tuple[str, dict[str, Any]]:
    """A file name for a cell, and the notebook's functions and classes it names."""
    running = shell()
    if running is None:
        return "<ranks>", {}
    filename = running.compile.cache(source, running.execution_count)
    try:
        names = _names(compile(source, filename, "exec"))
    except SyntaxError:
        names = set()
    known = running.user_ns
    brought = {
        name: known[name]
        for name in names
        if inspect.isroutine(known.get(name)) or inspect.isclass(known.get(name))
    }
    return filename, brought


def parse_ranks(line: str) -> list[int] | None:
    """The ranks that the line of a `%%ranks` names: None for all of them."""
    words = re.split(r"[,\s]+", line.strip().strip("[]()").strip())
    if words == [""]:
        return None
    chosen: list[int] = []
    for word in words:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if match is None:
            raise UsageError(
                f"%%ranks takes rank numbers, as in 0,2 or 1-3; got {word!r} in "
                f"{line.strip()!r}. Leave it empty for every rank"
            )
        first = int(match.group(1))
        chosen += range(first, int(match.group(2) or first) + 1)
    return chosen
