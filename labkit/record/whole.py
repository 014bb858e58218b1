"""A file that is written whole, or is left as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from labkit.errors import UsageError


def as_path(path: Any) -> Path:
    """What names a file, as a Path. Raises UsageError for what names none."""
    if not isinstance(path, (str, Path)) or "\0" in str(path):
        raise UsageError(
            f'a file is named by a path; got {path!r:.80}. Name it: "step.record"'
        )
    return Path(path)


@contextmanager
def whole_file(path: str | Path) -> Generator[BinaryIO]:
    """A file to write to; who stops half way leaves the one that was there before.

    Raises:
        UsageError: No file can be written there.
    """
    place = as_path(path)
    unfinished = place.parent / f"{place.name}.part"
    try:
        if place.is_dir():
            _refuse(place, "it is a folder")
        with unfinished.open("wb") as raw:
            try:
                yield raw
                raw.flush()
                unfinished.replace(place)
            except BaseException:
                unfinished.unlink()
                raise
    except OSError as error:
        _refuse(place, error.strerror or str(error))


def _refuse(place: Path, why: str) -> NoReturn:
    raise UsageError(
        f"a record is written to a file of its own, in a folder that is there; "
        f"{str(place)!r} cannot be written: {why}. Choose another place"
    ) from None
