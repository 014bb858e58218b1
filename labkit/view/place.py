"""A place under a cell: something is shown there, and later something else instead.

The cell is the one that ran when the place was made, also if it is filled from another
thread while a second cell runs: `display` would put it under that one.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

from labkit.view.bundle import Still

Bundle = dict[str, Any]


class Place:
    """Where the output of one cell goes; empty until `show`."""

    def __init__(self) -> None:
        self._publisher = _publisher()
        self._cell = getattr(self._publisher, "parent_header", None)
        self._id = secrets.token_hex(8)
        self._is_taken = False
        self._may_be_retaken = False

    def __reduce__(self) -> tuple[type[Place], tuple[()]]:
        """In another process it is no place any more."""
        return Place, ()

    def show(self, data: Bundle, metadata: Bundle | None = None) -> None:
        """Show a bundle by MIME type, in place of what was shown before."""
        update, self._is_taken = self._is_taken, True
        if self._publisher is None:
            return
        transient = {"display_id": self._id}
        sizes = metadata or {}
        if getattr(self._publisher, "parent_header", None) == self._cell:
            self._publisher.publish(
                data=data, metadata=sizes, transient=transient, update=update
            )
            return
        # The publisher is another cell's by now.
        self._publisher.session.send(
            self._publisher.pub_socket,
            "update_display_data" if update else "display_data",
            {"data": data, "metadata": sizes, "transient": transient},
            parent=self._cell,
            ident=b"display_data",
        )

    def show_still(self, still: Still) -> None:
        """Show a picture that stays: interactive, as an image and as text."""
        self.show(still.bundle(), still.metadata)
        self._may_be_retaken = True

    def retake(self, still: Still) -> bool:
        """Show a picture instead of the one that stays, once, while its cell runs.

        A cell that asks for the picture which its run has left anyhow has one, not two.
        """
        here = getattr(self._publisher, "parent_header", None)
        if not self._may_be_retaken or here != self._cell:
            return False
        self._may_be_retaken = False
        self.show(still.bundle(), still.metadata)
        return True


def _publisher() -> Any:
    """What the running IPython shell publishes with; None outside of one."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return None if shell is None else shell.display_pub
