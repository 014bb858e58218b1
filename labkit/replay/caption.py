"""What must be said below a picture of times that replay computed."""

from __future__ import annotations

from labkit.record.program import Program
from labkit.replay.machine import Machine
from labkit.replay.shares import shares


def caption(machine: Machine, replayed: Program) -> str:
    """The share of launches and latency, and what the machine's model leaves out.

    Args:
        machine: The machine that the Program was replayed on.
        replayed: What replay made.

    Raises:
        UsageError: The Program has not the times of this machine.
    """
    found = shares(replayed, machine)
    percent = 100 * (found.launches + found.latency)
    told = f"Launches and latency are {percent:.0f} % of the critical path"
    if found.is_launch_bound:
        told += ": it is launch-bound, so a larger model would look different"
    left_out = " ".join(["Left out:", *machine.notes]) if machine.notes else ""
    return f"{told}. {left_out}".rstrip()
