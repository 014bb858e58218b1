"""Exercise 0.1: every rank speaks once, in rank order, held by messages alone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from labkit.checks import verify
from labkit.checks.exercise import Answer, Exercise, Judged, Played, Stage, Where
from labkit.checks.playing import play_all
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.record import recorder as recording

SPOKE = "spoke"
MAX_TOKEN_BYTES = 8
LATE_S = 0.03


@dataclass(frozen=True)
class Case:
    """One world in which everybody speaks; rank r begins after `delays_s[r]`."""

    name: str
    where: Where
    delays_s: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.delays_s)


def speak_on_rank(
    group: dist.ProcessGroup, speak_in_order: Answer, delays_s: tuple[float, ...]
) -> None:
    """What each rank runs: be late, then call the answer with a `say` of its own."""
    time.sleep(delays_s[dist.get_rank(group)])
    recorder = recording.current()
    speak_in_order(lambda: recorder.mark(SPOKE), group)


def cases(seed: int) -> Iterator[Case]:
    """1 to 8 ranks on threads, a part of the world, then processes with late ranks."""
    # Four first: the first fault seen is the one that is shown.
    for world_size in (4, 1, 2, 3, 8):
        name = f"{plural(world_size, 'rank')}, threads"
        yield Case(name, "threads", (0.0,) * world_size)
    yield Case("3 ranks, a part of the world", "a part", (0.0,) * 3)
    source = random.Random(seed)
    for name, delays_s in (
        ("rank 0 late", (LATE_S, 0, 0, 0)),
        ("rank 3 late", (0, 0, 0, LATE_S)),
        ("late at random", tuple(source.random() * LATE_S for _ in range(4))),
    ):
        yield Case(f"4 ranks, processes, {name}", "processes", delays_s)


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Play every world."""

    def play(case: Case) -> Played:
        return stage.play(case.where, case.size, speak_on_rank, answer, case.delays_s)

    return play_all(cases(seed), play, faults_of, seed)


def faults_of(case: Case, played: Played) -> Iterator[Fault]:
    """Judge one case: who spoke, how many messages, what came before what."""
    if played.error is not None:
        yield Fault(Property.VALUES, case.name, str(played.error))
        return
    for property_, message in (
        (Property.VALUES, _speakers(played.record)),
        (Property.TRAFFIC, _traffic(played.record)),
        (Property.SCHEDULE, _order(played.record)),
    ):
        if message is not None:
            yield Fault(property_, case.name, message)


def _speakers(record: Record) -> str | None:
    """Each rank spoke once, itself."""
    spoken = verify.count_marks(record, SPOKE)
    if spoken == [1] * len(spoken):
        return None
    rank = next(rank for rank, times in enumerate(spoken) if times != 1)
    silent = [rank for rank, times in enumerate(spoken) if not times]
    loud = [rank for rank, times in enumerate(spoken) if times > 1]
    rule = "each rank must call say() once, itself: "
    if silent and loud:
        return rule + (
            f"rank {silent[0]} never spoke, rank {loud[0]} spoke for it "
            f"({spoken[loud[0]]} times); send permission to speak, not the words"
        )
    if silent:
        return rule + f"rank {rank} never spoke; is its turn skipped by an `if`?"
    return rule + f"rank {rank} spoke {spoken[rank]} times; call say() once"


def _traffic(record: Record) -> str | None:
    """At most p - 1 small messages, and no collective."""
    world_size, sent = len(record), verify.sends(record)
    are = "is" if world_size == 2 else "are"
    enough = (
        f"{plural(world_size - 1, 'message')} {are} enough for "
        f"{plural(world_size, 'rank')}"
    )
    collectives = verify.count_collectives(record)
    if collectives:
        kind, count = collectives.most_common(1)[0]
        return (
            f"{plural(count, kind)}; {enough}; a collective makes every rank wait for "
            "every other, use send and recv"
        )
    if len(sent) > world_size - 1:
        return (
            f"{plural(len(sent), 'message')}, at most {world_size - 1}: {enough}; who "
            "may speak first without permission, and whose word does nobody wait for?"
        )
    largest = max((comm.payload_bytes for comm in sent), default=0)
    if largest > MAX_TOKEN_BYTES:
        return (
            f"a message of {largest} bytes, at most {MAX_TOKEN_BYTES}; permission can "
            "be a tensor of one element"
        )
    return None


def _order(record: Record) -> str | None:
    """Each rank spoke after a message told it that the rank before it had spoken."""
    if 0 in verify.count_marks(record, SPOKE):
        return None
    matched = verify.match(record)
    for rank in range(len(record) - 1):
        first = verify.find_mark(record, rank, SPOKE)
        then = verify.find_mark(record, rank + 1, SPOKE)
        known = verify.news(record, then, matched)[rank]
        if known >= first.index:
            continue
        if known >= 0:
            return (
                f"rank {rank + 1} must speak after rank {rank} has spoken: the message "
                f"that rank {rank} sent came before its own say(); speak, then send"
            )
        return (
            f"order held by the clock: no message of rank {rank} came before rank "
            f"{rank + 1} spoke; let rank {rank + 1} wait for one"
        )
    return None


EXERCISE = Exercise(
    id="0.1",
    title="Speak in order",
    signature="speak_in_order(say, group)",
    points={Property.VALUES: 3, Property.TRAFFIC: 4, Property.SCHEDULE: 3},
    hints=(
        "Which rank may speak without anybody's permission?",
        "Permission can be a tensor of one element: what it holds does not matter.",
        "Receive from rank - 1 unless rank is 0; speak; send to rank + 1 unless you "
        "are the last.",
    ),
    judge=judge,
)
