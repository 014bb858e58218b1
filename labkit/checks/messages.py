"""What every exercise on messages is judged for, whatever it sends: pure functions.

The caller may overwrite what it handed over as soon as the function returns, so every
transfer has ended by then; a run that did not end is explained; and what left each rank
is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from labkit.checks import verify
from labkit.checks.verdict import Fault, Property
from labkit.checks.verify import Record, plural
from labkit.errors import CyclicWaitError, LabkitError
from labkit.record.events import CommStart


class Sent(NamedTuple):
    """What left one rank: number of messages, their payload, and where they went."""

    messages: int
    payload_bytes: int
    peers: tuple[int | None, ...]


def sent(record: Record) -> list[Sent]:
    """What left each rank, its peers in the order of its messages."""
    found: list[Sent] = []
    for events in record:
        sends = [e for e in events if isinstance(e, CommStart) and e.kind == "send"]
        total = sum(send.payload_bytes for send in sends)
        found.append(Sent(len(sends), total, tuple(send.peer for send in sends)))
    return found


def collectives(record: Record) -> str | None:
    """The message where ranks called a collective that they were to build."""
    found = verify.count_collectives(record)
    if not found:
        return None
    kind, count = found.most_common(1)[0]
    return (
        f"{plural(count, kind)} of the backend's own; in this exercise you build what "
        "it does: from dist.send, recv, isend and irecv alone"
    )


def not_waited_for(record: Record, returned: str) -> tuple[int, CommStart] | None:
    """A rank, and a transfer that had not ended when the function returned."""
    for rank in range(len(record)):
        if not verify.count_marks(record, returned)[rank]:
            continue
        place = verify.find_mark(record, rank, returned)
        for comm in verify.not_waited_for(record, rank, place):
            return rank, comm
    return None


def left_open(record: Record, returned: str) -> str | None:
    """The message where a transfer had not ended when the function returned."""
    found = not_waited_for(record, returned)
    if found is None:
        return None
    rank, comm = found
    if comm.kind == "recv":
        return (
            f"every receive has ended when the function returns; rank {rank}'s "
            f"{call(comm)} was not waited for, so what it brings may come too late; "
            "call .wait() on it"
        )
    return (
        f"the caller may overwrite its array at once; rank {rank}'s {call(comm)} was "
        "not waited for, and may send what is written later; call .wait() on it"
    )


def failed(case: str, error: LabkitError, *, schedule: bool) -> Iterator[Fault]:
    """The faults of a run that did not end: a circle of waits is the schedule's."""
    if not isinstance(error, CyclicWaitError):
        yield Fault(Property.VALUES, case, str(error))
        return
    calls: Mapping[int, CommStart | None] = getattr(error.finding, "calls", {})
    tagged = any(comm.tag for comm in calls.values() if comm)
    waits = [
        f"rank {rank} {_verb(comm)}{f' with tag {comm.tag}' if tagged else ''}"
        for rank, comm in calls.items()
        if comm
    ]
    circle = f"cyclic: {', '.join(waits)}; start one without waiting for its end"
    if not schedule:
        yield Fault(Property.VALUES, case, circle)
        return
    text = "the ranks wait for each other for ever, and nothing was received"
    yield Fault(Property.VALUES, case, text)
    yield Fault(Property.SCHEDULE, case, circle)


def call(comm: CommStart) -> str:
    """`send to 1 (line 3)`."""
    verb = {"send": "send to", "recv": "receive from"}.get(comm.kind, comm.kind)
    peer = "" if comm.peer is None else f" {comm.peer}"
    line = verify.line_of(comm.site)
    return f"{verb}{peer}{f' ({line})' if line else ''}"


def _verb(comm: CommStart) -> str:
    return call(comm).replace("send", "sends", 1).replace("receive", "receives", 1)
