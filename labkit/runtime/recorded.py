"""What one can ask of a record: its rows, measures and picture, and other times.

A Run has a record of what its ranks did. A Replay has the same events, with the times
of another machine. What `save` wrote is a Saved again. All are asked alike:

    run.timeline()                             as it was
    run.replay("dgx-h100").timeline()          as it would be there, by a model
    run.whatif("dgx-h100")                     as it would be, with sliders
    load("run.rec").timeline()                 as it was, from a file
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import UsageError
from labkit.record import file
from labkit.record.export import save_perfetto
from labkit.record.intervals import Row, rows
from labkit.record.measure import Measures, measure
from labkit.record.program import Program
from labkit.replay.caption import caption
from labkit.replay.catalog import hardware
from labkit.replay.engine import Compute, replay
from labkit.replay.hardware import Hardware
from labkit.replay.machine import Machine
from labkit.units import format_seconds

if TYPE_CHECKING:
    from labkit.view.bundle import Still
    from labkit.view.place import Place
    from labkit.view.table import Table
    from labkit.view.whatif import Panel

NODE_SIZES = (1, 2, 4, 8)


class Recorded(ABC):
    """Everything here is read from `record`."""

    @abstractmethod
    def _reduced(self) -> Program:
        """What `record` is."""

    @cached_property
    def record(self) -> Program:
        """Everything the ranks did, as one Program."""
        return self._reduced()

    @property
    def caption(self) -> str:
        """What is to be said of the times."""
        return ""

    @property
    def drawn_at(self) -> Place | None:
        """Where a picture of it stands already."""
        return None

    def rows(self) -> list[Row]:
        """Who computed, waited and transferred when: one row for each stretch.

        Raises:
            UsageError: The record has no times.
        """
        return rows(self.record)

    def measure(
        self,
        *,
        skip_steps: int = 0,
        model_flops: float | None = None,
        peak_flops_per_s: float | None = None,
    ) -> Measures:
        """Step time, exposed communication, overlap, bubble, bandwidths, traffic.

        Each figure comes with its definition.

        Args:
            skip_steps: Leave out the first so many spans named "step": the warm-up.
            model_flops: FLOPs that the model needs for one step, over all ranks; by
                default those of the operations in the record are counted.
            peak_flops_per_s: Peak of one rank, for the MFU.

        Raises:
            UsageError: The record has no times, or no step that every rank closed; a
                number is not above 0.
        """
        return measure(
            self.record,
            skip_steps=skip_steps,
            model_flops=model_flops,
            peak_flops_per_s=peak_flops_per_s,
        )

    def replay(self, machine: Machine | str, *, compute: Compute = "by cost") -> Replay:
        """The same work with the times of another machine: a model, never measured.

        Args:
            machine: Whose times: "dgx-h100" and other names that
                `labkit.replay.catalog` lists, or a machine of one's own, such as
                labkit.replay.machine.AlphaBeta(...).
            compute: "by cost" needs `record="work"` or a dry run; "as measured" keeps
                what compute took here and re-times the transfers alone.

        Raises:
            UsageError: There is no such machine, or the record cannot be given other
                times; the message says why.
        """
        chosen = hardware(machine) if isinstance(machine, str) else machine
        return Replay(chosen, replay(self.record, chosen, compute=compute))

    def whatif(self, machine: Hardware | str, *, compute: Compute = "by cost") -> Panel:
        """Sliders for a machine, and the timeline that follows them.

        Args:
            machine: Where the sliders start: its name, or a hardware model.
            compute: As for `replay`.

        Raises:
            UsageError: As `replay` does.
        """
        from labkit.view.whatif import Panel, Question, Settings

        start = hardware(machine) if isinstance(machine, str) else machine
        _check_knobs(start)
        machines: dict[str, Hardware] = {}

        def retime(settings: Settings) -> Program:
            turned = start.with_(**settings._asdict())
            machines[turned.name] = turned
            return replay(self.record, turned, compute=compute)

        return Panel(Question(
            retime=retime,
            start=Settings(
                start.link_bytes_per_s, start.latency_s, start.flops_per_s,
                start.ranks_per_node,
            ),
            node_sizes=sorted({*NODE_SIZES, start.ranks_per_node}),
            title=start.name,
            caption=lambda drawn: caption(machines[drawn.header.hardware], drawn),
        ))  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the record to a file that `labkit.load` reads."""
        return file.save(self.record, path)

    def timeline(self, title: str = "") -> Still:
        """A picture of the rows: compute above, communication and waiting below.

        At the end of the cell that made the run, it takes the live picture's place.

        Raises:
            UsageError: The record has no times.
        """
        from labkit.view.timeline import timeline

        drawn = timeline(self.record, title=title, caption=self.caption)
        return replace(drawn, instead=self.drawn_at)

    def compare(
        self,
        other: Recorded | Program | Machine | str,
        *,
        compute: Compute | None = None,
        title: str = "",
    ) -> Still:
        """This record drawn over another, or over what a machine would make of it.

        Args:
            other: A run or a replay of the same ranks, or a machine as for `replay`.
            compute: As for `replay`; by default what the record allows.
            title: Stands above the picture.

        Raises:
            UsageError: One has no times, they are of other ranks, or as `replay` does.
        """
        from labkit.view.compare import compare

        if isinstance(other, Recorded):
            other = other.record
        elif not isinstance(other, Program):
            by_cost = self.record.header.level == "work"
            how = compute or ("by cost" if by_cost else "as measured")
            other = self.replay(other, compute=how).record
        return compare(self.record, other, title=title)

    def traffic(self) -> Table:
        """What each rank sent: calls, payload and wire bytes, counted exactly."""
        from labkit.view.traffic import traffic

        return traffic(self.record)

    def memory(self, *, rank: int | None = None, title: str = "") -> Still:
        """A picture of memory by kind: each rank at its peak, and one over time.

        Args:
            rank: Whose memory over time; by default the one with the highest peak.
            title: Stands above the picture.

        Raises:
            UsageError: The record does not tell of memory: use `record="work"`.
        """
        from labkit.view.memory import memory

        return memory(self.record, rank=rank, title=title)

    def holdings(self, *, after: str | None = None, step: int | None = None) -> Table:
        """Who has what: bytes by kind on each rank, at the end or after a span.

        Args:
            after: The span's name; a rank's last one of that name counts.
            step: Counts only spans in this step.

        Raises:
            UsageError: The record does not tell of memory, or no rank has such a span.
        """
        from labkit.view.holdings import holdings

        return holdings(self.record, after=after, step=step)

    def perfetto(self, path: str | Path) -> Path:
        """Write the record as Chrome's trace events: open it at ui.perfetto.dev.

        It is gzipped where the name ends with ".gz".

        Raises:
            UsageError: The record has no times.
        """
        return save_perfetto(self.record, path)


@dataclass(frozen=True, repr=False)
class Replay(Recorded):
    """A record with the times of another machine: computed by a model.

    Attributes:
        machine: Whose times.
        program: The events with these times: `record`.
    """

    machine: Machine
    program: Program

    def _reduced(self) -> Program:
        return self.program

    @property
    def caption(self) -> str:
        """What share is launches and latency, and what the model leaves out."""
        return caption(self.machine, self.record)

    def __repr__(self) -> str:
        took = format_seconds(self.record.duration_s)
        ranks = len(self.record.header.ranks)
        return (
            f"{took} on {self.machine.name} by a model, {ranks} ranks. {self.caption}"
        )


@dataclass(frozen=True, repr=False)
class Saved(Recorded):
    """A record that came from a file."""

    program: Program

    def _reduced(self) -> Program:
        return self.program

    def __repr__(self) -> str:
        return repr(self.program)


def load(path: str | Path) -> Saved:
    """Read a record that `save` wrote; it is asked as the run itself was.

    Raises:
        UsageError: There is no such file, or it is no record that can be read.
    """
    return Saved(file.load(path))


def _check_knobs(machine: object) -> None:
    """Hold that a panel has knobs to turn."""
    if not isinstance(machine, Hardware):
        raise UsageError(
            f"a panel turns the knobs of a hardware model; {type(machine).__name__} "
            'has none. Start from one: run.whatif("dgx-h100")'
        )
