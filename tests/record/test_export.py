"""Records as Chrome's trace events: what the format and Perfetto's importer ask."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.events import Site
from labkit.record.export import save_perfetto, to_perfetto
from labkit.record.program import Program, Race
from tests.record import made

FIELDS = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "i": {"ph", "pid", "tid", "ts", "s", "name", "cat", "args"},
    "C": {"ph", "pid", "ts", "name", "args"},
}
MORE = {"M": {"tid"}, "X": {"bind_id", "flow_in", "flow_out"}}


def exported(program: Program) -> list[dict[str, Any]]:
    """The events, after everything that holds of every export."""
    trace = json.loads(to_perfetto(program))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    events = trace["traceEvents"]
    for event in events:
        fields = set(event)
        assert FIELDS[event["ph"]] <= fields
        assert fields <= FIELDS[event["ph"]] | MORE.get(event["ph"], set())
        assert isinstance(event["pid"], int)
        assert event["pid"] >= 1
    check_numbers(events)
    check_nesting(events)
    check_arrows(events)
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    return events


def check_numbers(events: list[dict[str, Any]]) -> None:
    """A thread belongs to one process, has a name, and no process's number."""
    owner: dict[int, int] = {}
    for event in events:
        if "tid" in event:
            assert owner.setdefault(event["tid"], event["pid"]) == event["pid"]
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert named == set(owner)
    assert not set(owner) & {event["pid"] for event in events}
    assert 0 not in owner


def check_nesting(events: list[dict[str, Any]]) -> None:
    """In whole nanoseconds, in the file's order, as a stack takes them."""
    open_ends: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            start = round(event["ts"] * 1000)
            end = start + round(event.get("dur", 0) * 1000)
            stack = open_ends[event["tid"]]
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], event
            stack.append(end)


def check_arrows(events: list[dict[str, Any]]) -> None:
    """One beginning, before its ends, and at least one end."""
    begun: set[str] = set()
    ended: set[str] = set()
    for event in events:
        if event.get("flow_out"):
            assert event["bind_id"] not in begun
            begun.add(event["bind_id"])
        elif event.get("flow_in"):
            assert event["bind_id"] in begun
            ended.add(event["bind_id"])
        else:
            assert "bind_id" not in event
    assert begun == ended


def of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category]


def thread_names(events: list[dict[str, Any]]) -> dict[int, str]:
    names = (e for e in events if e["name"] == "thread_name")
    return {event["tid"]: event["args"]["name"] for event in names}


def test_ranks_are_processes_and_lanes_and_groups_are_threads() -> None:
    events = exported(made.training(world_size=3))
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["rank 0", "rank 1", "rank 2"]
    assert sorted(thread_names(events).values()) == (
        ["lane 0"] * 3 + ["transfers of world"] * 3
    )


def test_spans_work_and_waits_lie_inside_one_another() -> None:
    events = exported(made.training(world_size=2, steps=1, late=0.5))
    first = [e for e in events if e["pid"] == 1 and e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in first] == [
        ("step", 0.0, 1.75e6),
        ("forward", 0.0, 0.4e6),
        ("compute", 0.0, 0.4e6),
        ("backward", 0.4e6, 0.6e6),
        ("compute", 0.4e6, 0.6e6),
        ("wait for all_reduce#1", 1.0e6, 0.75e6),
        ("waiting for rank 1", 1.0e6, 0.5e6),
        ("all_reduce#1", 1.0e6, 0.0),
        ("all_reduce#1", 1.5e6, 0.25e6),
    ]


def test_a_transfer_says_what_it_moved_and_how_fast() -> None:
    events = exported(made.training(world_size=2, steps=1))
    transfer = of(events, "transfer")[0]
    assert transfer["args"] == {
        "kind": "all_reduce", "group": "world", "bytes": 1 << 20, "dtype": "float32",
        "GB_per_s": pytest.approx((1 << 20) / 0.25 / 1e9), "came_last": 1,
    }  # fmt: skip


def test_arrows_lead_from_the_last_rank_to_those_that_it_let_begin() -> None:
    events = exported(made.training(world_size=3, steps=2))
    begins = [e for e in events if e.get("flow_out")]
    ends = [e for e in events if e.get("flow_in")]
    assert [(e["pid"], e["cat"]) for e in begins] == [(3, "call")] * 2
    assert sorted(e["pid"] for e in ends) == [1, 1, 2, 2]
    assert {e["cat"] for e in ends} == {"transfer"}


def test_no_arrow_leads_from_a_rank_that_came_as_late_as_the_other() -> None:
    """A transfer that waits for its queue was begun by nobody."""
    ranks = made.ranks(2)
    for rank in ranks:
        rank.comm("all_reduce", 1.0, 2.0, 1.5)
    events = exported(made.program(*ranks))
    assert not any("bind_id" in event for event in events)
    assert all("came_last" not in e["args"] for e in of(events, "transfer"))


def modelled(second_s: float) -> Program:
    """A CPU's record with a GPU's times: issued at once, rank 1 computes longer."""
    ranks = made.ranks(2)
    for rank in ranks:
        done = (1.0, second_s)[rank.rank]
        came = max(1.0, second_s)
        with rank.span("forward", 0.0, done):
            rank.work(0.0, done)
        number = rank.comm("all_reduce", 1e-3, came + 0.5, came)
        rank.wait(number, done, came + 0.5)
        rank.moment("end", came + 0.5)
    return made.program(*ranks, source="replayed")


def test_a_cpu_record_with_the_times_of_a_gpu_runs_on_streams() -> None:
    events = exported(modelled(3.0))
    names = thread_names(events)
    timed = [e for e in events if e["pid"] == 1 and e["ph"] != "M"]
    shown = [(names[e["tid"]], e["name"]) for e in timed]
    assert shown == [
        ("stream 0", "forward"), ("stream 0", "compute"), ("lane 0", "all_reduce#1"),
        ("stream 0", "wait for all_reduce#1"), ("stream 0", "waiting for rank 1"),
        ("transfers of world", "all_reduce#1"), ("stream 0", "end"),
    ]  # fmt: skip


def test_whom_a_gpus_ranks_waited_for_is_told_by_work_not_by_issue() -> None:
    begins = [e["pid"] for e in exported(modelled(3.0)) if e.get("flow_out")]
    assert begins == [2]
    begins = [e["pid"] for e in exported(modelled(0.5)) if e.get("flow_out")]
    assert begins == [1]


def test_arrows_lead_from_a_send_to_its_receive() -> None:
    sender, receiver = made.ranks(2)
    for number in range(3):
        at = float(number)
        sender.call("send", at, at + 0.5, at + 0.6, peer=1)
        receiver.call("recv", at + 0.5, at + 0.5, at + 0.6, peer=0)
    events = exported(made.program(sender, receiver))
    begins = [(e["pid"], e["name"]) for e in events if e.get("flow_out")]
    ends = [(e["pid"], e["name"]) for e in events if e.get("flow_in")]
    assert begins == [(1, "send#1"), (1, "send#2"), (1, "send#3")]
    assert ends == [(2, "recv#1"), (2, "recv#2"), (2, "recv#3")]


def test_on_a_gpu_compute_and_its_waits_are_on_streams() -> None:
    rank, other = made.ranks(2)
    for each in (rank, other):
        with each.span("forward", 0.0, 3.0):
            each.work(0.0, 1.0)
            each.work(0.5, 1.5, stream=1)
            number = each.comm("all_reduce", 0.1, 2.5, 1.0)
            each.wait(number, 1.0, 2.5, who="stream")
            each.wait(number, 2.5, 2.6)
    events = exported(made.program(rank, other, device="cuda", source="replayed"))
    names = thread_names(events)
    shown = {(names[e["tid"]], e["name"]) for e in events if e["ph"] == "X"}
    assert shown == {
        ("stream 0", "forward"), ("lane 0", "all_reduce#1"), ("stream 0", "compute"),
        ("stream 1", "compute"), ("stream 0", "wait for all_reduce#1"),
        ("lane 0", "wait for all_reduce#1"),
        ("transfers of world", "all_reduce#1"),
    }  # fmt: skip


def test_what_overlaps_without_nesting_goes_to_a_thread_beside() -> None:
    rank = made.Rank(0)
    for start, end in ((0.0, 2.0), (1.0, 3.0), (1.5, 1.8), (2.0, 4.0)):
        rank.comm("all_reduce", start, end, start)
    events = exported(made.program(rank))
    names = thread_names(events)
    lanes = [(e["name"], names[e["tid"]]) for e in of(events, "transfer")]
    assert lanes == [
        ("all_reduce#1", "transfers of world"),
        ("all_reduce#2", "transfers of world (2)"),
        ("all_reduce#3", "transfers of world"),
        ("all_reduce#4", "transfers of world"),
    ]


@pytest.mark.parametrize("seed", range(15))
def test_any_record_keeps_to_the_format(seed: int) -> None:
    """Times that are no whole nanoseconds, and stretches that overlap as they like."""
    rng = random.Random(seed)
    ranks = made.ranks(3)
    for _ in range(40):
        issued = [rng.random() * 3 for _ in ranks]
        for rank, at in zip(ranks, issued, strict=True):
            came, length = max(issued), rng.choice([0.0, 1e-9, rng.random()])
            with rank.span("part", at, at + rng.random()):
                rank.work(at, at + rng.random(), lane=rng.randrange(2))
                number = rank.comm("all_reduce", at, came + length, came)
                rank.wait(number, at, came + length)
            rank.alloc(rank.seq, rng.randrange(99), "activations", at)
    events = exported(made.program(*ranks, level="work"))
    assert len(of(events, "transfer")) == 120
    assert len(of(events, "span")) == 120


def test_memory_is_a_counter_of_each_rank() -> None:
    rank = made.Rank(0)
    rank.alloc(0, 100, "parameters", 0.5)
    rank.alloc(1, 30, "scratch", 1.0)
    rank.free(1, 30, "scratch", 2.0)
    events = exported(made.program(rank, made.Rank(1), level="work"))
    counters = [(e["pid"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        (1, 0.5e6, {"parameters": 100, "scratch": 0}),
        (1, 1.0e6, {"parameters": 100, "scratch": 30}),
        (1, 2.0e6, {"parameters": 100, "scratch": 0}),
    ]


def test_marks_and_races_are_moments() -> None:
    rank = made.Rank(0)
    rank.moment("spoke", 0.25)
    rank.comm("all_reduce", 0.5, 1.0, 0.5)
    race = Race(0, 0, 7, "write", "aten.add_", Site("cell", 3, "train"))
    events = exported(made.program(rank, races=(race,)))
    moments = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "i"]
    assert moments == [
        ("spoke", 0.25e6, {}),
        ("race: aten.add_ writes a buffer of all_reduce#1", 0.5e6,
         {"storage": 7, "line": "3 of train"}),
    ]  # fmt: skip


def test_what_never_ended_lasts_to_the_end_and_says_so() -> None:
    rank = made.Rank(0)
    with rank.span("step", 0.0, None):
        number = rank.comm("recv", 0.5, None, peer=0)
        rank.wait(number, 0.5, None)
    rank.moment("stop", 2.0)
    events = exported(made.program(rank))
    (step,), (wait,), (call,) = (of(events, c) for c in ("span", "wait", "call"))
    assert (step["dur"], step["args"]["closed"]) == (2.0e6, False)
    assert (wait["dur"], wait["args"]) == (1.5e6, {"ok": False})
    assert call["args"]["end"] == "not recorded"


def test_spans_say_micro_batch_and_stage() -> None:
    events = exported(made.pipeline(2, 2, 1.0, 2.0))
    assert {"step": 0, "micro_batch": 1} in [e["args"] for e in of(events, "span")]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_file_is_the_same_every_time(tmp_path: Path, name: str) -> None:
    program = made.training()
    first = save_perfetto(program, tmp_path / name).read_bytes()
    assert save_perfetto(program, tmp_path / name).read_bytes() == first
    text = gzip.decompress(first) if name.endswith("gz") else first
    assert text == to_perfetto(program)


def test_an_empty_record_is_a_trace_too() -> None:
    assert exported(made.program()) == []
    assert [e["ph"] for e in exported(made.program(made.Rank(0)))] == ["M", "M"]


def test_a_record_without_times_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"is dry and has none.*run\.replay"):
        to_perfetto(made.program(made.Rank(0), source="dry"))


def test_where_no_trace_can_be_written_is_told(tmp_path: Path) -> None:
    program = made.training()
    for place in (tmp_path, tmp_path / "nowhere" / "a.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            save_perfetto(program, place)
    assert not list(tmp_path.iterdir())
