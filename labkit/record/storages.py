"""The memory ledger: which storages are alive, how large, and what they hold.

Storages are numbered from 0 in the order in which they are seen. One is seen when an
operation makes or touches it, or when a module or optimizer shows it; it is gone when
torch frees it, or resizes it to nothing, as FSDP2 frees its parameters.

[Note: storage identity] A storage is known by the address of its C++ object, which no
other has while it is alive. Tensors on fake devices all have data pointer 0, and the
Python object of a storage is made anew for each look.
"""

# torch has no public name for the address.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import time
import weakref

import torch
from torch import Tensor

from labkit.record.events import MemoryKind, StorageGone, StorageMade
from labkit.record.recorder import Recorder

# What a storage is may become clearer, never less clear.
_CLEARNESS: tuple[MemoryKind, ...] = (
    "scratch", "activations", "buffers", "optimizer", "gradients", "parameters",
)  # fmt: skip
# CUDA's allocator of torch hands out memory in such pieces.
CUDA_PIECE_BYTES = 512


class Storages:
    """The storages of one rank, as events of its recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next = 0
        self._alive: dict[int, _Held] = {}

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage; a new one is of kind "scratch"."""
        return self._held(tensor.untyped_storage()).number

    def show(self, tensor: Tensor, kind: MemoryKind) -> None:
        """Say what a tensor's storage holds."""
        held = self._held(tensor.untyped_storage())
        if _CLEARNESS.index(kind) > _CLEARNESS.index(held.kind):
            self._gone(held)
            held.kind = kind
            self._made(held)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size now: 0 bytes where it was freed."""
        held = self._alive.get(storage._cdata)
        size = _size(storage)
        if held is not None and held.num_bytes != size:
            self._gone(held)
            held.num_bytes = size
            self._made(held)

    def _held(self, storage: torch.UntypedStorage) -> _Held:
        key = storage._cdata
        held = self._alive.get(key)
        if held is None:
            held = _Held(self._next, _size(storage), weakref.ref(
                storage, lambda _: self._forget(key)
            ))  # fmt: skip
            self._next += 1
            self._alive[key] = held
            self._made(held)
        return held

    def _forget(self, key: int) -> None:
        held = self._alive.pop(key, None)
        if held is not None:
            self._gone(held)

    def _made(self, held: _Held) -> None:
        at_s = time.monotonic()
        self._recorder.add(StorageMade(held.number, held.num_bytes, held.kind, at_s))

    def _gone(self, held: _Held) -> None:
        at_s = time.monotonic()
        self._recorder.add(StorageGone(held.number, held.num_bytes, held.kind, at_s))

    def close(self) -> None:
        """See nothing more: what is freed later is not of this record."""
        self._alive.clear()


class _Held:
    """One storage that is alive."""

    __slots__ = ("kind", "num_bytes", "number", "reference")

    def __init__(
        self, number: int, num_bytes: int, reference: weakref.ref[torch.UntypedStorage]
    ) -> None:
        self.number = number
        self.num_bytes = num_bytes
        self.kind: MemoryKind = "scratch"
        self.reference = reference


def _size(storage: torch.UntypedStorage) -> int:
    """The bytes that a storage takes of its device's memory."""
    size = storage.nbytes()
    if storage.device.type == "cuda":
        return -(-size // CUDA_PIECE_BYTES) * CUDA_PIECE_BYTES
    return size
