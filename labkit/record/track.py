"""Follows one rank's telemetry, and drafts its events of the Program.

What only the other ranks know, when a transfer could begin, is left open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from labkit.record import events as told
from labkit.record import program as kept
from labkit.record.matching import Call
from labkit.record.program import Event, Race

STEP = "step"
COMPUTE = "compute"


class End(NamedTuple):
    """When a transfer ended, who told, and how long before it may have been."""

    at: float | None = None
    source: kept.EndSource | None = None
    unsure_s: float = 0.0


class Track:
    """Follows one rank's telemetry; what is not known yet is left open in `drafts`.

    A rank counts as computing from the record's beginning, since all ranks start a run
    together, up to its own last event.
    """

    def __init__(self, rank: int, zero_s: float, level: kept.Level) -> None:
        """`zero_s` is the time of the rank's clock at which the record begins."""
        self.rank = rank
        self.calls: list[Call] = []
        self.order: list[str] = []
        self.groups: dict[str, tuple[int, ...]] = {}
        self.drafts: list[Event] = []
        self.ends: dict[int, End] = {}
        self.races: list[Race] = []
        self.caveats: list[told.Caveat] = []
        self.first_id: int | None = None
        self._zero_s = zero_s
        self._fills_gaps = level == "comm"
        self._cursor_s = 0.0
        self._standing: set[int] = set()
        self._open_waits: defaultdict[int, list[int]] = defaultdict(list)
        self._open_spans: defaultdict[int, list[int]] = defaultdict(list)
        self._ids: dict[int, int] = {}
        self._batches: dict[tuple[str, int], int] = {}
        self._num_steps = self._num_spans = 0
        self._made: dict[int, int] = {}

    def follow(self, events: Sequence[told.Event]) -> Track:
        """Take the events in their order."""
        for event in events:
            self._take(event)
        return self

    def _take(self, event: told.Event) -> None:
        match event:
            case told.CommStart():
                self._take_comm(event)
            case told.WaitStart():
                self._take_wait(event)
            case told.WaitEnd():
                self._end_wait(event)
            case told.CommEnd():
                source = "look" if event.unsure_s else "future"
                self._learn_end(
                    event.target, self._at(event.at_s), source, event.unsure_s
                )
            case told.SpanStart():
                self._open_span(event)
            case told.SpanEnd():
                self._close_span(event)
            case told.NewGroup():
                self.groups[event.uid] = event.ranks
            case told.Caveat():
                self.caveats.append(event)
            case told.RaceSeen():
                self._take_race(event)
            case _:
                self._take_plain(event)

    def _take_plain(self, event: Any) -> None:
        """The events that only change their name."""
        rank, seq = self.rank, len(self.drafts)
        match event:
            case told.Operation(name, lane, stream):
                costs = event[3:8]
                start, end = self._at(event.start_s), self._at(event.end_s)
                self.drafts.append(kept.Work(
                    rank, lane, stream, seq, name, *costs, self._span(lane), start, end
                ))  # fmt: skip
            case told.ValueRead(lane, stream, site):
                self.drafts.append(kept.HostRead(rank, lane, stream, seq, site))
            case told.Touch(target, lane, stream, cause, site):
                if target in self._ids:
                    self.drafts.append(kept.Wait(
                        rank, lane, stream, seq, target - (self.first_id or 0), "host",
                        cause, site, None, None,
                    ))  # fmt: skip
            case told.StreamMark(number, lane, stream, _):
                self.drafts.append(kept.Mark(rank, lane, stream, seq, number))
            case told.StreamWait(target, lane, stream, cause, at_s):
                self._take_stream_wait(target, lane, stream, cause, at_s)
            case told.StorageMade():
                self._take_storage(event)
            case told.StorageGone(storage, size, kind, at_s):
                at = self._at(at_s)
                self.drafts.append(kept.Free(rank, seq, storage, size, kind, at))
            case told.Moment(name, lane, at_s):
                self._fill(at_s, lane)
                seq = len(self.drafts)
                moment = kept.Moment(rank, lane, seq, name, self._at(at_s))
                self.drafts.append(moment)
            case _:
                raise AssertionError(f"no telemetry: {event!r}")

    def _take_storage(self, event: told.StorageMade) -> None:
        """It came to be, or what was scratch for want of a better word is known now."""
        storage, size, kind, at_s = event
        last = self.drafts[-1] if self.drafts else None
        made = self.drafts[self._made[storage]] if storage in self._made else None
        freed_as = (storage, size, "scratch")
        if (
            isinstance(last, kept.Free)
            and isinstance(made, kept.Alloc)
            and last[2:5] == made[2:5] == freed_as
        ):
            self.drafts[made.seq] = made._replace(kind=kind)
            self.drafts.pop()
            return
        self._made[storage] = len(self.drafts)
        self.drafts.append(
            kept.Alloc(self.rank, len(self.drafts), storage, size, kind, self._at(at_s))
        )

    def _take_race(self, event: told.RaceSeen) -> None:
        """Of a transfer that was dropped there is nothing to say where it was."""
        if event.target in self._ids:
            target = event.target - (self.first_id or 0)
            self.races.append(Race(self.rank, target, *event[1:]))

    def _at(self, clock_s: float) -> float:
        """A time of the rank's clock, on the record's."""
        return clock_s - self._zero_s

    def _span(self, lane: int) -> int | None:
        """The id of a lane's innermost open span."""
        found = self._open_spans[lane]
        if not found:
            return None
        span = self.drafts[found[-1]]
        assert isinstance(span, kept.Span)
        return span.id

    def _take_comm(self, event: told.CommStart) -> None:
        if self.first_id is None:
            self.first_id = event.id
        self._fill(event.issued_s, event.lane)
        if event.group not in self.order:
            self.order.append(event.group)
        self._ids[event.id] = len(self.drafts)
        self.calls.append(Call(self.rank, event, self._at(event.issued_s)))
        self.drafts.append(kept.Comm(
            self.rank, event.lane, event.stream, len(self.drafts),
            event.id - self.first_id, event.kind, event.group, event.group_seq,
            event.peer, event.tag, event.pair_seq, event.payload_bytes, event.dtype,
            event.op, event.send_splits, event.recv_splits, self._batch(event), True,
            event.reads, event.writes, self._span(event.lane), event.site,
            self._at(event.issued_s),
        ))  # fmt: skip

    def _batch(self, event: told.CommStart) -> int | None:
        """The number of the event's batch since the record began."""
        if event.batch is None:
            return None
        return self._batches.setdefault((event.group, event.batch), len(self._batches))

    def _take_wait(self, event: told.WaitStart) -> None:
        """A wait for a transfer of an earlier run is not of this record."""
        self._fill(event.at_s, event.lane)
        if event.lane == 0:
            self._standing.add(event.target)
        if event.target not in self._ids:
            return
        index = self._ids[event.target]
        comm = self.drafts[index]
        assert isinstance(comm, kept.Comm)
        if self._at(event.at_s) == comm.issued_s:
            self.drafts[index] = comm._replace(is_async=False)
        self._open_waits[event.target].append(len(self.drafts))
        self.drafts.append(kept.Wait(
            self.rank, event.lane, comm.stream, len(self.drafts), comm.id, "host",
            "wait", None, self._at(event.at_s), None, ok=False,
        ))  # fmt: skip

    def _take_stream_wait(
        self, target: int, lane: int, stream: int, cause: kept.Cause, at_s: float
    ) -> None:
        if cause == "wait":
            if target not in self._ids:
                return
            target -= self.first_id or 0
        self.drafts.append(kept.Wait(
            self.rank, lane, stream, len(self.drafts), target, "stream", cause, None,
            self._at(at_s), None,
        ))  # fmt: skip

    def _end_wait(self, event: told.WaitEnd) -> None:
        if event.target in self._standing:
            self._fill(event.at_s, 0)
        self._standing.discard(event.target)
        if not self._open_waits[event.target]:
            return
        index = self._open_waits[event.target].pop()
        wait = self.drafts[index]
        assert isinstance(wait, kept.Wait)
        at = self._at(event.at_s)
        self.drafts[index] = wait._replace(end_s=at, ok=event.ok)
        if event.ok:
            self._learn_end(event.target, at, "wait")

    def _learn_end(
        self, target: int, at: float, source: kept.EndSource, unsure_s: float = 0.0
    ) -> None:
        """Of two that tell of an end, the earlier one knows better."""
        known = self.ends.get(target)
        if known is None or known.at is None or at < known.at:
            self.ends[target] = End(at, source, unsure_s)

    def _open_span(self, event: told.SpanStart) -> None:
        self._fill(event.at_s, event.lane)
        if event.name == STEP and event.lane == 0:
            self._num_steps += 1
        seq = len(self.drafts)
        self.drafts.append(kept.Span(
            self.rank, event.lane, seq, self._num_spans, self._span(event.lane),
            event.name, max(0, self._num_steps - 1), event.micro_batch, event.stage,
            seq, self._at(event.at_s), None,
        ))  # fmt: skip
        self._num_spans += 1
        self._open_spans[event.lane].append(seq)

    def _close_span(self, event: told.SpanEnd) -> None:
        self._fill(event.at_s, event.lane)
        if self._open_spans[event.lane]:
            index = self._open_spans[event.lane].pop()
            span = self.drafts[index]
            assert isinstance(span, kept.Span)
            at, last = self._at(event.at_s), len(self.drafts) - 1
            self.drafts[index] = span._replace(end_s=at, last_seq=last)

    def _fill(self, clock_s: float, lane: int) -> None:
        """An event of lane 0 ends the present stretch of its compute, however short."""
        if lane:
            return
        start, self._cursor_s = self._cursor_s, max(self._cursor_s, self._at(clock_s))
        if self._fills_gaps and not self._standing:
            self.drafts.append(kept.Work(
                self.rank, 0, 0, len(self.drafts), COMPUTE, 0.0, 0.0, 0, "", None,
                self._span(0), start, self._cursor_s,
            ))  # fmt: skip
