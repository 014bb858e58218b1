"""How each kind of memory looks: a colour of Okabe and Ito's, and a hatching."""

from __future__ import annotations

from typing import NamedTuple

from labkit.record.events import MemoryKind

LINE_PIXELS, AXIS_PIXELS, CURVE_PIXELS = 18, 46, 200
TOP_PIXELS = 64
_BAR_PIXELS, _MIN_BAR_PIXELS, _MAX_BARS_PIXELS = 30, 8, 640


class KindLook(NamedTuple):
    """`pattern` in plotly's words, `hatch` in matplotlib's."""

    color: str
    pattern: str
    hatch: str


LOOKS: dict[MemoryKind, KindLook] = {
    "parameters": KindLook("#0072B2", "", ""),
    "gradients": KindLook("#E69F00", "/", "///"),
    "optimizer": KindLook("#CC79A7", "x", "xxx"),
    "activations": KindLook("#009E73", "\\", "\\\\\\"),
    "buffers": KindLook("#56B4E9", ".", "..."),
    "scratch": KindLook("#999999", "-", "---"),
}


def bar_pixels(num_ranks: int) -> int:
    """The height of a rank's bar with its gap: less where there are many ranks."""
    fits = _MAX_BARS_PIXELS // max(1, num_ranks)
    return max(_MIN_BAR_PIXELS, min(_BAR_PIXELS, fits))
