"""Whether the page that this kernel belongs to can show a widget that moves.

Three things must be there: a Jupyter server that has a page (a kernel started by a test
or a converter has none), anywidget in the kernel's Python, and JupyterLab's extensions
in the server's Python, which may be another. What is missing is told once, and pictures
that stay are shown instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil

EXTENSIONS = ("@jupyter-widgets/jupyterlab-manager", "anywidget")
PACKAGES = ("ipywidgets", "anywidget")
SESSION = "JPY_SESSION_NAME"  # Set by a Jupyter server for the kernel of a document.


@dataclass(frozen=True)
class FrontEnd:
    """Whether widgets show, and if they should but do not, what to do."""

    shows_widgets: bool
    hint: str = ""


@cache
def front_end() -> FrontEnd:
    """This kernel's front end; looked at once."""
    found = look(os.environ, _server_folders())
    if found.hint:
        sys.stderr.write(f"[labkit] {found.hint}\n")
    return found


def look(environment: Mapping[str, str], folders: Sequence[Path] | None) -> FrontEnd:
    """What these variables and a server with these folders of extensions can show.

    `folders` is None where nobody can tell which they are.
    """
    if SESSION not in environment:
        return FrontEnd(False)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        return FrontEnd(False, _hint(missing, "the kernel's Python", sys.executable))
    absent = [
        name
        for name in EXTENSIONS
        if folders is not None
        and not any((folder / name / "package.json").is_file() for folder in folders)
    ]
    if absent:
        return FrontEnd(False, _hint(absent, "JupyterLab's Python", "the server"))
    return FrontEnd(True)


def _hint(missing: Sequence[str], place: str, who: str) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"live pictures need {' and '.join(PACKAGES)} in {place} ({who}); "
        f"{' and '.join(missing)} {verb} not there. Try pip install ipywidgets "
        "anywidget there, then reload the page. Until then pictures appear when a run "
        "has ended"
    )


def _server_folders() -> list[Path] | None:
    """Where the server that started this kernel looks for extensions of JupyterLab."""
    from jupyter_core.paths import jupyter_path

    prefix = _server_prefix()
    if prefix is None:
        return None
    own = Path(sys.prefix)
    shared = [Path(path) for path in jupyter_path("labextensions")]
    kept = [path for path in shared if own not in path.parents]
    return [prefix / "share" / "jupyter" / "labextensions", *kept]


def _server_prefix() -> Path | None:
    """The folder of the server's Python: of the program or script that it runs."""
    try:
        command = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return None
    for word in command[:2]:
        path = Path(word)
        if path.is_absolute() and path.parent.name == "bin":
            return path.parent.parent
    return None
