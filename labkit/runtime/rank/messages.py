"""What kernel and ranks tell each other, beside the learner's own objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from labkit.record.program import Level, Traffic


@dataclass(frozen=True)
class RankSpec:
    """What a process needs to know to become a rank.

    `meeting_folder` is the private folder in which the ranks of one machine meet; None
    for a rank that dialled in, which meets the others as its engine says.
    """

    rank: int
    world_size: int
    backend: Literal["gloo", "nccl", "threads"]
    device: str
    num_threads: int
    rendezvous: bool
    meeting_folder: str | None
    sys_path: tuple[str, ...]
    folder: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Knobs:
    """What `cluster.slow` and `cluster.fail` ask of one rank."""

    slow_factor: float = 1.0
    fail_kind: str | None = None
    fail_at: int = 0


@dataclass(frozen=True)
class Job:
    """One thing to run: a pickled call, or a cell if it has a `cell_filename`.

    At `level` "work" every operation is recorded, too.
    """

    id: int
    ranks: tuple[int, ...]
    body: bytes
    cell_filename: str | None
    sources: dict[str, str]
    labels: dict[str, str]
    modules: dict[str, float]
    sys_path: tuple[str, ...]
    knobs: dict[int, Knobs]
    level: Level = "comm"


@dataclass(frozen=True)
class Told:
    """What a rank knows of its record beside the events.

    `dropped` events found no room; `groups` are the ranks of each of its groups;
    `traffic` counts every transfer, dropped or not.
    """

    host: str
    torch: str
    dropped: int
    groups: dict[str, tuple[int, ...]]
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True)
class Done:
    """The job ended well; `result` is pickled by labkit.runtime.rank.travel."""

    job_id: int
    result: bytes
    variables: tuple[str, ...]
    at_s: float
    told: Told


@dataclass(frozen=True)
class Failure:
    """The job raised: `text` is the traceback, trimmed to the learner's own lines."""

    job_id: int
    type_name: str
    message: str
    text: str
    stopped: bool
    variables: tuple[str, ...]
    at_s: float
    exception: bytes | None = None


@dataclass(frozen=True)
class Pong:
    """Where the rank's main thread stands; None when it runs nothing.

    `echo` is what the ping held; `at_s` is when it was answered, by the rank's clock.
    """

    job_id: int | None
    where: str | None
    echo: bytes
    at_s: float


@dataclass(frozen=True)
class Exited:
    """A rank's process ended: by a signal, or with a status."""

    rank: int
    pid: int
    signal: int | None
    status: int | None
    peak_bytes: int


@dataclass(frozen=True)
class Hello:
    """A rank that dialled in says who it is."""

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
