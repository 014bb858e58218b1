"""Spans as a profiler sees them: `record_function` ranges of torch, NVTX of Nsight.

Nothing is paid while no profiler watches: entering a range costs torch several
microseconds, and a span may cost two.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_IN_NSIGHT = "NSYS_PROFILING_SESSION_ID" in os.environ
_modules = sys.modules


def watched() -> bool:
    """Whether a profiler runs in this process."""
    profiler: Any = _modules.get("torch.autograd.profiler")
    return _IN_NSIGHT or (profiler is not None and profiler._is_profiler_enabled)


def enter(name: str) -> Any:
    """Open a range; give what it returns to `leave`."""
    import torch

    opened = torch.profiler.record_function(name)
    opened.__enter__()
    if _IN_NSIGHT and torch.cuda.is_available():
        torch.cuda.nvtx.range_push(name)
    return opened


def leave(opened: Any) -> None:
    """Close a range."""
    import torch

    if _IN_NSIGHT and torch.cuda.is_available():
        torch.cuda.nvtx.range_pop()
    opened.__exit__(None, None, None)
