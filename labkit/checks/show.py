"""Shows a thing under the cell: rich in a notebook, as text elsewhere."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Shown(Protocol):
    """What can be shown: as HTML, and as text by `str`."""

    def to_html(self) -> str:
        """The thing as HTML."""
        ...


def show(thing: Shown) -> None:
    """Display a thing as HTML in a notebook; print it in a terminal."""
    if notebook_shell() is None:
        print(thing)
        return
    from IPython.display import display

    display({"text/html": thing.to_html(), "text/plain": str(thing)}, raw=True)


def notebook_shell() -> Any:
    """The notebook's IPython shell; None outside a kernel."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
