"""What is said below a picture of replayed times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.errors import UsageError
from labkit.replay.caption import caption
from labkit.replay.catalog import hardware
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta
from tests.replay.programs import Draft

MACHINE = AlphaBeta(flops_per_s=1.0, launch_s=0.25, notes=())


def said(flops: float, machine: AlphaBeta = MACHINE) -> str:
    draft = Draft(1)
    draft.work(0, flops)
    return caption(machine, replay(draft.program(), machine))


def test_the_share_of_launches_and_latency() -> None:
    assert said(0.75) == "Launches and latency are 25 % of the critical path."


def test_a_toy_is_said_to_be_launch_bound() -> None:
    assert said(0.05) == (
        "Launches and latency are 83 % of the critical path: it is launch-bound, so a "
        "larger model would look different."
    )


def test_what_the_model_leaves_out_follows() -> None:
    told = replace(MACHINE, notes=("Clouds.", "Rain."))
    assert said(1.0, told).endswith("path. Left out: Clouds. Rain.")


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "2x dgx-h100 ethernet"])
def test_a_machine_of_the_catalogue_says_what_it_leaves_out(name: str) -> None:
    draft = Draft(2)
    draft.sync("all_reduce", num_bytes=1 << 20)
    machine = hardware(name)
    told = caption(machine, replay(draft.program(), machine))
    for words in ("multiprocessors", "memory bandwidth", "algorithm", "fused"):
        assert words in told


def test_the_times_of_another_machine_are_refused() -> None:
    program = replay(Draft(1).program(), MACHINE)
    with pytest.raises(UsageError, match="Replay it there first"):
        caption(hardware("dgx-h100"), program)
