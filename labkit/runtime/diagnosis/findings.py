"""What the diagnosis tells: one finding, with ranks, calls and who waits for whom.

[Note: call numbers] Prose counts from 1, and from the start of the run: "call #1 on the
world group" is the first collective that the run's function made there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from labkit import errors
from labkit.record.events import CommStart


class Fault(Enum):
    """What kind of misfit was found."""

    MISMATCH = "mismatch"  # calls that belong together differ
    ABSENT = "absent"  # a rank that has ended, or never ran, is waited for
    CYCLIC = "cyclic"  # sends and receives wait for each other in a circle
    GROUP_ORDER = "group order"  # a circle through different groups
    STUCK = "stuck"  # a circle of another kind
    UNFINISHED = "unfinished"  # all ranks have returned, and a call has no counterpart


class State(Enum):
    """Where a rank is in the current run."""

    IDLE = "idle"  # not asked to run
    RUNNING = "running"
    FINISHED = "finished"  # its function returned
    FAILED = "failed"  # its function raised


class Differs(Enum):
    """In what two calls that belong together differ."""

    KIND = "kind"
    RANKS = "ranks"
    ROOT = "root"
    DTYPE = "dtype"
    ELEMENTS = "elements"
    SPLITS = "splits"
    OP = "op"


_ERRORS: dict[Fault, type[errors.StuckError]] = {
    Fault.MISMATCH: errors.MismatchError,
    Fault.ABSENT: errors.AbsentRankError,
    Fault.CYCLIC: errors.CyclicWaitError,
    Fault.GROUP_ORDER: errors.GroupOrderError,
    Fault.STUCK: errors.StuckError,
    Fault.UNFINISHED: errors.AbsentRankError,
}


@dataclass(frozen=True)
class Groups:
    """The groups that ranks have made, to name them and to number their calls."""

    world_size: int
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_seq: Mapping[str, int] = field(default_factory=dict)

    def name(self, uid: str) -> str:
        """`the world group`, or `group {0, 2}` by its global ranks."""
        ranks = self.members.get(uid)
        if ranks is None:
            return f"group {uid}"
        same = [other for other, theirs in self.members.items() if theirs == ranks]
        if uid == same[0] and len(ranks) == self.world_size:
            return "the world group"
        name = "group {" + ", ".join(map(str, ranks)) + "}"
        return name if len(same) == 1 else f"{name} ({uid})"

    def number(self, comm: CommStart) -> int:
        """The call's number on its group, as in [Note: call numbers]."""
        return comm.group_seq - self.first_seq.get(comm.group, 0) + 1


@dataclass(frozen=True)
class Doing:
    """What a rank is doing; `call` is the transfer that it stands still for."""

    state: State
    call: CommStart | None = None
    since_s: float | None = None
    waits_for: tuple[int, ...] = ()
    groups: Groups = field(default_factory=lambda: Groups(0))


@dataclass(frozen=True)
class Finding:
    """One misfit between the calls of some ranks.

    Attributes:
        kind: What was found.
        ranks: The ranks at the heart of it, absent ones included.
        calls: The call of each rank concerned, stuck further out included; None for a
            rank that never makes it.
        waits_for: For each stuck rank those that will never do what it waits for.
        states: Where each rank of the cluster is.
        groups: Names and numbers for the report.
        absent: Ranks that ended, or never ran, without a call that others made.
        made: How many calls each absent rank made on the group, for a collective.
        differs: In what the calls of a mismatch differ.
        strays: Sends and receives of the ranks concerned that nobody answers.
        soft: A buffer may yet dissolve it: look again before it is told.
    """

    kind: Fault
    ranks: tuple[int, ...]
    calls: Mapping[int, CommStart | None]
    waits_for: Mapping[int, tuple[int, ...]]
    states: Mapping[int, State]
    groups: Groups
    absent: tuple[int, ...] = ()
    made: Mapping[int, int] = field(default_factory=dict)
    differs: Differs | None = None
    strays: tuple[tuple[int, CommStart], ...] = ()
    soft: bool = False

    @property
    def error(self) -> type[errors.StuckError]:
        """The class of error that it becomes."""
        return _ERRORS[self.kind]

    @property
    def failed(self) -> tuple[int, ...]:
        """Absent ranks that raised: their own error is the headline, not this."""
        return tuple(r for r in self.absent if self.states[r] is State.FAILED)
