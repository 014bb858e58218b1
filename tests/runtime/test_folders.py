"""The private folders in which ranks meet: none outlives its kernel for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.runtime import generation
from labkit.runtime.guard import hold


def ended_pid() -> int:
    """The id of a process that has ended and been reaped."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_folders_of_killed_kernels_are_swept_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "_parents", lambda: (str(tmp_path),) * 2)
    stale = tmp_path / f"labkit-{ended_pid()}-abc_1"
    alive = tmp_path / "labkit-1-abc_1"
    held = tmp_path / f"labkit-{ended_pid()}-held"
    other = tmp_path / "labkit-output-0"
    for folder in (stale, alive, held, other):
        folder.mkdir()
        (folder / "store").write_text("x")
        os.utime(folder, (0, 0))
    young = tmp_path / f"labkit-{ended_pid()}-young"
    young.mkdir()
    fd = hold(str(held))
    os.utime(held, (0, 0))
    try:
        generation.sweep_folders.__wrapped__()
        assert sorted(tmp_path.iterdir()) == sorted([alive, held, other, young])
    finally:
        os.close(fd)
    generation.sweep_folders.__wrapped__()
    assert sorted(tmp_path.iterdir()) == sorted([alive, other, young])
