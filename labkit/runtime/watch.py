"""Ranks that are slow or silent: said once, never punished.

A rank that computes for a minute is no fault; one that others have waited for is worth
a line that says where it stands. A rank that answers nothing is in native code, or has
been suspended: its process's state tells which.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil

from labkit.runtime import sources
from labkit.runtime.diagnosis.wording import rank_list
from labkit.runtime.rank.wire import FrameKind

if TYPE_CHECKING:
    from labkit.runtime.drive import Drive, Team

PING_EVERY_S = 2.0
SILENT_AFTER_S = 6.0
SLOW_AFTER_S = 10.0


class Waits:
    """How long each rank has stood in one and the same wait.

    A wait is known by the rank's own clock at its start, which may be another node's:
    it is compared with itself only, and timed by the kernel's clock.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}

    def longer_than(
        self, limit_s: float, started_s: Mapping[int, float | None], now_s: float
    ) -> list[int]:
        """The ranks that stand in the wait that they stood in so long ago already."""
        for rank, at_s in started_s.items():
            if at_s is None:
                self._seen.pop(rank, None)
            elif self._seen.get(rank, (None, 0.0))[0] != at_s:
                self._seen[rank] = at_s, now_s
        return sorted(
            rank
            for rank, (_, first_s) in self._seen.items()
            if rank in started_s and now_s - first_s > limit_s
        )


class SilenceWatch:
    """Pings ranks while they run, and remarks on those that hold the others up."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._heard_s: dict[int, float] = {}
        self._pinged_s = 0.0
        self._said: set[tuple[str, int]] = set()
        self._waits = Waits()

    def start(self, ranks: tuple[int, ...]) -> None:
        """A run begins."""
        now_s = time.monotonic()
        self._heard_s = dict.fromkeys(ranks, now_s)
        self._pinged_s = now_s

    def heard(self, rank: int) -> None:
        """Something came from a rank."""
        self._heard_s[rank] = time.monotonic()

    def tick(self, drive: Drive) -> None:
        """Ping every two seconds; remark on what the last round showed."""
        now_s = time.monotonic()
        if now_s - self._pinged_s < PING_EVERY_S:
            return
        self._pinged_s = now_s
        for rank in self._team.generation.channels.ranks:
            self._team.generation.channels.send(FrameKind.PING, rank, b"")
        for rank in drive.out() & self._team.ready:
            if now_s - self._heard_s.get(rank, now_s) > SILENT_AFTER_S:
                self._say(("silent", rank), self._silent_text(rank, now_s))
        self._remark_on_slow(drive, now_s)

    def _silent_text(self, rank: int, now_s: float) -> str:
        pid = self._team.generation.channels.pids.get(rank, 0)
        try:
            suspended = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            suspended = False
        seconds = now_s - self._heard_s[rank]
        if suspended:
            return f"rank {rank} has been suspended (SIGSTOP) for about {seconds:.0f} s"
        return f"rank {rank} has been busy in native code for about {seconds:.0f} s"

    def _remark_on_slow(self, drive: Drive, now_s: float) -> None:
        ledger = self._team.ledger
        started_s = {r: ledger.doing(r).since_s for r in drive.out()}
        blocked = {r for r, at_s in started_s.items() if at_s is not None}
        long = self._waits.longer_than(SLOW_AFTER_S, started_s, now_s)
        for rank in sorted(drive.out() - blocked) if long else ():
            pong = drive.pongs.get(rank)
            where = sources.named(pong.where) if pong and pong.where else ""
            place = f" It stands at {where}." if where else ""
            verb = "waits" if len(long) == 1 else "wait"
            self._say(
                ("slow", rank),
                f"rank {rank} is still computing, and {rank_list(long)} {verb}.{place}",
            )

    def _say(self, key: tuple[str, int], text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            sys.stderr.write(f"[labkit] {text}\n")
            sys.stderr.flush()
