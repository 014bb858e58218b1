"""Small Programs made by hand, a rank at a time: what a test knows the answer to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from labkit.record.events import Kind, MemoryKind
from labkit.record.program import (
    Alloc,
    Comm,
    Event,
    Free,
    Header,
    HostRead,
    Mark,
    Moment,
    Program,
    Span,
    Wait,
    Work,
)


class Rank:
    """One rank's events, in the order in which they are added."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[Event] = []
        self._comms = self._spans = self._steps = self._marks = 0
        self._open: list[int] = []
        self._group_seq: dict[str, int] = {}
        self._pair_seq: dict[tuple[Any, ...], int] = {}

    @property
    def seq(self) -> int:
        """The number of the next event."""
        return len(self.events)

    @property
    def step(self) -> int:
        """The number of the present step."""
        return max(0, self._steps - 1)

    def work(
        self,
        start: float | None,
        end: float | None,
        *,
        lane: int = 0,
        stream: int = 0,
        flops: float = 0.0,
        name: str = "compute",
    ) -> None:
        """The rank computes."""
        span = self._open[-1] if self._open else None
        self.events.append(
            Work(self.rank, lane, stream, self.seq, name, flops, 0.0, 0, "", None,
                 span, start, end)
        )  # fmt: skip

    def comm(
        self,
        kind: Kind,
        issued: float | None,
        ended: float | None,
        arrived: float | None = None,
        *,
        group: str = "world",
        num_bytes: int = 1024,
        **more: Any,
    ) -> int:
        """The rank issues a transfer; the number is the one to wait for."""
        pair = (kind, group, more.get("peer"))
        is_p2p = kind in ("send", "recv")
        group_seq = 0 if is_p2p else self._group_seq.setdefault(group, 0)
        pair_seq = self._pair_seq.setdefault(pair, 0) if is_p2p else 0
        self._group_seq[group] = self._group_seq.get(group, 0) + (not is_p2p)
        self._pair_seq[pair] = self._pair_seq.get(pair, 0) + 1
        fields = {
            "lane": 0, "stream": 0, "peer": None, "tag": 0, "dtype": "float32",
            "span": self._open[-1] if self._open else None,
            "end_source": None if ended is None else "future", **more,
        }  # fmt: skip
        self.events.append(
            Comm(rank=self.rank, seq=self.seq, id=self._comms, kind=kind, group=group,
                 group_seq=group_seq, pair_seq=pair_seq, logical_bytes=num_bytes,
                 issued_s=issued, arrived_s=arrived, ended_s=ended, **fields)
        )  # fmt: skip
        self._comms += 1
        return self._comms - 1

    def wait(
        self, target: int, start: float | None, end: float | None, **more: Any
    ) -> None:
        """The rank stands still for a transfer (or, with cause="event", a mark)."""
        fields = {
            "lane": 0, "stream": 0, "who": "host", "cause": "wait", "site": None,
            "ok": end is not None, **more,
        }  # fmt: skip
        self.events.append(
            Wait(rank=self.rank, seq=self.seq, target=target, start_s=start, end_s=end,
                 **fields)
        )  # fmt: skip

    def call(
        self, kind: Kind, start: float, came: float, end: float, **more: Any
    ) -> None:
        """A transfer that is waited for at once."""
        self.wait(self.comm(kind, start, end, came, **more), start, end)

    @contextmanager
    def span(
        self, name: str, start: float | None, end: float | None, **more: Any
    ) -> Generator[None]:
        """What is added inside belongs to the span."""
        fields = {"lane": 0, "micro_batch": None, "stage": None, **more}
        parent = self._open[-1] if self._open else None
        self._steps += name == "step"
        index, number = self.seq, self._spans
        self._spans += 1
        span = Span(rank=self.rank, seq=index, id=number, parent=parent, name=name,
                    step=self.step, last_seq=index, start_s=start, end_s=end,
                    **fields)  # fmt: skip
        self.events.append(span)
        self._open.append(number)
        yield
        self._open.pop()
        self.events[index] = span._replace(last_seq=self.seq - 1)

    def mark(self, stream: int = 0) -> int:
        """The stream is given an event."""
        self.events.append(Mark(self.rank, 0, stream, self.seq, self._marks))
        self._marks += 1
        return self._marks - 1

    def read(self) -> None:
        """The host reads a value."""
        self.events.append(HostRead(self.rank, 0, 0, self.seq))

    def moment(self, name: str, at: float | None) -> None:
        """The learner's program says something."""
        self.events.append(Moment(self.rank, 0, self.seq, name, at))

    def alloc(
        self, storage: int, num_bytes: int, kind: MemoryKind, at: float | None = None
    ) -> None:
        """A storage comes to be."""
        self.events.append(Alloc(self.rank, self.seq, storage, num_bytes, kind, at))

    def free(
        self, storage: int, num_bytes: int, kind: MemoryKind, at: float | None = None
    ) -> None:
        """A storage is freed."""
        self.events.append(Free(self.rank, self.seq, storage, num_bytes, kind, at))


def program(*ranks: Rank, **more: Any) -> Program:
    """The Program of these ranks; what is named goes to the header or the Program."""
    own = {name: more.pop(name) for name in ("traffic", "races") if name in more}
    numbers = tuple(rank.rank for rank in ranks)
    groups = more.pop("groups", {"world": numbers})
    header = Header(**{"world_size": len(ranks), "ranks": numbers, **more})
    return Program(header, groups, tuple(tuple(rank.events) for rank in ranks), **own)


def ranks(count: int) -> list[Rank]:
    """That many ranks without events."""
    return [Rank(number) for number in range(count)]


def pipeline(
    num_stages: int, num_micro: int, forward: float, backward: float
) -> Program:
    """GPipe on an ideal network: all forwards, then all backwards; one step."""
    made = ranks(num_stages)
    turn = num_micro * forward + (num_stages - 1) * forward
    total = (num_stages - 1 + num_micro) * (forward + backward)
    for stage, rank in enumerate(made):
        with rank.span("step", 0.0, total):
            for micro in range(num_micro):
                start = (stage + micro) * forward
                with rank.span("forward", start, start + forward, micro_batch=micro):
                    rank.work(start, start + forward, flops=1e9)
            for micro in range(num_micro):
                start = turn + (num_stages - 1 - stage + micro) * backward
                with rank.span("backward", start, start + backward, micro_batch=micro):
                    rank.work(start, start + backward, flops=2e9)
    return program(*made)


def training(world_size: int = 2, steps: int = 3, late: float = 0.5) -> Program:
    """Steps of 1 s compute and 0.25 s all_reduce; the last rank computes longer."""
    made = ranks(world_size)
    length = 1.25 + late
    for step in range(steps):
        began = step * length
        for rank in made:
            own = began + 1.0 + (late if rank.rank == world_size - 1 else 0.0)
            came, end = began + 1.0 + late, began + length
            with rank.span("step", began, end):
                with rank.span("forward", began, began + 0.4):
                    rank.work(began, began + 0.4, flops=4e9)
                with rank.span("backward", began + 0.4, own):
                    rank.work(began + 0.4, own, flops=8e9)
                rank.call("all_reduce", own, came, end, num_bytes=1 << 20)
    return program(*made)
