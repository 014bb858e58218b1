"""Starts JupyterLab on the learner's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Defaults for JupyterLab's settings: no pop-up that asks about news. The learner's own
# settings come before them.
_JUPYTER_CONFIG = Path(__file__).with_name("jupyter")


def lab_command(work: Path, extra: Sequence[str]) -> list[str]:
    """The command that opens JupyterLab on `work`; `extra` comes last, and so wins."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # JupyterLab refuses to start as root, the only user of many containers.
        command.append("--allow-root")
    return [*command, *extra]


def lab_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with the course's defaults for JupyterLab's settings."""
    paths = [environment.get("JUPYTER_CONFIG_PATH", ""), str(_JUPYTER_CONFIG)]
    joined = os.pathsep.join(filter(None, paths))
    return {**environment, "JUPYTER_CONFIG_PATH": joined}


def start_lab(work: Path, extra: Sequence[str]) -> int:
    """Run JupyterLab until the learner ends it; return its exit status."""
    process = subprocess.Popen(
        lab_command(work, extra), env=lab_environment(os.environ)
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal interrupted JupyterLab too, which asks before it ends.
            continue
