"""From an exception on a rank to a message for the learner.

The traceback keeps the learner's own lines, and the last line of a library where that
is where it was raised. Cells are named as IPython names them: `Cell In[5], line 3`.
"""

from __future__ import annotations

import re
import time
import traceback

from labkit.record.site import LABKIT_FOLDER, is_library
from labkit.runtime.rank import namespace, travel
from labkit.runtime.rank.messages import Failure, Job


class Stopped(KeyboardInterrupt):
    """Raised in a rank's main thread when the kernel asks it to come back."""


def describe(error: BaseException, job: Job) -> Failure:
    """What the kernel shows of `error`."""
    return Failure(
        job_id=job.id,
        type_name=type(error).__name__,
        message=_words(error),
        text=_format(error, job.labels),
        stopped=isinstance(error, Stopped),
        variables=namespace.variables(),
        at_s=time.monotonic(),
        exception=_pickled(error),
    )


def _words(error: BaseException) -> str:
    """`str(error)`, or what it is where that raises."""
    try:
        return str(error)
    except Exception as trouble:
        return f"(its own text cannot be had: {type(trouble).__name__})"


def _pickled(error: BaseException) -> bytes | None:
    """The exception itself, where it can travel."""
    try:
        return travel.dumps(error.with_traceback(None), to_rank=False)[0]
    except Exception:
        return None


def _format(error: BaseException, labels: dict[str, str]) -> str:
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _keep_own_lines(summary)
    return relabel("".join(summary.format()).rstrip(), labels)


def _keep_own_lines(summary: traceback.TracebackException) -> None:
    frames = list(summary.stack)
    own = [frame for frame in frames if not is_library(frame.filename)]
    last = frames[-1].filename if frames else LABKIT_FOLDER
    if own and is_library(last) and not last.startswith(LABKIT_FOLDER):
        own.append(frames[-1])
    summary.stack = traceback.StackSummary.from_list(own)
    for linked in (summary.__cause__, summary.__context__):
        if linked is not None:
            _keep_own_lines(linked)


def relabel(text: str, labels: dict[str, str]) -> str:
    """Name cells, in the lines of a traceback, as the notebook numbers them."""

    def name(match: re.Match[str]) -> str:
        filename = match.group(1)
        return labels.get(filename, match.group(0))

    return re.sub(r'File "([^"\n]+)"', name, text)
