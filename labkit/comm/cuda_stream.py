"""Logical streams on a GPU: the host issues every step at once.

Points are CUDA events. A transfer is waited for as its backend does: NCCL holds up the
stream and not the host, gloo the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.comm.groups.recording import RecordedWork
from labkit.comm.stream import Device, Mark, Step, Stream


class CudaStream(Stream):
    """A CUDA stream, as a Stream: see `labkit.comm.stream`."""

    def __init__(self, device: Device = None, *, key: int | None = None) -> None:
        super().__init__(device, key=key)
        if self.is_compute:
            self._cuda = torch.cuda.current_stream(self.device)
        else:
            self._cuda = torch.cuda.Stream(self.device)

    def keep(self, *tensors: Tensor) -> None:
        """Tell the allocator that this stream uses them too."""
        for tensor in tensors:
            tensor.record_stream(self._cuda)

    def synchronize(self) -> None:
        """Let the host stand still until all that was given is done."""
        self._cuda.synchronize()
        super().synchronize()

    def _give(self, step: Step, *, stands_still: bool = False) -> Any:
        self._do(step)
        return self._cuda.record_event()

    def _wait_for_mark(self, mark: Mark) -> None:
        self._cuda.wait_event(mark.point)
        self._tell_wait_for_mark(mark)

    def _wait_for_work(self, work: dist.Work) -> None:
        self._tell_wait_for_work(work)

        def hold_up() -> None:
            if isinstance(work, RecordedWork):
                work.wait_on_stream()
            else:
                work.wait()

        self._do(hold_up)

    def _inside(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._cuda)
