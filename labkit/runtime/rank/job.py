"""Running one job on a rank: a pickled call, or the source of a `%%ranks` cell."""

from __future__ import annotations

import ast
import importlib
import linecache
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch

from labkit.record import recorder
from labkit.record.operations import recorded
from labkit.runtime.rank import namespace, travel
from labkit.runtime.rank.messages import Job, Told


def prepare(job: Job) -> None:
    """Make the notebook's cells readable for tracebacks, and forget stale modules."""
    for filename, source in job.sources.items():
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
    extend_path(job.sys_path)
    forget_stale(job.modules)


def extend_path(folders: Iterable[str]) -> None:
    """Find modules where the notebook finds them by now, in its order."""
    new = [folder for folder in folders if folder not in sys.path]
    sys.path[:0] = new


_seen_modules: dict[str, float] = {}


def forget_stale(modules: dict[str, float]) -> None:
    """Drop modules whose file has changed: the next import reads the new one."""
    for name, changed_s in modules.items():
        if name in sys.modules and _seen_modules.get(name, changed_s) != changed_s:
            del sys.modules[name]
            importlib.invalidate_caches()
        _seen_modules[name] = changed_s


def run(job: Job) -> Any:
    """Run the job on the calling rank and return its result."""
    mine = recorder.current()
    mine.begin()
    with recorded(mine) if job.level == "work" else nullcontext():
        result = _run(job)
    mine.look()
    return result


def _run(job: Job) -> Any:
    if job.cell_filename is not None:
        with recorder.current().span("cell"):
            return _run_cell(job.body, job.cell_filename)
    function, args, kwargs = travel.loads(job.body)
    with recorder.current().span(f"{getattr(function, '__name__', 'function')}()"):
        return function(*args, **kwargs)


def told() -> Told:
    """What the calling rank knows of its record beside the events."""
    mine = recorder.current()
    host = socket.gethostname()
    traffic = mine.counters.rows()
    return Told(host, torch.__version__, mine.dropped, dict(mine.groups), traffic)


def _run_cell(body: bytes, filename: str) -> None:
    """Run a cell in the rank's variables; show the value of a last expression."""
    source, brought = travel.loads(body)
    variables = namespace.current()
    variables.update(brought)
    tree = ast.parse(source, filename)
    last = (
        tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    )
    exec(compile(tree, filename, "exec"), variables)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), filename, "eval"), variables)
        if value is not None:
            print(repr(value))


def enter_folder(folder: str) -> None:
    """Work where the notebook works, if that folder is still there."""
    try:
        os.chdir(folder)
    except OSError:
        return
