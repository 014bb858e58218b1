"""From what was heard to a finding: who is at the heart of it, who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from labkit.record.events import P2P, CommStart
from labkit.runtime.diagnosis.findings import Doing, Fault, Finding, Groups, State
from labkit.runtime.diagnosis.heard import Heard
from labkit.runtime.diagnosis.matching import Matcher, Misfit, Pool, Round
from labkit.runtime.diagnosis.needs import Need
from labkit.runtime.diagnosis.progress import circle, circle_fault, movers, never_come

MAX_STRAYS = 3


class Explainer:
    """Looks at all ranks and at what is open between them; changes neither."""

    def __init__(self, ranks: Sequence[Heard], matcher: Matcher) -> None:
        self._ranks = ranks
        self._matcher = matcher

    def mismatch(self) -> Finding | None:
        """The first misfit, with the calls of all ranks that have come to it by now."""
        if not self._matcher.misfits:
            return None
        misfit = self._first_misfit()
        calls = misfit.calls()
        return self._finding(
            Fault.MISMATCH, tuple(calls), calls, differs=misfit.differs
        )

    def stuck(self) -> Finding | None:
        """Ranks that cannot move: exact ones first, then those that a buffer may free.

        A rank with a thread that is free may yet move by it.
        """
        running = self._running()
        needs = {rank: need for rank in running if (need := self._need(rank))}
        tied = {r: n for r, n in needs.items() if not self._ranks[r].has_free_lane()}
        return (
            self._held(running, tied, soft=False)
            or self._deserted(running, soft=False)
            or self._held(running, needs, soft=True)
            or self._deserted(running, soft=True)
        )

    def unfinished(self) -> Finding | None:
        """A call that is left over now that all ranks have returned."""
        return self._uneven_group() or self._unmet_letter() or self._uneven_pool()

    def doing(self, rank: int) -> Doing:
        """What a rank stands still for."""
        heard, groups = self._ranks[rank], self._groups()
        wait = heard.wait()
        if wait is None:
            return Doing(heard.state, groups=groups)
        need = self._need(rank) or Need()
        peers = tuple(sorted(need.peers(soft=True)))
        call = self._call(rank, wait.target)
        return Doing(heard.state, call, wait.at_s, peers, groups)

    def _running(self) -> set[int]:
        ranks = enumerate(self._ranks)
        return {rank for rank, heard in ranks if heard.state is State.RUNNING}

    def _call(self, rank: int, comm_id: int) -> CommStart | None:
        entry = self._matcher.pending[rank].get(comm_id)
        if entry is not None:
            return entry.comm_of(rank)
        return self._ranks[rank].live.get(comm_id)

    def _need(self, rank: int) -> Need | None:
        """What the wait that a rank stands in still needs; None if nothing."""
        wait = self._ranks[rank].wait()
        entry = self._matcher.pending[rank].get(wait.target) if wait else None
        need = entry.need(rank) if entry is not None else Need()
        return need if need.peers(soft=True) else None

    def _first_misfit(self) -> Misfit:
        """The misfit seen first, or an earlier one of its group that was seen later."""
        first = self._matcher.misfits[0]
        if first.round is None:
            return first
        in_group = [
            (misfit.round.seq, i)
            for i, misfit in enumerate(self._matcher.misfits)
            if misfit.round is not None and misfit.round.group is first.round.group
        ]
        return self._matcher.misfits[min(in_group)[1]]

    def _held(
        self, running: set[int], needs: Mapping[int, Need], *, soft: bool
    ) -> Finding | None:
        """Ranks that stand in a wait which never ends."""
        moving = movers(running, needs, soft=soft)
        waits_for = {
            rank: never_come(need, moving, soft=soft)
            for rank, need in sorted(needs.items())
            if rank not in moving
        }
        if not waits_for:
            return None
        calls = {rank: self._waited_call(rank) for rank in waits_for}
        if any(not running.issuperset(peers) for peers in waits_for.values()):
            return self._absent(running, calls, waits_for, soft=soft)
        ranks = circle(waits_for)
        fault = circle_fault([calls[rank] for rank in ranks])
        return self._finding(fault, ranks, calls, waits_for, soft=soft)

    def _waited_call(self, rank: int) -> CommStart:
        wait = self._ranks[rank].wait()
        call = self._call(rank, wait.target) if wait else None
        assert call is not None, "a wait that needs somebody is for a pending transfer"
        return call

    def _deserted(self, running: set[int], *, soft: bool) -> Finding | None:
        """Transfers under way, waited for or not, whose peer has ended without them.

        DDP waits in C++, where no wait is seen.
        """
        calls: dict[int, CommStart] = {}
        waits_for: dict[int, tuple[int, ...]] = {}
        ranks = sorted(running) if len(running) < len(self._ranks) else []
        for rank in ranks:
            for entry in self._matcher.pending[rank].values():
                gone = never_come(entry.need(rank), running, soft=soft)
                if gone:
                    calls[rank], waits_for[rank] = entry.comm_of(rank), gone
                    break
        if not calls:
            return None
        return self._absent(running, calls, waits_for, soft=soft)

    def _absent(
        self,
        running: set[int],
        calls: Mapping[int, CommStart],
        waits_for: Mapping[int, tuple[int, ...]],
        *,
        soft: bool,
    ) -> Finding:
        absent = sorted({p for peers in waits_for.values() for p in peers} - running)
        waiting = [r for r in waits_for if not running.issuperset(waits_for[r])]
        return self._finding(
            Fault.ABSENT,
            tuple(sorted({*absent, *waiting})),
            {**calls, **dict.fromkeys(absent)},
            waits_for,
            absent=tuple(absent),
            made=self._made(calls[waiting[0]], absent),
            soft=soft,
        )

    def _made(self, comm: CommStart, ranks: Iterable[int]) -> dict[int, int]:
        """How many collectives each of `ranks` made on the call's group in this run."""
        made: dict[int, int] = {}
        for rank in ranks if comm.kind not in P2P else ():
            group = self._ranks[rank].groups.get(comm.group)
            if group is not None:
                made[rank] = group.counts.get(rank, 0) - group.first_seq
        return made

    def _uneven_group(self) -> Finding | None:
        groups = self._matcher.groups.values()
        meetings = [group.rounds[min(group.rounds)] for group in groups if group.rounds]
        if not meetings:
            return None
        meeting = min(meetings, key=_first_issue_s)
        absent = tuple(meeting.missing())
        return self._finding(
            Fault.UNFINISHED,
            tuple(sorted(meeting.group.members)),
            {**meeting.calls, **dict.fromkeys(absent)},
            absent=absent,
            made=self._made(next(iter(meeting.calls.values())), absent),
        )

    def _unmet_letter(self) -> Finding | None:
        letters = sorted(self._matcher.unmet(), key=lambda letter: letter.comm.issued_s)
        return self._left_over(letters[0].rank, letters[0].comm) if letters else None

    def _uneven_pool(self) -> Finding | None:
        pool = next(self._matcher.uneven_pools(), None)
        return None if pool is None else self._left_over(*_left_in(pool))

    def _left_over(self, rank: int, comm: CommStart) -> Finding:
        absent = () if comm.peer is None or comm.peer == rank else (comm.peer,)
        ranks = tuple(sorted((rank, *absent)))
        calls = {rank: comm, **dict.fromkeys(absent)}
        return self._finding(Fault.UNFINISHED, ranks, calls, absent=absent)

    def _finding(
        self,
        kind: Fault,
        ranks: tuple[int, ...],
        calls: Mapping[int, CommStart | None],
        waits_for: Mapping[int, tuple[int, ...]] | None = None,
        **more: Any,
    ) -> Finding:
        states = {rank: heard.state for rank, heard in enumerate(self._ranks)}
        strays: tuple[tuple[int, CommStart], ...] = ()
        if kind in (Fault.ABSENT, Fault.UNFINISHED):
            strays = tuple(islice(self._strays(calls), MAX_STRAYS))
        in_order = {rank: calls[rank] for rank in sorted(calls)}
        return Finding(
            kind, ranks, in_order, waits_for or {}, states, self._groups(),
            strays=strays, **more,
        )  # fmt: skip

    def _strays(
        self, calls: Mapping[int, CommStart | None]
    ) -> Iterator[tuple[int, CommStart]]:
        """Unanswered sends and receives of ranks concerned, beside the calls told."""
        told = {(rank, call.id) for rank, call in calls.items() if call is not None}
        for letter in self._matcher.unmet():
            if letter.rank in calls and (letter.rank, letter.comm.id) not in told:
                yield letter.rank, letter.comm

    def _groups(self) -> Groups:
        groups = self._matcher.groups.values()
        members = {group.uid: group.members for group in groups}
        first_seq = {group.uid: group.first_seq for group in groups}
        return Groups(len(self._ranks), members, first_seq)


def _first_issue_s(meeting: Round) -> float:
    return min(comm.issued_s for comm in meeting.calls.values())


def _left_in(pool: Pool) -> tuple[int, CommStart]:
    """A send or receive of an uneven pool: one still open, else the last made."""
    kind = "send" if pool.surplus() >= 0 else "recv"
    for letter in pool.letters.values():
        if letter.comm.kind == kind:
            return letter.rank, letter.comm
    return pool.last.get(kind) or next(iter(pool.last.values()))
