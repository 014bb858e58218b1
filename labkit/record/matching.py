"""Which calls of different ranks belong together.

Collectives match by group and number, messages by source, destination, tag and number.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from labkit.record.events import P2P, CommStart

Key = tuple[object, ...]


class Call(NamedTuple):
    """A transfer as one rank issued it, at `at` seconds of the record's clock."""

    rank: int
    comm: CommStart
    at: float

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.comm.kind in P2P


def _channel(call: Call) -> Key:
    """What numbers a call: the group, or the pair of ranks and the tag."""
    comm = call.comm
    if not call.is_p2p:
        return (comm.group,)
    ends = (call.rank, comm.peer) if comm.kind == "send" else (comm.peer, call.rank)
    return (comm.group, *ends, comm.tag)


def _key(call: Call) -> Key:
    """The same for calls that belong together."""
    comm = call.comm
    if call.is_p2p:
        return (*_channel(call), comm.pair_seq)
    return comm.group, comm.kind, comm.group_seq


class Matches:
    """The partners of each call of a record, and its number since the record began."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._by_key: defaultdict[Key, list[Call]] = defaultdict(list)
        self._first: dict[Key, int] = {}
        wild: list[Call] = []
        for call in sorted(calls, key=lambda call: (call.at, call.rank, call.comm.id)):
            is_wild = call.comm.kind == "recv" and call.comm.peer is None
            (wild if is_wild else self._by_key[_key(call)]).append(call)
            number = call.comm.pair_seq if call.is_p2p else call.comm.group_seq
            channel = _channel(call)
            self._first[channel] = min(self._first.get(channel, number), number)
        self._taken = self._match_wild(wild)

    def _match_wild(self, wild: Sequence[Call]) -> dict[tuple[int, int], Call]:
        """Give receives from any source, in order, the sends that none else takes.

        The record does not say whom such a receive took, so this is the likeliest.
        """
        free: defaultdict[Key, deque[Call]] = defaultdict(deque)
        for calls in self._by_key.values():
            if len(calls) == 1 and calls[0].comm.kind == "send":
                comm = calls[0].comm
                free[comm.group, comm.peer, comm.tag].append(calls[0])
        taken: dict[tuple[int, int], Call] = {}
        for recv in wild:
            sends = free[recv.comm.group, recv.rank, recv.comm.tag]
            if sends:
                send = sends.popleft()
                taken[recv.rank, recv.comm.id] = send
                taken[send.rank, send.comm.id] = recv
        return taken

    def of(self, call: Call) -> list[Call]:
        """The other ranks' calls that belong to `call`."""
        taken = self._taken.get((call.rank, call.comm.id))
        if taken is not None:
            return [taken]
        return [other for other in self._by_key[_key(call)] if other != call]

    def numbers(self, call: Call) -> tuple[int, int]:
        """The call's `group_seq` and `pair_seq`, counted from the record's beginning.

        The one that does not number it is 0.
        """
        source = call
        if call.comm.kind == "recv" and call.comm.peer is None:
            source = self._taken.get((call.rank, call.comm.id), call)
        number = source.comm.pair_seq if call.is_p2p else source.comm.group_seq
        since = number - self._first[_channel(source)]
        return (0, since) if call.is_p2p else (since, 0)
