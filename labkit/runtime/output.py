"""What ranks print, shown live under the cell, tagged by rank, and bounded.

The first lines appear as they come. Past a bound the rest goes to a file, and each
rank's last lines are shown at the end, with the number left out: a loop that prints for
ever harms neither the browser nor the saved notebook.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import IO, Any

MAX_LINES = 1000
MAX_BYTES = 200_000
MAX_LINE_BYTES = 2000
TAIL_LINES = 5
MAX_FILE_BYTES = 100 << 20
KEPT_FILES = 9
FLUSH_EVERY_S = 0.05
PARTIAL_AFTER_S = 0.3


def _new_file() -> IO[str]:
    """A file for the full text of one run; those of earlier floods are few and kept."""
    parent = Path(tempfile.gettempdir()) / f"labkit-output-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        parent = Path(tempfile.mkdtemp(prefix="labkit-output-"))
    for old in sorted(parent.glob("*.txt"), key=_changed_s)[:-KEPT_FILES]:
        old.unlink(missing_ok=True)
    return tempfile.NamedTemporaryFile(
        "w", suffix=".txt", dir=parent, delete=False, encoding="utf-8"
    )


def _write(stream: Any, text: str) -> None:
    """Write to a stream of the notebook's, whatever it is: it must not end a run."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, errors="replace").decode(encoding))
    except (OSError, ValueError, AttributeError):
        return


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class OutputPrinter:
    """Prints the output of one run."""

    def __init__(self, world_size: int) -> None:
        self._width = len(str(world_size - 1))
        self._partial: dict[tuple[int | None, str], bytes] = defaultdict(bytes)
        self._lines = 0
        self._bytes = 0
        self._left_out = 0
        self._shown: list[str] = []
        self._tails: dict[int | None, deque[str]] = defaultdict(
            lambda: deque(maxlen=TAIL_LINES)
        )
        self._file: IO[str] | None = None
        self._file_bytes = 0
        self._flushed_s = self._fed_s = 0.0

    def feed(self, rank: int | None, stream: str, data: bytes) -> None:
        """Take bytes of one rank's stream, and show each line that is complete.

        `rank` is None for what a child of ranks that are threads of one process wrote.
        """
        self._fed_s = time.monotonic()
        *lines, rest = (self._partial[rank, stream] + data).split(b"\n")
        while len(rest) > MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._partial[rank, stream] = rest
        for line in lines:
            self._line(rank, stream, line)

    def _line(self, rank: int | None, stream: str, line: bytes) -> None:
        """Show a line; of a progress bar's carriage returns, the last text counts."""
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        tag = "ranks" if rank is None else f"rank {rank:>{self._width}}"
        shown = f"[{tag}] {text}\n"
        self._lines += 1
        self._bytes += len(shown)
        if self._lines <= MAX_LINES and self._bytes <= MAX_BYTES:
            self._shown.append(shown)
            _write(sys.stderr if stream == "stderr" else sys.stdout, shown)
        else:
            self._left_out += 1
            self._tails[rank].append(shown)
            self._spool(shown)

    def _spool(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = _new_file()
                self._file.writelines(self._shown)
            if self._file_bytes < MAX_FILE_BYTES:
                self._file_bytes += self._file.write(line)
        except OSError:
            self._file_bytes = MAX_FILE_BYTES

    def tick(self) -> None:
        """Send what was written on to the front end, and show lines left unfinished."""
        now_s = time.monotonic()
        if now_s - self._fed_s > PARTIAL_AFTER_S:
            self._end_partial_lines()
        if self._fed_s > self._flushed_s and now_s - self._flushed_s > FLUSH_EVERY_S:
            self._flushed_s = now_s
            _flush()

    def _end_partial_lines(self) -> None:
        for (rank, stream), rest in list(self._partial.items()):
            if rest:
                self._line(rank, stream, rest)
        self._partial.clear()

    def finish(self) -> None:
        """Show unfinished lines, and after a flood each rank's last ones."""
        self._end_partial_lines()
        if self._left_out:
            self._finish_flood()
        if self._lines:
            _flush()

    def _finish_flood(self) -> None:
        tails = [line for lines in self._tails.values() for line in lines]
        place = "no room for a file with the full text"
        if self._file is not None:
            place = f"full text in {self._file.name}"
            if self._file_bytes >= MAX_FILE_BYTES:
                place = f"the first part of the text is in {self._file.name}"
            self._close_file()
        left_out = self._left_out - len(tails)
        _write(sys.stdout, f"... {left_out:,} lines left out; {place}\n")
        _write(sys.stdout, "".join(tails))

    def _close_file(self) -> None:
        try:
            assert self._file is not None
            self._file.close()
        except OSError:
            return
