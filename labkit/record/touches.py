"""Who touches the buffers of transfers that are under way.

DDP waits for its all-reduces in C++, where Python sees nothing. The first operation
that touches a buffer afterwards tells that it has waited. Where nobody can have waited,
neither by `work.wait()` nor through the work's future, it is a race: the values may
come out right, and the overlap looks perfect, because the dependency is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from labkit.record.events import CommStart, RaceSeen, Touch
from labkit.record.recorder import Recorder
from labkit.record.site import calling_site

Access = Literal["read", "write"]


@dataclass
class _Pending:
    """A transfer that nobody is known to have waited for."""

    comm: CommStart
    has_future: bool = False


class Touches:
    """The buffers of one rank's pending transfers, by storage."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: dict[int, _Pending] = {}
        self._by_storage: dict[int, list[_Pending]] = {}

    @property
    def any(self) -> bool:
        """Whether any transfer is pending: if not, nothing needs to be looked at."""
        return bool(self._by_storage)

    def issued(self, comm: CommStart) -> None:
        """A transfer begins; one on the same group runs after those before it."""
        storages = {*comm.reads, *comm.writes}
        for storage in storages:
            access: Access = "write" if storage in comm.writes else "read"
            for pending in tuple(self._by_storage.get(storage, ())):
                if pending.comm.group != comm.group:
                    self._touch(pending, storage, access, comm.kind)
        pending = _Pending(comm)
        self._pending[comm.id] = pending
        for storage in storages:
            self._by_storage.setdefault(storage, []).append(pending)

    def waited(self, comm_id: int) -> None:
        """The program has waited for a transfer."""
        pending = self._pending.pop(comm_id, None)
        if pending is not None:
            self._settle(pending)

    def future_taken(self, comm_id: int) -> None:
        """Somebody took the transfer's future, and may wait through it, unseen."""
        if comm_id in self._pending:
            self._pending[comm_id].has_future = True

    def operation(self, name: str, reads: Iterable[int], writes: Iterable[int]) -> None:
        """An operation touches these storages."""
        accesses: dict[int, Access] = dict.fromkeys(reads, "read")
        accesses.update(dict.fromkeys(writes, "write"))
        for storage, access in accesses.items():
            for pending in tuple(self._by_storage.get(storage, ())):
                self._touch(pending, storage, access, name)

    def _touch(
        self, pending: _Pending, storage: int, access: Access, name: str
    ) -> None:
        """Two that only read do not disturb each other."""
        comm = pending.comm
        if access == "read" and storage not in comm.writes:
            return
        site = calling_site()
        if pending.has_future:
            lane, stream = self._recorder.lane(), self._recorder.stream
            self._recorder.add(Touch(comm.id, lane, stream, "future", site))
        else:
            self._recorder.add(RaceSeen(comm.id, storage, access, name, site))
        self._pending.pop(comm.id, None)
        self._settle(pending)

    def _settle(self, pending: _Pending) -> None:
        for storage in {*pending.comm.reads, *pending.comm.writes}:
            others = self._by_storage.get(storage, [])
            if pending in others:
                others.remove(pending)
            if not others:
                self._by_storage.pop(storage, None)
