"""Plays the cases of a check on real ranks, and comes back from whatever they do.

Threads give breadth: a world starts in milliseconds, and its ranks take turns, so a
case plays the same way each time. Processes are the real thing, and play last. Every
world is under rendezvous: a send ends only when it is received, so that no buffer hides
a deadlock.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch.distributed as dist

from labkit.checks import part
from labkit.checks.exercise import Played, TooLong, Where
from labkit.checks.show import notebook_shell
from labkit.errors import RunError, TravelError
from labkit.record.program import Level
from labkit.runtime.cluster import BackgroundRun, Cluster, Run

LIMIT_S = {"threads": 5.0, "processes": 10.0}
MAX_SHOWN_CHARS = 2000


def be_ready() -> None:
    """What ranks run first: nothing."""


def on_all(body: Callable[..., Any], *args: Any) -> Any:
    """What each rank runs where the group is the world."""
    return body(dist.group.WORLD, *args)


class RankStage:
    """Real ranks: one quiet cluster for each kind and size, kept until `close`."""

    def __init__(self) -> None:
        self._clusters: dict[tuple[Where, int], Cluster] = {}
        self._printed = _Bounded(MAX_SHOWN_CHARS)

    def __enter__(self) -> RankStage:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every rank."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    @property
    def printed(self) -> str:
        """The first of what ranks printed while they played."""
        return self._printed.getvalue()

    def play(
        self,
        where: Where,
        size: int,
        body: Callable[..., Any],
        *args: Any,
        level: Level = "comm",
    ) -> Played:
        """Run `body(group, *args)`; raises for nothing that ranks do."""
        if where == "a part":
            world_size = part.world_size(size)
            return part.of(
                self._play("threads", world_size, level, part.body, body, *args)
            )
        return self._play(where, size, level, on_all, body, *args)

    def _play(
        self,
        where: Where,
        world_size: int,
        level: Level,
        body: Callable[..., Any],
        *args: Any,
    ) -> Played:
        cluster = self._cluster(where, world_size)
        try:
            with _captured(self._printed):
                run = _run_for(LIMIT_S[where], cluster, level, body, args)
        except (RunError, TravelError) as error:
            self._drop(where, world_size)
            record = error.events if isinstance(error, RunError) else ()
            return Played((), record or [[] for _ in range(world_size)], error)
        return Played(run.results, run.events)

    def _cluster(self, where: Where, world_size: int) -> Cluster:
        if (where, world_size) not in self._clusters:
            cluster = Cluster(
                world_size,
                backend="threads" if where == "threads" else "auto",
                rendezvous=True,
                quiet=True,
                live=False,
            )
            self._clusters[where, world_size] = cluster
            # Starting up is not the answer's time.
            cluster.run(be_ready)
        return self._clusters[where, world_size]

    def _drop(self, where: Where, world_size: int) -> None:
        """Let no case inherit what a failed one left behind."""
        self._clusters.pop((where, world_size)).close()


def _run_for(
    limit_s: float,
    cluster: Cluster,
    level: Level,
    body: Callable[..., Any],
    args: Sequence[Any],
) -> Run:
    """Run in the background, so that an answer which never returns can be stopped."""
    started: Any = cluster.run(body, *args, record=level, background=True)
    background = cast(BackgroundRun, started)
    try:
        return background.wait(limit_s)
    except TimeoutError:
        background.stop()
        raise TooLong(_too_long(background, limit_s)) from None
    except KeyboardInterrupt:
        background.stop()
        raise


def _too_long(background: BackgroundRun, limit_s: float) -> str:
    try:
        background.wait(0)
    except BaseException as error:
        doing = str(error)
    else:
        doing = ""
    return (
        f"the function must return; after {limit_s:g} s it had not: a loop that never "
        f"ends, or a wait that nobody answers?\n{doing}".rstrip()
    )


class _Bounded(io.StringIO):
    """Text up to a bound; what comes after is only counted."""

    def __init__(self, max_chars: int) -> None:
        super().__init__()
        self._max_chars = max_chars

    def write(self, text: str, /) -> int:
        room = max(0, self._max_chars - self.tell())
        super().write(text[:room])
        return len(text)


@contextmanager
def _captured(into: io.StringIO) -> Generator[None]:
    """Keep what ranks print from the cell: many cases would each say it again."""
    with contextlib.ExitStack() as stack:
        if notebook_shell() is not None:
            from IPython.utils.capture import capture_output

            stack.enter_context(capture_output(stdout=False, stderr=False))
        stack.enter_context(contextlib.redirect_stdout(into))
        stack.enter_context(contextlib.redirect_stderr(into))
        yield
