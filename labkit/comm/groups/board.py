"""A notice board in shared memory: what each rank is about to transfer.

Backends do not compare calls: gloo adds 100 floats to 200, or reads floats as integers,
and returns. So each rank posts the signature of a call before it issues it, and
compares with the others when it issues and again when its wait ends, before anybody can
use what came. Who is right, and where, is the kernel's to explain; here a rank only
stops.

Each rank owns one row of fixed size. A slot holds (key, signature); the key names the
call (group and number, or the two ends of a message), so that a slot taken over by a
later call is never mistaken for this one.

[Note: whole words] A rank writes a slot while others read it. Words of 8 bytes are
written whole, one after another: no key, then the signature, then its key. So whoever
reads a key, the signature and the same key again has read what belongs together. (One
`struct.pack_into` for both will not do: it clears the bytes first.)
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from labkit.errors import MismatchError
from labkit.record.events import P2P, CommStart

NUM_SLOTS = 4096
_SLOT_WORDS = 2
_ROW_WORDS = NUM_SLOTS * _SLOT_WORDS
_WORD_BYTES = 8
_KEY_MASK = (1 << 63) - 1
# The top bits of a key choose its slot. Knuth's constant carries every bit of the
# checksums up there: calls that differ in one digit then share no slot but by chance.
_MIX = 0x9E3779B97F4A7C15
_SLOT_SHIFT = 63 - (NUM_SLOTS.bit_length() - 1)


class Board:
    """One rank's view of the board; a file that all ranks of one machine map."""

    def __init__(self, path: str, rank: int, world_size: int) -> None:
        self._rank = rank
        self._from_anybody: set[tuple[str, int]] = set()
        size = world_size * _ROW_WORDS * _WORD_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if Path(path).stat().st_size < size:
                os.ftruncate(fd, size)
            self._words = memoryview(mmap.mmap(fd, size)).cast("Q")
        finally:
            os.close(fd)

    def post(self, comm: CommStart) -> None:
        """Say what this rank is about to do, before it does it."""
        if self._is_uncounted(comm):
            return
        key, signature = self._key(comm, self._rank), _signature(comm)
        at = self._at(self._rank, key)
        self._words[at] = 0
        self._words[at + 1] = signature
        self._words[at] = key

    def compare(self, comm: CommStart, ranks: Iterable[int]) -> None:
        """Raise MismatchError if a rank has posted another call in this one's place."""
        if self._is_uncounted(comm):
            return
        key, signature = self._key(comm, self._rank), _signature(comm)
        others = (comm.peer,) if comm.kind in P2P else ranks
        for rank in others:
            if rank is None or rank == self._rank:
                continue
            at = self._at(rank, key)
            if self._words[at] != key or self._words[at + 1] == signature:
                continue
            # Since the first look, a later call may have taken the slot.
            if self._words[at] == key:
                raise MismatchError(
                    f"every rank must make the same call; rank {rank}'s does not match "
                    f"rank {self._rank}'s {comm.kind}"
                )

    def _is_uncounted(self, comm: CommStart) -> bool:
        """Whether this receive's number may not be its message's.

        Once a rank has received from any source, it has counted some messages under no
        sender, so that its later receives and their sends are numbered differently.
        """
        if comm.kind != "recv":
            return False
        place = (comm.group, comm.tag)
        if comm.peer is None:
            self._from_anybody.add(place)
        return place in self._from_anybody

    def _at(self, rank: int, key: int) -> int:
        return rank * _ROW_WORDS + (key >> _SLOT_SHIFT) * _SLOT_WORDS

    def _key(self, comm: CommStart, me: int) -> int:
        if comm.kind in P2P:
            ends = (me, comm.peer) if comm.kind == "send" else (comm.peer, me)
            return _numbered(_hash(comm.group, *ends, comm.tag), comm.pair_seq)
        return _numbered(_hash(comm.group), comm.group_seq)


def _signature(comm: CommStart) -> int:
    """What must agree; of an all_to_all only kind and type, since splits differ."""
    if comm.kind in P2P:
        return _hash("message", comm.dtype, comm.numel)
    if comm.kind in ("barrier", "new_group"):
        return _hash(comm.kind, comm.shapes)
    count = None if comm.kind == "all_to_all" else comm.numel
    return _hash(comm.kind, comm.dtype, count, comm.op, comm.peer)


@lru_cache(maxsize=4096)
def _hash(*parts: object) -> int:
    """A number that is the same in every process, and never 0."""
    data = repr(parts).encode()
    checksums = zlib.crc32(data) << 32 | zlib.adler32(data)
    return checksums * _MIX & _KEY_MASK | 1


def _numbered(key: int, number: int) -> int:
    """Another key for each number, in another slot, and never 0."""
    return (key + number * _MIX) & _KEY_MASK | 1
