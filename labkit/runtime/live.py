"""The live timeline of a run: when there is one, and what stays when the run broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.record.events import Event, Moment
from labkit.record.program import Header
from labkit.record.reduce import RankLog, reduce
from labkit.runtime import sources
from labkit.runtime.drive import Drive, Team

if TYPE_CHECKING:
    from labkit.view.bundle import Still
    from labkit.view.live import LiveView
    from labkit.view.place import Place

BROKEN = "The run did not end well: this is what its ranks had told by then."
STOPPED = "stopped"


def place() -> Place | None:
    """Where the cell that runs now shows its picture; None outside of a notebook."""
    if not sources.in_notebook():
        return None
    from labkit.view.place import Place

    return Place()


def view(team: Team, ranks: tuple[int, ...], where: Place | None) -> LiveView | None:
    """The live timeline of a run on some ranks, if it can have one.

    Ranks of another machine have another clock: their times are set right when the run
    has ended.
    """
    if where is None or team.elsewhere:
        return None
    from labkit.view.live import LiveView

    return LiveView(ranks, place=where, groups=team.ledger.groups)


def broken(drive: Drive, world_size: int) -> Still:
    """The timeline of what was heard of a run that did not end well."""
    from labkit.view.timeline import timeline

    team = drive.team
    header = Header(
        world_size=world_size,
        ranks=drive.ranks,
        device=team.device,
        backend=team.backend,
        level=drive.level,
    )
    logs = [RankLog(r, _told(drive, r), team.ledger.groups) for r in drive.ranks]
    return timeline(reduce(logs, header), caption=BROKEN)


def _told(drive: Drive, rank: int) -> list[Event]:
    """A rank's events; one that had not come back was at it until the run ended."""
    events = drive.events[rank]
    if rank not in drive.out() | drive.was_out or drive.judged_s is None:
        return events
    return [*events, Moment(STOPPED, 0, drive.judged_s)]
