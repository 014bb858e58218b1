"""Where in a test a line stands, to compare with what a message says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any


def line_of(function: Callable[..., Any], text: str) -> str:
    """`File "test_x.py", line 12: dist.barrier()`: the function's line with `text`."""
    lines, first = inspect.getsourcelines(function)
    found = [i for i, line in enumerate(lines) if text in line]
    assert len(found) == 1, f"{text!r} stands on {len(found)} lines of {function}"
    return f"{_file(function)}, line {first + found[0]}: {lines[found[0]].strip()}"


def bare_number_of(function: Callable[..., Any], text: str) -> int:
    """The number alone."""
    return int(line_of(function, text).partition(", line ")[2].partition(":")[0])


def number_of(function: Callable[..., Any], text: str) -> str:
    """`test_x.py", line 12`, as a traceback has it after the folder."""
    return line_of(function, text).partition(": ")[0].removeprefix('File "')


def _file(function: Callable[..., Any]) -> str:
    filename = inspect.getsourcefile(function)
    assert filename is not None
    return f'File "{Path(filename).name}"'


def flat(error: BaseException | str) -> str:
    """A message on one line, as it was before it was wrapped."""
    return " ".join(str(error).split())
