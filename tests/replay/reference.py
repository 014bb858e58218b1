"""A second engine, slow and written another way, to hold the first one to.

It lives through the program: everything is a generator that yields what it waits for,
a moment or a condition, and time goes to the next moment when nobody can go on. Rates
are computed anew from all that moves, link by link, whenever time has gone on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf
from typing import TypeAlias

from labkit.record.program import Comm, Event, HostRead, Mark, Program, Wait, Work
from labkit.replay.machine import AlphaBeta, Link

Condition: TypeAlias = float | Callable[[], bool]
Steps: TypeAlias = Generator[Condition]
Times: TypeAlias = dict[tuple[int, int], tuple[float, ...]]


class Flow:
    """A transfer. `parts` are (rank, seq) of each rank's Comm."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.parts: dict[tuple[int, int], Comm] = {}
        self.came: set[tuple[int, int]] = set()
        self.came_s = self.arrived_s = self.ended_s = inf
        self.left = 1.0
        self.moving = False


class World:
    """All ranks, and the time."""

    def __init__(self, program: Program, machine: AlphaBeta) -> None:
        self.program, self.machine = program, machine
        self.now_s = 0.0
        self.times: Times = {}
        self.given: dict[tuple[int, int], float] = {}
        self.marks: set[tuple[int, int]] = set()
        self.batches: dict[tuple[int, int], list[Comm]] = {}
        self.in_batch: dict[tuple[int, int], int] = {}
        self.flows: list[Flow] = []
        self.flow: dict[tuple[int, int], Flow] = {}
        self.busy: dict[tuple[object, ...], bool] = {}
        self._find_flows()
        self.processes: list[Steps] = []
        for rank in sorted(program.header.ranks):
            self._start(rank, program.of(rank))

    def _find_flows(self) -> None:
        flows: dict[tuple[object, ...], Flow] = {}
        for rank in sorted(self.program.header.ranks):
            for event in self.program.of(rank):
                if not isinstance(event, Comm):
                    continue
                ends = (rank, event.peer or 0)
                if event.kind == "recv":
                    ends = ends[::-1]
                ranks = ends if event.is_p2p else self.program.groups[event.group]
                key = (event.group, event.is_p2p, ranks, event.tag, event.pair_seq)
                flow = flows.setdefault((*key, event.group_seq), Flow(ranks))
                flow.parts[rank, event.seq] = event
                self.flow[rank, event.id] = flow
                if event.batch is not None:
                    self.batches.setdefault((rank, event.batch), []).append(event)
        self.flows = list(flows.values())

    def _start(self, rank: int, events: tuple[Event, ...]) -> None:
        lanes: dict[int, list[Event]] = {}
        streams: dict[tuple[int, int], list[Event]] = {}
        for event in events:
            if not isinstance(event, Work | Comm | Wait | Mark | HostRead):
                continue
            lanes.setdefault(event.lane, []).append(event)
            if self.is_given(event):
                of_lane = event.lane if self.machine.is_cpu else 0
                streams.setdefault((of_lane, event.stream), []).append(event)
        self.processes += [self.lane(events) for events in lanes.values()]
        self.processes += [self.stream(events) for events in streams.values()]

    def is_given(self, event: Event) -> bool:
        """Whether a stream does the event."""
        if isinstance(event, Work):
            return event.fixed_s is None
        if isinstance(event, Comm):
            return event.kind != "new_group"
        if isinstance(event, Wait) and event.who == "host":
            if self.machine.is_cpu or event.cause == "event":
                return False
            kinds = self.flow[event.rank, event.target].parts.values()
            return all(part.kind not in ("barrier", "new_group") for part in kinds)
        return True

    def has_ended(self, wait: Wait) -> bool:
        """Whether what a wait waits for is over."""
        key = (wait.rank, wait.target)
        if wait.cause == "event":
            return key in self.marks
        return self.flow[key].ended_s <= self.now_s

    def lane(self, events: list[Event]) -> Steps:
        """A host thread."""
        for event in events:
            key = (event.rank, event.seq)
            begin_s = self.now_s
            if isinstance(event, Work):
                yield self.now_s + (event.fixed_s or event.kernels * self.launch(event))
                self.times[key] = begin_s, self.now_s
            if isinstance(event, Comm):
                yield self.now_s + self.machine.comm_launch_s
            self.given[key] = self.now_s
            if self.is_given(event):
                if isinstance(event, HostRead) or (
                    isinstance(event, Work) and self.machine.is_cpu
                ):
                    yield lambda key=key: key not in self.given
            elif isinstance(event, Comm):
                self.come([event])
            elif isinstance(event, Wait):
                yield lambda event=event: self.has_ended(event)
                self.times[key] = begin_s, self.now_s

    def launch(self, work: Work) -> float:
        """Host time of one kernel."""
        return 0.0 if work.fixed_s is not None else self.machine.launch_s

    def stream(self, events: list[Event]) -> Steps:
        """A stream of the device."""
        for event in events:
            key = (event.rank, event.seq)
            yield lambda key=key: key in self.given
            begin_s = self.now_s
            if isinstance(event, Work):
                yield self.now_s + self.machine.work_s(event)
            elif isinstance(event, Wait):
                yield lambda event=event: self.has_ended(event)
            elif isinstance(event, Mark):
                self.marks.add((event.rank, event.id))
            elif isinstance(event, Comm):
                self.gather(event)
            self.times[key] = begin_s, self.now_s
            issued_s = self.given.pop(key)
            if isinstance(event, Comm):
                self.times[key] = (issued_s,)

    def gather(self, comm: Comm) -> None:
        """A rank comes to a transfer, once it has come to all of its batch."""
        if comm.batch is None:
            self.come([comm])
            return
        key = (comm.rank, comm.batch)
        self.in_batch[key] = self.in_batch.get(key, 0) + 1
        if self.in_batch[key] == len(self.batches[key]):
            self.come(self.batches[key])

    def come(self, comms: list[Comm]) -> None:
        """A rank has come."""
        for comm in comms:
            flow = self.flow[comm.rank, comm.id]
            flow.came.add((comm.rank, comm.seq))
            if len(flow.came) == len(flow.parts):
                flow.came_s = self.now_s

    def queue(self, flow: Flow) -> tuple[object, ...]:
        """What runs the transfer, one at a time."""
        comm = next(iter(flow.parts.values()))
        if comm.kind == "new_group":
            return ("new_group", id(flow))
        return (comm.group, *flow.ranks) if comm.is_p2p else (comm.group,)

    def is_first(self, flow: Flow) -> bool:
        """Whether the queue is free, and none goes before the transfer."""
        key = self.queue(flow)
        if self.busy.get(key):
            return False
        comm = next(iter(flow.parts.values()))
        for index, other in enumerate(self.flows):
            if other is flow or self.queue(other) != key or other.arrived_s < inf:
                continue
            first = next(iter(other.parts.values()))
            if not comm.is_p2p and first.group_seq < comm.group_seq:
                return False
            mine = (flow.came_s, self.flows.index(flow))
            if comm.is_p2p and (other.came_s, index) < mine:
                return False
        return True

    def transfer(self, flow: Flow) -> Steps:
        """A transfer, from when it begins."""
        key = self.queue(flow)
        yield self.now_s + self.demand(flow)[0]
        flow.moving = self.demand(flow)[1] > 0
        yield lambda: flow.left <= 0 or not flow.moving
        flow.moving, flow.ended_s, self.busy[key] = False, self.now_s, False

    def demand(self, flow: Flow) -> tuple[float, float, dict[Link, float]]:
        """Latency, time alone, and bytes on links; of unequal parts the most."""
        parts = [part for part in flow.parts.values() if part.kind != "recv"]
        asked = [self.machine.demand(part, flow.ranks) for part in parts]
        links: dict[Link, float] = {}
        for each in asked:
            for link, num_bytes in each.links:
                links[link] = max(num_bytes, links.get(link, 0.0))
        moving_s = max(each.moving_s for each in asked)
        for link, num_bytes in links.items():
            moving_s = max(
                moving_s, num_bytes / self.machine.capacity_bytes_per_s(link)
            )
        return max(each.latency_s for each in asked), moving_s, links

    def rates(self) -> dict[Flow, float]:
        """Progress a second of all that moves: a level rises until all have stopped."""
        capacity = self.machine.capacity_bytes_per_s
        asked = {flow: self.demand(flow) for flow in self.flows if flow.moving}
        weight = {
            flow: 1 / max(((n / capacity(k), n) for k, n in links.items()))[1]
            for flow, (_, _, links) in asked.items() if links
        }  # fmt: skip
        found = {f: 1 / asked[f][1] for f in asked if f not in weight}
        while len(found) < len(asked):
            stops: list[tuple[float, list[Flow]]] = []
            rising = [flow for flow in asked if flow not in found]
            for flow in rising:
                stops.append((1 / asked[flow][1] / weight[flow], [flow]))
            for link in {link for flow in asked for link in asked[flow][2]}:
                on = [flow for flow in rising if link in asked[flow][2]]
                taken = sum(found[f] * asked[f][2].get(link, 0.0) for f in found)
                load = sum(asked[flow][2][link] * weight[flow] for flow in on)
                if on:
                    stops.append(((capacity(link) - taken) / load, on))
            level, stopped = min(stops, key=lambda stop: stop[0])
            found.update((flow, level * weight[flow]) for flow in stopped)
        return found

    def run(self) -> Times:
        """Live to the end; the times of every event by rank and seq.

        Of a Comm: issued, arrived, ended. Of all else: begins, ends.
        """
        waiting: list[tuple[Steps, Condition]] = []
        while True:
            fresh, self.processes = self.processes, []
            waiting += [(steps, -1.0) for steps in fresh]
            is_stuck = not fresh
            for entry in list(waiting):
                steps, condition = entry
                over = condition() if callable(condition) else condition <= self.now_s
                if over:
                    is_stuck = False
                    waiting.remove(entry)
                    following = next(steps, None)
                    if following is not None:
                        waiting.append((steps, following))
            if is_stuck and not self.begin() and not self.go_on(waiting):
                assert not waiting, "stuck"
                return self.completed()

    def begin(self) -> bool:
        """When nobody can go on now: the first transfer that may begins."""
        for flow in self.flows:
            has_come = flow.came_s < inf and flow.arrived_s == inf
            if has_come and self.is_first(flow):
                self.busy[self.queue(flow)] = True
                flow.arrived_s = self.now_s
                self.processes.append(self.transfer(flow))
                return True
        return False

    def go_on(self, waiting: list[tuple[Steps, Condition]]) -> bool:
        """Time goes on to the next moment; False where there is none."""
        rates = self.rates()
        ends = {flow: self.now_s + flow.left / rate for flow, rate in rates.items()}
        moments = [c for _, c in waiting if not callable(c)] + list(ends.values())
        if not moments:
            return False
        then_s = min(moments)
        for flow, rate in rates.items():
            flow.left -= rate * (then_s - self.now_s)
            if ends[flow] <= then_s:
                flow.left = 0.0
        self.now_s = then_s
        return True

    def completed(self) -> Times:
        """The times, those of transfers from the transfers."""
        for flow in self.flows:
            for key in flow.parts:
                issued_s = self.times.get(key, (self.given.get(key, 0.0),))[0]
                self.times[key] = issued_s, flow.arrived_s, flow.ended_s
        return self.times


def live(program: Program, machine: AlphaBeta) -> Times:
    """What `replay` must say too."""
    return World(program, machine).run()
