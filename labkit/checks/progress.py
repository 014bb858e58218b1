"""What a learner has done so far: attempts, points, hints and passed answers.

    work/progress.json     one entry an exercise
    work/.passed/1.3.pkl   the answer that passed, by value

Kept in the learner's `work/` folder only: nothing is written elsewhere, or while a
submission is graded (LABKIT_GRADING is set). A check never fails because of it: what
cannot be kept is said once.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

PROGRESS, PASSED = "progress.json", ".passed"
GRADING, FOLDER = "LABKIT_GRADING", "LABKIT_PROGRESS"


@dataclass(frozen=True)
class Entry:
    """One exercise: how often it was checked, its last and its best points, hints."""

    attempts: int = 0
    last: int = 0
    best: int = 0
    out_of: int = 0
    hints: int = 0


def is_grading() -> bool:
    """Whether this process grades a submission: every learner's is then alike."""
    return bool(os.environ.get(GRADING))


def folder() -> Path | None:
    """Where progress is kept: LABKIT_PROGRESS, or the `work/` that this runs in.

    None outside a course's `work/`, and while grading.
    """
    if is_grading():
        return None
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    here = Path.cwd()
    for place in (here, *here.parents):
        is_course = (place.parent / "lessons").is_dir()
        if place.name == "work" and is_course:
            return place
    return None


def of(exercise: str) -> Entry:
    """How an exercise stands; all 0 where nothing is known."""
    place = folder()
    return Entry() if place is None else _read(place / PROGRESS).get(exercise, Entry())


def attempted(exercise: str, points: int, out_of: int) -> None:
    """Keep that an exercise was checked, and what came of it."""

    def update(entry: Entry) -> Entry:
        best = max(entry.best, points)
        return Entry(entry.attempts + 1, points, best, out_of, entry.hints)

    _update(exercise, update)


def hinted(exercise: str, number: int) -> None:
    """Keep that so many of an exercise's hints have been shown."""
    _update(exercise, lambda e: replace(e, hints=max(e.hints, number)))


def _update(exercise: str, change: Callable[[Entry], Entry]) -> None:
    place = folder()
    if place is None:
        return
    try:
        with _locked(place):
            entries = _read(place / PROGRESS)
            entries[exercise] = change(entries.get(exercise, Entry()))
            _write(place / PROGRESS, entries)
    except OSError as error:
        warnings.warn(
            f"progress is kept in {place}, which must be writable; got "
            f"{error.strerror}. The check itself counts all the same",
            stacklevel=4,
        )


@contextmanager
def _locked(place: Path) -> Generator[None]:
    """Two notebooks may be checked at the same time: neither loses the other's."""
    with (place / ".progress.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> dict[str, Entry]:
    """Every entry; a file that is none of ours is set aside, not overwritten."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): _entry(value) for name, value in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, KeyError):
        aside = _set_aside(path)
        warnings.warn(
            f"{path} must hold what earlier checks wrote; it does not any more. It was "
            f"kept as {aside.name}, and counting begins again",
            stacklevel=5,
        )
        return {}


def _entry(value: dict[str, Any]) -> Entry:
    known = {field.name: value[field.name] for field in fields(Entry)}
    if any(type(number) is not int or number < 0 for number in known.values()):
        raise ValueError(f"an entry holds whole numbers; got {value!r}")
    return Entry(**known)


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.broken{number}.json")).exists():
        number += 1
    return path.rename(aside)


def _write(path: Path, entries: dict[str, Entry]) -> None:
    """At once: whoever reads, or cuts the power, finds the old file or the new one."""
    told = {name: asdict(entries[name]) for name in sorted(entries)}
    replace_file(path, json.dumps(told, indent=1).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside it, then put it in its place."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
