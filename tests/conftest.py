"""What every test shares: a seed, and skips that a machine can forbid."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

GPU_DEVICES = ("/dev/nvidia0", "/dev/dxg")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def skip_unless(present: bool, what: str, variable: str) -> None:
    """Skip where something is missing, or fail where the machine forbids the skip."""
    if present:
        return
    if os.environ.get(variable) == "1":
        pytest.fail(f"{what} must be here because {variable}=1; none was found")
    pytest.skip(f"SKIPPED, NOT TESTED: this machine has no {what}")


@pytest.fixture(autouse=True)
def gpu_or_skip(request: pytest.FixtureRequest) -> None:
    """Skip a test marked gpu where there is none; fail under LABKIT_REQUIRE_GPU=1."""
    if request.node.get_closest_marker("gpu"):
        present = any(Path(device).exists() for device in GPU_DEVICES)
        skip_unless(present, "NVIDIA GPU", "LABKIT_REQUIRE_GPU")
