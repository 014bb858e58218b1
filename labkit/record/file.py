"""Keeps a Program in one file: lines of JSON, compressed.

    {"format": "labkit record", "schema": 1, "header": .., "groups": .., "fields": ..}
    ["Span", 0, 0, 0, 0, null, "step", ..]      a rank's events, in their order
    ["Traffic", 0, "all_reduce", "0-3", ..]
    {"end": {"Span": 40, "Traffic": 4, ..}}     how many there were: none is missing

`zcat` shows it. Nothing in a file is ever run. Numbers come back exactly as they were,
and one Program always gives the same bytes. `fields` names what the rows hold, so that
a file that was written before a field with a default was added still opens; a change
that is more than that gets a new schema number and a step in `UPGRADES`.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from labkit.errors import UsageError
from labkit.record.layout import KINDS, Layout, read_header
from labkit.record.program import SCHEMA, Header, Program, Race, Traffic
from labkit.record.soundness import require_sound
from labkit.record.whole import as_path, whole_file

FORMAT = "labkit record"
PLAIN = ".jsonl"
_AT_ONCE = 1000
_GZIP_MAGIC = b"\x1f\x8b"
_AGAIN = "Save the record again"

Head: TypeAlias = dict[str, Any]
Rows: TypeAlias = Iterator[list[Any]]
# From a schema to the step that turns its head and rows into those of the next one.
UPGRADES: dict[int, Callable[[Head, Rows], tuple[Head, Rows]]] = {}


def save(program: Program, path: str | Path) -> Path:
    """Write a Program to a file, and return its path.

    Args:
        program: Any Program: a record, a schedule, a plan.
        path: Where to; compressed, unless the name ends in `.jsonl`.

    Raises:
        UsageError: The Program holds what a record cannot: a number that is not finite,
            an object. Or no file can be written there.
    """
    with whole_file(path) as raw:
        if Path(path).suffix == PLAIN:
            _write(program, raw)
        else:
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                _write(program, packed)
    return Path(path)


def load(path: str | Path) -> Program:
    """Read a Program from a file that `save` wrote.

    Raises:
        UsageError: There is no such file, it is not a record, it was cut short, it is
            of a newer schema, or what it says cannot be.
    """
    try:
        return _read(_Lines(as_path(path)))
    except OSError as error:
        raise UsageError(
            f"load reads a file that save wrote; {str(path)!r} cannot be read: "
            f"{error.strerror or error}. Look for the file, or save the record again"
        ) from None


def _write(program: Program, out: Any) -> None:
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    count: Counter[str] = Counter()
    names = {name: kind._fields for name, kind in KINDS.items()}
    out.write(_line(encode, {
        "format": FORMAT, "schema": SCHEMA, "header": asdict(program.header),
        "groups": program.groups, "fields": names,
    }))  # fmt: skip
    everything = (*program.events, program.traffic, program.races)
    for rows in everything:
        buffer: list[bytes] = []
        for row in rows:
            name = type(row).__name__
            count[name] += 1
            buffer.append(_line(encode, (name, *row)))
        out.write(b"".join(buffer))
    out.write(_line(encode, {"end": dict(sorted(count.items()))}))


def _line(encode: Callable[[Any], str], row: Any) -> bytes:
    try:
        return encode(row).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        raise UsageError(
            "a record holds finite numbers, words and lists of them; one part of this "
            f"one is {row!r:.200} ({error}). Look at what made it: a time or a cost "
            "that is NaN or infinite is a division by 0"
        ) from None


class _Lines:
    """The lines of a file, decoded, with their numbers."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.number = 0
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = self._unpacked(data)
        self._lines = io.BytesIO(data)
        self._decode = json.JSONDecoder(parse_constant=self._refuse).decode

    def _unpacked(self, data: bytes) -> bytes:
        try:
            return gzip.decompress(data)
        except EOFError:
            self.fail("it was cut short: the compressed data has no end")
        except (OSError, zlib.error) as error:
            self.fail(f"its compressed data is damaged ({error})")

    def __iter__(self) -> Iterator[Any]:
        """Each line's value; many lines are decoded at once, since that is faster."""
        while lines := list(islice(self._lines, _AT_ONCE)):
            first = self.number
            for place, value in enumerate(self._decoded(lines), start=1):
                self.number = first + place
                yield value

    def _decoded(self, lines: list[bytes]) -> list[Any]:
        first = self.number
        try:
            values = self._decode("[" + b",".join(lines).decode("ascii") + "]")
            if len(values) == len(lines):
                return values
        except (ValueError, RecursionError, UsageError):
            pass
        return [self._decoded_line(n, line) for n, line in enumerate(lines, first + 1)]

    def _decoded_line(self, number: int, line: bytes) -> Any:
        self.number = number
        try:
            return self._decode(line.decode("ascii"))
        except (ValueError, RecursionError) as error:
            self.fail(f"line {number} is not JSON ({error})")

    def _refuse(self, constant: str) -> NoReturn:
        self.fail(f"line {self.number} holds {constant}, which is no finite number")

    def fail(self, seen: str, *, advice: str = _AGAIN) -> NoReturn:
        """Refuse the file."""
        raise UsageError(
            f"load reads a whole file that save wrote; of {self.path!r} {seen}. "
            f"{advice}"
        )


def _read(lines: _Lines) -> Program:
    values = iter(lines)
    head = next(values, None)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        lines.fail("the first line says nothing of a labkit record")
    ending: dict[str, Any] = {}
    head, rows = _upgraded(head, _rows(values, ending, lines), lines)
    header = _header(head, lines)
    groups = _groups(head, lines)
    layouts = _layouts(head, lines)
    found: dict[int, list[Any]] = {rank: [] for rank in header.ranks}
    counted: dict[type, list[Any]] = {Traffic: [], Race: []}
    for row in rows:
        layout = layouts.get(row[0]) if row and isinstance(row[0], str) else None
        if layout is None:
            lines.fail(f"line {lines.number} is of an unknown kind: {row[:1]}")
        event, wrong = layout.read(row)
        if wrong:
            lines.fail(f"line {lines.number} has {wrong}")
        place = counted.get(layout.kind)
        if place is None:
            place = found.get(event.rank)
        if place is None:
            lines.fail(
                f"line {lines.number} is of rank {event.rank}, and the header names "
                f"{header.ranks}"
            )
        place.append(event)
    if "end" not in ending:
        lines.fail("the last line is missing: it was cut short")
    program = Program(
        header, groups, tuple(tuple(events) for events in found.values()),
        tuple(counted[Traffic]), tuple(counted[Race]),
    )  # fmt: skip
    _check_count(program, ending["end"], lines)
    require_sound(program)
    return program


def _rows(values: Iterator[Any], ending: dict[str, Any], lines: _Lines) -> Rows:
    """Every row up to the last line, which is put into `ending`."""
    for row in values:
        if ending:
            lines.fail(f"line {lines.number} follows the last one")
        if isinstance(row, list):
            yield row
        elif isinstance(row, dict) and isinstance(row.get("end"), dict):
            ending.update(row)
        else:
            lines.fail(f"line {lines.number} is neither an event nor the end")


def _upgraded(head: Head, rows: Rows, lines: _Lines) -> tuple[Head, Rows]:
    """Head and rows in the present schema."""
    schema = head.get("schema")
    if type(schema) is not int:
        lines.fail(f"the schema is {schema!r}, which is no number")
    if schema > SCHEMA:
        lines.fail(
            f"the schema is {schema}, and this labkit knows up to {SCHEMA}",
            advice="Update labkit",
        )
    for number in range(schema, SCHEMA):
        if number not in UPGRADES:
            lines.fail(
                f"the schema is {schema}, and no step leads from {number} to "
                f"{number + 1}",
                advice="Open it with the labkit that saved it, or record again",
            )
        head, rows = UPGRADES[number](head, rows)
    return head, rows


def _header(head: Head, lines: _Lines) -> Header:
    try:
        return read_header(head.get("header"))
    except TypeError as error:
        lines.fail(f"the header cannot be read ({error})")


def _groups(head: Head, lines: _Lines) -> dict[str, tuple[int, ...]]:
    said = head.get("groups")
    if not isinstance(said, dict) or not all(
        isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
        for ranks in said.values()
    ):
        lines.fail(f"the groups are not lists of ranks: {said!r:.100}")
    return {uid: tuple(ranks) for uid, ranks in said.items()}


def _layouts(head: Head, lines: _Lines) -> dict[str, Layout]:
    said = head.get("fields")
    if not isinstance(said, dict):
        lines.fail("the first line does not name the fields of its events")
    try:
        return {name: Layout(KINDS[name], names) for name, names in said.items()}
    except (KeyError, TypeError) as error:
        lines.fail(f"the events are of a kind that labkit does not know ({error})")


def _check_count(program: Program, said: dict[str, Any], lines: _Lines) -> None:
    count: Counter[str] = Counter()
    for events in (*program.events, program.traffic, program.races):
        count.update(type(event).__name__ for event in events)
    if count != Counter(said):
        lines.fail(f"the last line counts {said}, and there are {dict(count)}")
