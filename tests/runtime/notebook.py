"""A notebook without a browser: a real kernel, driven as JupyterLab drives one."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import labkit
from tests.runtime.processes import below, wait_gone

# So that a new interpreter finds the labkit under test, installed or not.
PYTHONPATH = str(Path(labkit.__file__).resolve().parents[1])
SHOWN = ("stream", "display_data", "update_display_data", "execute_result")
FIRST_CELL = """
import os, time
import torch, torch.distributed as dist
from labkit import Cluster
cluster = Cluster({world_size}, quiet=True)
assert cluster.run(lambda: dist.get_rank()).results == list(range({world_size}))
"""


@dataclass
class Reply:
    """What a cell left: its outputs, and the error that ended it."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    ename: str = ""
    evalue: str = ""
    shown: str = ""
    seconds: float = 0.0

    @property
    def stdout(self) -> str:
        """What was printed."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """What was printed to stderr."""
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        return "".join(o["text"] for o in self.outputs if o.get("name") == name)

    def ok(self) -> Reply:
        """Itself, if the cell ended well."""
        assert not self.ename, f"{self.ename}: {self.evalue}\n{self.shown}"
        return self


class Notebook:
    """One kernel and what its cells answer."""

    def __init__(
        self,
        *kernel_arguments: str,
        world_size: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = list(kernel_arguments)
        self._variables = dict(variables or {})
        self._manager = KernelManager(kernel_name="python3")
        self._first_cell = FIRST_CELL.format(world_size=world_size)
        self._world_size = world_size
        self._running: str | None = None
        self._client: BlockingKernelClient
        self._begin()

    def _begin(self) -> None:
        assert self._manager.kernel_spec is not None
        self._manager.kernel_spec.argv[0] = sys.executable
        env = {**os.environ, "PYTHONPATH": PYTHONPATH, **self._variables}
        self._manager.start_kernel(extra_arguments=self._arguments, env=env)
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        if self._world_size is not None:
            self.run(self._first_cell).ok()

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        pid = getattr(self._manager.provisioner, "pid", None)
        assert isinstance(pid, int)
        return pid

    @property
    def is_alive(self) -> bool:
        """Whether the kernel's process runs."""
        return self._manager.is_alive()

    def run(self, code: str, timeout_s: float = 60) -> Reply:
        """Run a cell to its end."""
        self.start(code)
        return self.finish(timeout_s)

    def start(self, code: str) -> None:
        """Begin a cell, and go on without waiting for it."""
        assert self._running is None, "one cell at a time"
        self._reply, self._began_s = Reply(), time.monotonic()
        self._running = self._client.execute(code, stop_on_error=False)

    def finish(self, timeout_s: float = 60) -> Reply:
        """Wait for the end of the cell."""
        deadline_s = time.monotonic() + timeout_s
        while self._running is not None:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"the cell still runs after {timeout_s} s: {self._reply}"
            self._take(min(left_s, 1.0))
        return self._reply

    def wait_for(self, text: str, timeout_s: float = 60) -> None:
        """Wait until the running cell has printed `text`."""
        deadline_s = time.monotonic() + timeout_s
        while text not in self._reply.stdout + self._reply.stderr:
            assert self._running is not None, f"ended without {text!r}: {self._reply}"
            assert time.monotonic() < deadline_s, f"no {text!r} in {self._reply}"
            self._take(0.2)

    def _take(self, timeout_s: float) -> None:
        """Take one message of the output channel, if it is the running cell's."""
        try:
            message = self._client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            return
        if message["parent_header"].get("msg_id") != self._running:
            return
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            self._reply.seconds = time.monotonic() - self._began_s
            self._running = None
        elif kind == "error":
            self._reply.ename, self._reply.evalue = content["ename"], content["evalue"]
            self._reply.shown = "\n".join(content["traceback"])
        elif kind in SHOWN:
            self._reply.outputs.append({"output_type": kind, **content})

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def kill(self) -> Sequence[psutil.Process]:
        """End the kernel by SIGKILL; the processes that were below it."""
        processes = below(self.pid)
        self._client.stop_channels()
        os.kill(self.pid, signal.SIGKILL)
        self._running = None
        return processes

    def restart(self) -> Sequence[psutil.Process]:
        """Restart the kernel as the menu does; the processes that were below it."""
        processes = below(self.pid)
        self._client.stop_channels()
        self._running = None
        self._manager.restart_kernel(now=True)
        self._connect()
        return processes

    def heal(self) -> None:
        """Make sure of a kernel whose ranks work, whatever the last test did to it."""
        if self._running is not None or not self.is_alive:
            self.restart()

    def close(self) -> None:
        """Shut the kernel down, and see that nothing of it is left."""
        processes = below(self.pid) if self.is_alive else []
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        wait_gone(processes)
