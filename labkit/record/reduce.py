"""Reduces what ranks told of themselves to one Program, on one clock, from 0.

Before: each rank's telemetry: what began, what ended, on that rank's clock, with ids
and sequence numbers that count on from run to run. After: a Program. Two runs of one
program give Programs that are equal event for event but for their times: transfers,
groups, storages and steps are numbered from the record's own beginning.

At level "comm" nobody records operations: what lane 0 did between two other events,
while it did not stand still, is one Work. Pure: no torch, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from labkit.record import events as told
from labkit.record import program as kept
from labkit.record.groups import canonical
from labkit.record.matching import Call, Matches
from labkit.record.program import Event, Header, Program, Traffic
from labkit.record.track import End, Track

_SAME_CLOCK = kept.Clock()
_NOT_KNOWN = End()


@dataclass(frozen=True)
class RankLog:
    """What one rank told.

    `groups` are those that it was a member of before; `clock` is what its clock must be
    set back by.
    """

    rank: int
    events: Sequence[told.Event]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()
    clock: kept.Clock = _SAME_CLOCK


def reduce(logs: Sequence[RankLog], header: Header | None = None) -> Program:
    """One Program of all ranks' telemetry.

    Args:
        logs: One a rank.
        header: Who recorded what; its ranks, clocks and caveats are filled in.
    """
    known = header or Header(world_size=len(logs), ranks=())
    times = [
        at - log.clock.offset_s for log in logs for event in log.events
        for at in _times(event)
    ]  # fmt: skip
    began_s = min(times, default=0.0)
    tracks = [
        Track(log.rank, began_s + log.clock.offset_s, known.level).follow(log.events)
        for log in logs
    ]
    groups = _groups(logs, tracks)
    names = canonical(groups, [track.order for track in tracks])
    matches = Matches([call for track in tracks for call in track.calls])
    return Program(
        header=_completed(known, logs, tracks),
        groups={names[uid]: ranks for uid, ranks in groups.items()},
        events=tuple(
            _Ending(track, matches, names, groups).events() for track in tracks
        ),
        traffic=tuple(
            row._replace(group=names.get(row.group, row.group))
            for log in logs for row in log.traffic
        ),
        races=tuple(race for track in tracks for race in track.races),
    )  # fmt: skip


def of_events(
    events_by_rank: Sequence[Sequence[told.Event]],
    *,
    ranks: Sequence[int] | None = None,
) -> Program:
    """The Program of bare telemetry, with nothing known of where it comes from."""
    numbers = range(len(events_by_rank)) if ranks is None else ranks
    return reduce(
        [
            RankLog(rank, events)
            for rank, events in zip(numbers, events_by_rank, strict=True)
        ]
    )


def _times(event: told.Event) -> Iterator[float]:
    for name in told.TIMES:
        at = getattr(event, name, None)
        if at is not None:
            yield at


def _completed(
    header: Header, logs: Sequence[RankLog], tracks: Sequence[Track]
) -> Header:
    """The header, with what the telemetry itself says."""
    shifted = any(log.clock != _SAME_CLOCK for log in logs)
    why: dict[str, str] = {}
    for track in tracks:
        for caveat in track.caveats:
            line = f" (line {caveat.site.line})" if caveat.site else ""
            why.setdefault(caveat.about, f"rank {track.rank}: {caveat.why}{line}")
    return replace(
        header,
        ranks=tuple(log.rank for log in logs),
        clocks=tuple(log.clock for log in logs) if shifted else (),
        timing_dependent=why.get("timing", ""),
        stream_ordered=why.get("streams", "") if header.device == "cpu" else "",
    )


def _groups(
    logs: Sequence[RankLog], tracks: Sequence[Track]
) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that is used; all of them where nobody said."""
    every = tuple(log.rank for log in logs)
    said: dict[str, tuple[int, ...]] = {}
    for log, track in zip(logs, tracks, strict=True):
        said.update(log.groups)
        said.update(track.groups)
    used = dict.fromkeys(uid for track in tracks for uid in track.order)
    return {uid: said.get(uid, every) for uid in used}


class _Ending:
    """Fills in what only all ranks together tell: arrivals, ends, common numbers."""

    def __init__(
        self,
        track: Track,
        matches: Matches,
        names: Mapping[str, str],
        groups: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._track = track
        self._matches = matches
        self._names = names
        self._groups = groups
        self._calls = iter(track.calls)

    def events(self) -> tuple[Event, ...]:
        """The rank's events, complete."""
        return tuple(map(self._complete, self._track.drafts))

    def _complete(self, event: Event) -> Event:
        if not isinstance(event, kept.Comm):
            return event
        call = next(self._calls)
        partners = self._matches.of(call)
        end = self._track.ends.get(call.comm.id, _NOT_KNOWN)
        taken = partners[0].rank if event.kind == "recv" and partners else event.peer
        group_seq, pair_seq = self._matches.numbers(call)
        return event._replace(
            group=self._names[event.group],
            group_seq=group_seq,
            pair_seq=pair_seq,
            peer=taken,
            arrived_s=self._arrival(call, partners, end.at),
            ended_s=end.at,
            end_source=end.source,
            end_unsure_s=end.unsure_s,
        )

    def _arrival(
        self, call: Call, partners: Sequence[Call], end: float | None
    ) -> float | None:
        """When the last rank came without which the call could not have ended.

        A rank that came after the end was not needed: a small send is buffered, and the
        root of a broadcast need not wait.
        """
        came = [call.at, *(partner.at for partner in partners)]
        if end is not None:
            return max(at for at in came if at <= end or at == call.at)
        needed = 2 if call.comm.peer is not None and call.is_p2p else 0
        everybody = needed or len(self._groups[call.comm.group])
        return max(came) if len(came) >= everybody else None
