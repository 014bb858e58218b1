"""Whether the host ran ahead of the device, in a record with times.

On a CPU a lane has done an operation before it comes to the next event. On a GPU it
only issues, and the work runs later, on a stream. A CPU's record that was given the
times of a GPU still says "cpu", since that is how its waits are to be read. Its times
tell: a lane comes to an event before the work that it issued earlier has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.record.program import Alloc, Comm, Event, Free, Program, Work
from labkit.record.soundness import SAME_S


def runs_ahead(program: Program) -> bool:
    """Whether work runs on streams, later than a lane issues it."""
    header = program.header
    if header.device == "cuda":
        return True
    return header.source == "replayed" and any(map(_is_ahead, program.events))


def _is_ahead(events: Sequence[Event]) -> bool:
    """Whether a lane came to an event before earlier work of it had ended."""
    done_s: dict[int, float] = {}
    lanes = {e.lane for e in events if not isinstance(e, Alloc | Free)}
    # Storages do not say which lane made them: it is known where there is but one.
    only = next(iter(lanes)) if len(lanes) == 1 else None
    for event in events:
        match event:
            case Work() if event.end_s is not None:
                done_s[event.lane] = max(done_s.get(event.lane, 0.0), event.end_s)
                continue
            case Comm():
                lane, at_s = event.lane, event.issued_s
            case Alloc() | Free() if only is not None:
                lane, at_s = only, event.at_s
            case _:
                continue
        if at_s is not None and at_s < done_s.get(lane, 0.0) - SAME_S:
            return True
    return False
