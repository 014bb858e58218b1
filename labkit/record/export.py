"""A record as Chrome's trace events: it opens in ui.perfetto.dev and chrome://tracing.

Ranks are processes, lanes, streams and groups their threads. An arrow leads from the
call that let a transfer begin (the send, or the last rank's) to the transfers that it
began on other ranks. Where the record tells of memory, each rank has a counter of it.

[Note: trace events] Perfetto drops a slice that overlaps another of its thread without
lying inside it: see `labkit.record.slices`. Process and thread 0 are the idle task of
Linux there, so numbers begin at 1; a thread with the number of a process is taken for
its main thread, so threads have others. Of events at one time, what begins an arrow
must come before what ends it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.record.holdings import curve
from labkit.record.program import Alloc, Program
from labkit.record.slices import Slice, Thread, slices, threads
from labkit.record.soundness import require_sound
from labkit.record.whole import as_path, whole_file


def to_perfetto(program: Program) -> bytes:
    """The record as JSON, in Chrome's trace event format.

    Raises:
        UsageError: The record has no times, or something in it cannot be.
    """
    require_sound(program)
    found = slices(program)
    rows = threads(found)
    numbers = {
        thread: number
        for number, thread in enumerate(rows, start=program.header.world_size + 1)
    }
    events = [_event(piece, numbers[piece.thread]) for piece in found]
    events += _memory(program)
    events.sort(key=lambda event: event["ts"])
    named = [*_processes(program), *_names(rows, numbers)]
    encode = json.JSONEncoder(separators=(",", ":")).encode
    lines = ",\n".join(map(encode, [*named, *events]))
    about = json.dumps(_about(program))
    return (
        f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n{lines}\n]}}\n'
    ).encode()


def save_perfetto(program: Program, path: str | Path) -> Path:
    """Write the record as trace events; gzipped where the name ends with ".gz".

    Raises:
        UsageError: The record has no times, something in it cannot be, or no file can
            be written there.
    """
    place, data = as_path(path), to_perfetto(program)
    if place.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with whole_file(place) as raw:
        raw.write(data)
    return place


def _about(program: Program) -> dict[str, Any]:
    header = program.header
    return {
        "times": header.source, "hardware": header.hardware, "backend": header.backend,
        "device": header.device, "world_size": header.world_size, "torch": header.torch,
    }  # fmt: skip


def _processes(program: Program) -> Iterator[dict[str, Any]]:
    for rank in program.header.ranks:
        for name, args in (
            ("process_name", {"name": f"rank {rank}"}),
            ("process_sort_index", {"sort_index": rank}),
        ):
            yield {"ph": "M", "pid": rank + 1, "name": name, "args": args}


def _names(
    rows: Sequence[Thread], numbers: dict[Thread, int]
) -> Iterator[dict[str, Any]]:
    for place, thread in enumerate(rows):
        who = {"ph": "M", "pid": thread.rank + 1, "tid": numbers[thread]}
        yield {**who, "name": "thread_name", "args": {"name": thread.name}}
        yield {**who, "name": "thread_sort_index", "args": {"sort_index": place}}


def _event(piece: Slice, number: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "i" if piece.end_ns is None else "X", "pid": piece.thread.rank + 1,
        "tid": number, "ts": piece.start_ns / 1e3, "name": piece.name,
        "cat": piece.category, "args": piece.args,
    }  # fmt: skip
    if piece.end_ns is None:
        event["s"] = "t"
    else:
        event["dur"] = (piece.end_ns - piece.start_ns) / 1e3
    if piece.begins is not None:
        event |= {"bind_id": hex(piece.begins), "flow_out": True}
    if piece.ends is not None:
        event |= {"bind_id": hex(piece.ends), "flow_in": True}
    return event


def _memory(program: Program) -> Iterator[dict[str, Any]]:
    """Each rank's memory by kind after each change, where all of it is known."""
    if program.header.level != "work" or any(program.header.dropped):
        return
    for rank, events in zip(program.header.ranks, program.events, strict=True):
        if not any(isinstance(event, Alloc) for event in events):
            continue
        found = curve(program, rank)
        shown = {k: column for k, column in found.bytes_by_kind.items() if any(column)}
        for place, at_s in enumerate(found.times_s or ()):
            yield {
                "ph": "C", "pid": rank + 1, "ts": round(at_s * 1e9) / 1e3,
                "name": "memory (bytes)",
                "args": {kind: column[place] for kind, column in shown.items()},
            }  # fmt: skip
