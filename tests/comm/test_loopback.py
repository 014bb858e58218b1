"""Wire bytes are what the loopback device says, so formula and count share no fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.comm import loopback_programs
from tests.comm.loopback_programs import DEVICES, FRAMING, PROGRAMS

WORLD_SIZES = (2, 3, 4)
NAMES = [program.__name__ for program in PROGRAMS if program.__name__ != "barriers"]
# A header each way, and an acknowledgement.
MAX_BYTES_A_BARRIER_MESSAGE = 700

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not DEVICES.exists(), reason="counters of Linux"),
]
Measured = dict[str, dict[str, int]]


def own_network() -> list[str]:
    """What starts a program in its own network namespace, where that is allowed."""
    if shutil.which("unshare") is None:
        return []
    prefix = ["unshare", "--map-root-user", "--net"]
    tried = subprocess.run([*prefix, "true"], check=False, capture_output=True)
    return prefix if tried.returncode == 0 else []


@pytest.fixture(scope="module")
def measured() -> Measured:
    script = str(loopback_programs.__file__)
    run = subprocess.run(
        [*own_network(), sys.executable, "-W", "ignore", script,
         *map(str, WORLD_SIZES)],
        check=False, timeout=230, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_counted_wire_bytes_are_the_devices_but_for_framing(
    measured: Measured, name: str, world_size: int
) -> None:
    found = measured[f"{name} {world_size}"]
    assert found["counted"] > 0
    assert 0 <= found["device"] - found["counted"] <= FRAMING * found["counted"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_barrier_has_no_payload_and_little_framing(
    measured: Measured, world_size: int
) -> None:
    found = measured[f"barriers {world_size}"]
    messages = 100 * world_size * (world_size - 1).bit_length()
    assert found["counted"] == 0
    assert 0 < found["device"] < MAX_BYTES_A_BARRIER_MESSAGE * messages


@pytest.mark.parametrize("name", ["reduce_scatter", "reduce_large"])
def test_the_formulas_of_rings_are_told_from_what_gloo_sends(
    measured: Measured, name: str
) -> None:
    """The comparison above can fail: a textbook's figure does."""
    for world_size in WORLD_SIZES:
        found = measured[f"{name} {world_size}"]
        assert found["device"] > 1.2 * found["by_rings"]
