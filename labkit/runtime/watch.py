"""Ranks that are slow or silent: said once, never punished.

A rank that computes for a minute is no fault; one that others have waited for is worth
a line that says where it stands. A rank that answers nothing is in native code, or has
been suspended: its process's state tells which.
"""

from __future__ import annotations

import sys
import time
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


class SilenceWatch:
    """Pings ranks while they run, and remarks on those that hold the others up."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._heard_s: dict[int, float] = {}
        self._pinged_s = 0.0
        self._said: set[tuple[str, int]] = set()
        self._blocked_since_s: dict[int, float] = {}

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
        blocked = {r for r in drive.out() if ledger.doing(r).since_s is not None}
        for rank in list(self._blocked_since_s):
            if rank not in blocked:
                del self._blocked_since_s[rank]
        for rank in blocked:
            self._blocked_since_s.setdefault(rank, now_s)
        long = sorted(
            r for r, since in self._blocked_since_s.items()
            if now_s - since > SLOW_AFTER_S
        )  # fmt: skip
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
