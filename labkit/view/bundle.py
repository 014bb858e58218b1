"""A picture that stays: interactive where it can be, an image and a line where not.

[Note: what a saved notebook shows] A widget re-opens as an error message. A bundle of
plotly JSON, PNG and text re-opens everywhere: JupyterLab draws the plotly figure,
GitHub and printed pages show the PNG, a screen reader or a terminal reads the text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from labkit.view.place import Place

PLOTLY = "application/vnd.plotly.v1+json"


@dataclass(frozen=True, eq=False, repr=False)
class Still:
    """A picture that does not move, in the three forms that a front end may show.

    `width` and `height` are the image's on the page. `text` says in words what the
    picture shows. `instead` is where the same picture stands already, if anywhere.
    """

    figure: go.Figure
    png: bytes
    width: int
    height: int
    text: str
    instead: Place | None = None

    def bundle(self) -> dict[str, Any]:
        """The picture by MIME type, ready for `display(..., raw=True)`."""
        return {
            PLOTLY: json.loads(str(self.figure.to_json())),
            "image/png": base64.b64encode(self.png).decode("ascii"),
            "text/plain": self.text,
        }

    @property
    def metadata(self) -> dict[str, Any]:
        """The size at which the image is shown, in the form that Jupyter wants."""
        return {"image/png": {"width": self.width, "height": self.height}}

    def save(self, path: str | Path) -> None:
        """Write the PNG to a file."""
        Path(path).write_bytes(self.png)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        """Take the place of the same picture in this cell, where there is one.

        Raises:
            NotImplementedError: There is none; IPython then shows the bundle below.
        """
        if self.instead is None or not self.instead.retake(self):
            raise NotImplementedError

    def _repr_mimebundle_(
        self,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Show the picture at the end of a cell."""
        kept = {
            mime: data
            for mime, data in self.bundle().items()
            if (not include or mime in include) and mime not in (exclude or ())
        }
        sizes = {mime: size for mime, size in self.metadata.items() if mime in kept}
        return kept, sizes
