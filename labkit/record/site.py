"""Which line of the learner's code made a call."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

import torch

from labkit.record.events import Site

LABKIT_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
# Compared with file names of code objects, which Path may not spell alike ("a//b").
_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,  # noqa: PTH120
    LABKIT_FOLDER,
    os.path.dirname(os.__file__) + os.sep,  # noqa: PTH120
    "<frozen ",
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@cache
def is_library(filename: str) -> bool:
    """Whether a file is torch's, labkit's, Python's or an installed package's."""
    return filename.startswith(_LIBRARIES) or any(
        part in filename for part in _INSTALLED
    )


def _innermost_own(frame: FrameType | None) -> Site | None:
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            return Site(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def calling_site() -> Site | None:
    """The innermost line that is neither torch's nor labkit's.

    A thread of autograd's own has no such line: there, the main thread's is taken,
    which stands at `loss.backward()`.
    """
    site = _innermost_own(inspect.currentframe())
    if site is None and threading.current_thread() is not threading.main_thread():
        site = _innermost_own(frame_of(threading.main_thread().ident or 0))
    return site


def is_called_from(filename: str) -> bool:
    """Whether the function that asks was called by code of this file."""
    return _caller_file(inspect.currentframe()) == filename


def _caller_file(asking: FrameType | None) -> str | None:
    # A frame must not be a local of itself: that cycle keeps its tensors alive.
    asked = asking.f_back if asking else None
    caller = asked.f_back if asked else None
    return caller.f_code.co_filename if caller else None


def frame_of(thread_id: int) -> FrameType | None:
    """Where a thread of this process stands; None if there is no such thread."""
    # Documented in the sys module, for all its underscore.
    return sys._current_frames().get(thread_id)  # pyright: ignore[reportPrivateUsage]


def calling_site_of(traceback: TracebackType | None) -> Site | None:
    """The innermost line of a traceback that is neither torch's nor labkit's."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library(code.co_filename):
            found = Site(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found
