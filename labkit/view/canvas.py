"""Widgets that draw on a canvas in the page: a look that is set once, then messages.

Nothing is told through state that changes: each custom message is one message, however
much it holds. anywidget takes a moment to load, so only where something is shown.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from labkit.view.place import Place

Canvas: TypeAlias = Literal["live", "curve"]
_SOURCES: dict[Canvas, tuple[str, ...]] = {
    "live": ("canvas_parts.js", "live_store.js", "live_canvas.js", "live.js"),
    "curve": ("canvas_parts.js", "curve.js"),
}


@cache
def widget_class(canvas: Canvas) -> Any:
    """The widget's class, with its program for the page."""
    import anywidget
    import traitlets

    folder = Path(__file__).parent
    source = "\n".join((folder / name).read_text() for name in _SOURCES[canvas])

    class CanvasWidget(anywidget.AnyWidget):
        """The kernel's end of a canvas."""

        _esm = source
        look = traitlets.Dict().tag(sync=True)

    return CanvasWidget


def show(canvas: Canvas, look: dict[str, Any], place: Place, text: str) -> Any:
    """Put a canvas on the page, and return its widget.

    `text` is what front ends without widgets show, and a notebook whose kernel is gone.
    """
    widget = widget_class(canvas)(look=look)
    data, _ = widget._repr_mimebundle_()
    place.show({**data, "text/plain": text})
    return widget


def close(widget: Any) -> None:
    """Take a widget out of the kernel and the page."""
    widget.layout.close()
    widget.close()
