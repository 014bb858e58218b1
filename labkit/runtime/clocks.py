"""How the clocks of ranks elsewhere compare with this machine's.

Ranks of this machine read its clock. Those of other nodes are asked for theirs when a
run begins and when it has ended: see `labkit.record.clock`.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from labkit.record.clock import NUM_SAMPLES, Drift, Fix, Sample, fix
from labkit.record.program import Clock
from labkit.runtime.rank.wire import FrameKind

if TYPE_CHECKING:
    from labkit.runtime.drive import Drive

LONGEST_ROUND_S = 0.5
TICK_S = 0.02
_questions = itertools.count()


def compare(drive: Drive) -> dict[int, Fix]:
    """Each rank's clock now, for those that are elsewhere and answer."""
    samples: defaultdict[int, list[Sample]] = defaultdict(list)
    asked = set(drive.ranks) & drive.team.elsewhere
    for _ in range(NUM_SAMPLES if asked else 0):
        found = _round(drive, asked, str(next(_questions)).encode())
        for rank, sample in found.items():
            samples[rank].append(sample)
        asked = set(found)
    return {rank: fix(found) for rank, found in samples.items()}


def _round(drive: Drive, asked: set[int], echo: bytes) -> dict[int, Sample]:
    """Ask each rank once; an older question's answer does not count."""
    sent_s: dict[int, float] = {}
    for rank in sorted(asked):
        sent_s[rank] = time.monotonic()
        drive.team.generation.channels.send(FrameKind.PING, rank, echo)
    found: dict[int, Sample] = {}
    deadline_s = time.monotonic() + LONGEST_ROUND_S
    while asked - set(found) and time.monotonic() < deadline_s:
        drive.pump(TICK_S)
        now_s = time.monotonic()
        for rank in asked - set(found):
            pong = drive.pongs.get(rank)
            if pong is not None and pong.echo == echo:
                found[rank] = Sample(sent_s[rank], pong.at_s, now_s)
    return found


def clock(rank: int, starts: dict[int, Fix], ends: dict[int, Fix]) -> Clock:
    """What a rank's times must be set back by: nothing on this machine's clock."""
    if rank not in starts:
        return Clock()
    return Drift(starts[rank], ends.get(rank, starts[rank])).clock()
