"""How a kind of event lies in a row of a file, and what each of its fields may be."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from labkit.record.events import Site
from labkit.record.program import (
    SCHEMA,
    Alloc,
    Clock,
    Comm,
    Free,
    Header,
    HostRead,
    Mark,
    Moment,
    Race,
    Span,
    Traffic,
    Wait,
    Work,
)

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Work, Comm, Wait, Mark, HostRead, Alloc, Free, Span, Moment, Traffic, Race,
    )
}  # fmt: skip


class _Allowed(NamedTuple):
    """What a field may hold: its types, and its words where they are given."""

    types: frozenset[type]
    words: frozenset[Any]
    has_lists: bool


class Layout:
    """Reads the rows of one kind of event, whose fields are named in their order."""

    def __init__(self, kind: Any, names: list[str]) -> None:
        """Raises TypeError for a name that is unknown, or one that is missing."""
        unknown = [name for name in names if name not in kind._fields]
        defaults = kind._field_defaults
        missing = [n for n in kind._fields if n not in names and n not in defaults]
        if unknown or missing or len(set(names)) != len(names):
            raise TypeError(f"{kind.__name__}: unknown {unknown}, missing {missing}")
        self.kind = kind
        self._length = len(names) + 1
        self._same_order = tuple(names) == kind._fields
        self._names = names
        self._good: set[tuple[type, ...]] = set()
        hints = get_type_hints(kind)
        allowed = [_allowed(hints[name]) for name in names]
        self._types = [each.types for each in allowed]
        self._words = [(i, a.words) for i, a in enumerate(allowed) if a.words]
        self._lists = [i for i, a in enumerate(allowed) if a.has_lists]

    def read(self, row: list[Any]) -> tuple[Any, str]:
        """The event of a row, and what is wrong with the row: "" if nothing is."""
        if len(row) != self._length:
            return None, f"{len(row) - 1} fields, not {self._length - 1}"
        values = row[1:]
        for place in self._lists:
            if values[place] is not None:
                values[place] = _as_tuple(values[place], self._types[place])
        signature = tuple(map(type, values))
        if signature not in self._good:
            for value, types in zip(values, self._types, strict=True):
                if type(value) not in types:
                    return None, f"the value {value!r:.100} where it cannot be"
            self._good.add(signature)
        for place, words in self._words:
            if values[place] is not None and values[place] not in words:
                return None, f"{self._names[place]} {values[place]!r:.100}"
        if self._same_order:
            return self.kind._make(values), ""
        return self.kind(**dict(zip(self._names, values, strict=True))), ""


def read_header(said: Any) -> Header:
    """The header that a file says; TypeError where it cannot be one."""
    if not isinstance(said, dict):
        raise TypeError(f"it is {said!r:.100}")
    hints = get_type_hints(Header)
    told: dict[str, Any] = {**said, "schema": SCHEMA}
    for name, value in told.items():
        if name not in hints:
            raise TypeError(f"{name} is unknown")
        allowed = _allowed(hints[name])
        made = tuple(value) if allowed.has_lists and type(value) is list else value
        if type(made) not in allowed.types or (
            allowed.words and made not in allowed.words
        ):
            raise TypeError(f"{name} is {value!r:.100}")
        told[name] = made
    told["clocks"] = tuple(map(_clock, told.get("clocks", ())))
    header = Header(**told)
    strange = [r for r in (*header.ranks, *header.dropped) if type(r) is not int]
    if strange:
        raise TypeError(f"{strange} are no ranks and no counts")
    if any(type(host) is not str for host in header.hosts):
        raise TypeError(f"{header.hosts} are no names of hosts")
    return header


def _clock(said: Any) -> Clock:
    """A clock, which is two numbers."""
    kinds = list(map(type, said)) if type(said) is list else []
    if len(kinds) != len(Clock._fields) or not {float, int}.issuperset(kinds):
        raise TypeError(f"{said!r:.100} is no clock")
    return Clock(*said)


def _as_tuple(value: Any, types: frozenset[type]) -> Any:
    """A list as the tuple or the Site that it was."""
    if type(value) is not list:
        return value
    if Site in types:
        kinds = list(map(type, value))
        return Site(*value) if kinds == [str, int, str] else value
    return tuple(value) if all(type(part) is int for part in value) else value


def _allowed(hint: Any) -> _Allowed:
    types: set[type] = set()
    words: set[Any] = set()
    for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin = get_origin(part)
        if origin is Literal:
            words.update(get_args(part))
            types.add(str)
        elif origin is tuple:
            types.add(tuple)
        else:
            types.update({float, int} if part is float else {part})
    return _Allowed(frozenset(types), frozenset(words), bool(types & {tuple, Site}))
