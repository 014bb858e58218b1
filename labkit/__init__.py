"""The names that a lesson uses. Each is loaded when it is first asked for.

So `import labkit.record` costs no more than what it needs, and a rank on a bare node
needs neither JupyterLab nor a plotting library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.checks import check as check
    from labkit.checks import hint as hint
    from labkit.checks import mine as mine
    from labkit.checks.guess import predict as predict
    from labkit.checks.guess import reveal as reveal
    from labkit.errors import LabkitError as LabkitError
    from labkit.record.recorder import mark as mark
    from labkit.record.recorder import span as span
    from labkit.runtime.cluster import Cluster as Cluster
    from labkit.runtime.cluster import Run as Run
    from labkit.runtime.recorded import load as load

_HOME = {
    "Cluster": "labkit.runtime.cluster",
    "Run": "labkit.runtime.cluster",
    "load": "labkit.runtime.recorded",
    "mark": "labkit.record.recorder",
    "span": "labkit.record.recorder",
    "check": "labkit.checks",
    "hint": "labkit.checks",
    "mine": "labkit.checks",
    "predict": "labkit.checks.guess",
    "reveal": "labkit.checks.guess",
    "LabkitError": "labkit.errors",
}

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "Cluster",
    "Run",
    "load",
    "mark",
    "span",
    "check",
    "hint",
    "mine",
    "predict",
    "reveal",
    "LabkitError",
]


def __getattr__(name: str) -> Any:
    """Load a name on its first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What completion offers."""
    return __all__
