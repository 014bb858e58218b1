"""The ledger of all ranks' calls: fed with their events, it tells what does not fit.

Events of one rank come in order; ranks are heard in any order, and late. Answers hold
for what has been heard so far: a mismatch, or a stuck rank that rests on no buffer,
stays true whatever comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from labkit.record.events import CommEnd, CommStart, Event, NewGroup, WaitEnd, WaitStart
from labkit.runtime.diagnosis.explain import Explainer
from labkit.runtime.diagnosis.findings import Doing, Finding, State
from labkit.runtime.diagnosis.heard import NUM_LAST_CALLS, Heard
from labkit.runtime.diagnosis.matching import Matcher


class Ledger:
    """What the ranks of one generation have called, over all its runs."""

    def __init__(
        self, world_size: int, *, ignore_tags: bool = False, rendezvous: bool = False
    ) -> None:
        """Make an empty ledger.

        Args:
            world_size: Ranks 0 to `world_size` - 1 will be heard.
            ignore_tags: The backend matches sends and receives of a pair in order,
                whatever their tag, as NCCL does.
            rendezvous: A send ends only once it is received, so a blocked one is exact.
        """
        self._ranks = [Heard() for _ in range(world_size)]
        self._matcher = Matcher(
            world_size, ignore_tags=ignore_tags, rendezvous=rendezvous
        )
        self._explainer = Explainer(self._ranks, self._matcher)
        self._handlers: dict[type, Callable[[int, Heard, Any], None]] = {
            NewGroup: self._on_new_group,
            CommStart: self._on_comm,
            WaitStart: self._on_wait_start,
            WaitEnd: self._on_wait_end,
            CommEnd: self._on_comm_end,
        }

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each group that was made, by its uid."""
        known = self._matcher.groups.values()
        return {group.uid: group.members for group in known}

    # What happens.

    def start(self, ranks: Sequence[int]) -> None:
        """A run begins on `ranks`; the others will make no call in it."""
        for group in self._matcher.groups.values():
            group.begin_run()
        for rank, heard in enumerate(self._ranks):
            heard.begin_run(State.RUNNING if rank in ranks else State.IDLE)

    def add(self, rank: int, events: Iterable[Event]) -> None:
        """Take the next events of a rank."""
        heard, handlers = self._ranks[rank], self._handlers
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(rank, heard, event)

    def finish(self, rank: int) -> None:
        """A rank's function returned; all its events have been added."""
        self._ranks[rank].state = State.FINISHED

    def fail(self, rank: int) -> None:
        """A rank's function raised; all its events have been added."""
        self._ranks[rank].state = State.FAILED

    def _on_new_group(self, rank: int, heard: Heard, event: NewGroup) -> None:
        heard.groups[event.uid] = self._matcher.join(event.uid, event.ranks)

    def _on_comm(self, rank: int, heard: Heard, comm: CommStart) -> None:
        heard.call(comm)
        group = heard.groups.get(comm.group)
        if group is not None:
            self._matcher.issue(rank, group, comm)

    def _on_wait_start(self, rank: int, heard: Heard, event: WaitStart) -> None:
        heard.waits.setdefault(event.lane, []).append(event)

    def _on_wait_end(self, rank: int, heard: Heard, event: WaitEnd) -> None:
        heard.wait_ends(event.target)
        if event.ok:
            heard.live.pop(event.target, None)
            self._matcher.end(rank, event.target)
        else:
            heard.wait_raised = True

    def _on_comm_end(self, rank: int, heard: Heard, event: CommEnd) -> None:
        heard.live.pop(event.target, None)
        self._matcher.end(rank, event.target)

    # What is wrong.

    def mismatch(self) -> Finding | None:
        """Calls that belong together and differ: exact, from the moment it is seen."""
        return None if self._is_blind() else self._explainer.mismatch()

    def stuck(self) -> Finding | None:
        """The ranks that can never go on, by what has been heard so far."""
        return None if self._is_blind() else self._explainer.stuck()

    def unfinished(self) -> Finding | None:
        """Once all ranks have returned: a call that not all its ranks have made."""
        return None if self._is_blind() else self._explainer.unfinished()

    def settled(self) -> bool:
        """Whether nothing is outstanding, so that ranks may be kept for another run."""
        return (
            not self._is_blind()
            and not self._matcher.misfits
            and self._matcher.nothing_open()
            and not any(heard.wait_raised for heard in self._ranks)
            and not any(any(heard.waits.values()) for heard in self._ranks)
        )

    def _is_blind(self) -> bool:
        """Whether events were lost: any answer could be a false alarm."""
        return any(heard.lost for heard in self._ranks)

    # What ranks do.

    def doing(self, rank: int) -> Doing:
        """What a rank stands still for right now, if it does."""
        return self._explainer.doing(rank)

    def last_calls(self, rank: int, n: int = NUM_LAST_CALLS) -> list[CommStart]:
        """The rank's last calls in this run, oldest first: at most ten."""
        calls = list(self._ranks[rank].last)
        return calls[max(0, len(calls) - n) :]

    def history(self) -> dict[int, list[CommStart]]:
        """The last calls of every rank, for `report`."""
        return {rank: list(heard.last) for rank, heard in enumerate(self._ranks)}
