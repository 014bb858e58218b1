"""A notebook without a browser: a real kernel, driven as JupyterLab drives one."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import labkit
from labkit.bench import processes
from labkit.errors import RunError

READY_LIMIT_S = 60.0
CELL_LIMIT_S = 60.0
GRACE_S = 1.0
_PACKAGE_PARENT = str(Path(labkit.__file__).resolve().parent.parent)


@dataclass
class Reply:
    """What a cell left: what it printed, the error that ended it, and when.

    `error_at_s` is on the clock that all processes share; `seconds` runs from sending
    the cell to the kernel being idle again.
    """

    text: str = ""
    error: str = ""
    error_at_s: float | None = None
    seconds: float = field(default=0.0)


class Kernel:
    """One kernel of its own, whose every process ends with it.

    Everything that it and its children write goes to `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._seen: set[psutil.Process] = set()
        self._running: str | None = None
        self._reply = Reply()
        self._began_s = 0.0
        self._client: BlockingKernelClient | None = None
        self._manager = KernelManager(kernel_name="python3")
        self._manager.connection_file = str(folder / f"kernel-{id(self)}.json")
        assert self._manager.kernel_spec is not None
        self._manager.kernel_spec.argv[0] = sys.executable
        with (folder / "kernels.log").open("ab") as log:
            self._manager.start_kernel(
                env=_environment(folder), cwd=str(folder), stdout=log, stderr=log
            )
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=READY_LIMIT_S)

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        pid = getattr(self._manager.provisioner, "pid", None)
        assert isinstance(pid, int)
        return pid

    def descendants(self) -> list[psutil.Process]:
        """The processes below the kernel now; `close` remembers them."""
        found = processes.below(self.pid)
        self._seen.update(found)
        return found

    def run(self, code: str, limit_s: float = CELL_LIMIT_S) -> Reply:
        """Run a cell that must end well, and in time.

        Raises:
            RunError: It did not.
        """
        self.begin(code)
        reply = self.finish(limit_s)
        if reply is None or reply.error:
            seen = f"still ran after {limit_s:g} s" if reply is None else reply.error
            raise RunError(
                "Every cell of the benchmark must end well; this one did not:\n"
                f"{code}\nIt gave: {seen}\n"
                "Try the cell in a notebook; `labkit doctor` says what will run here."
            )
        return reply

    def begin(self, code: str) -> None:
        """Begin a cell, and go on without waiting for it."""
        assert self._running is None, "one cell at a time"
        assert self._client is not None
        self._reply, self._began_s = Reply(), time.monotonic()
        self._running = self._client.execute(code, stop_on_error=False)

    def finish(self, limit_s: float = CELL_LIMIT_S) -> Reply | None:
        """Wait for the end of the cell; None if it has not come by the limit."""
        deadline_s = time.monotonic() + limit_s
        while self._running is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._take(min(left_s, 1.0))
        return self._reply

    def _take(self, timeout_s: float) -> None:
        """Take one message of the output channel, if it is the running cell's."""
        assert self._client is not None
        try:
            message = self._client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            if not self._manager.is_alive():
                raise RunError(_DIED) from None
            return
        if message["parent_header"].get("msg_id") == self._running:
            self._note(message["header"]["msg_type"], message["content"])

    def _note(self, kind: str, content: dict[str, Any]) -> None:
        assert self._client is not None
        if kind == "status" and content["execution_state"] == "idle":
            self._reply.seconds = time.monotonic() - self._began_s
            self._running = None
            self._client.get_shell_msg(timeout=READY_LIMIT_S)
        elif kind == "error":
            self._reply.error_at_s = time.time()
            self._reply.error = "\n".join(content["traceback"])
        elif kind == "stream":
            self._reply.text += content["text"]

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def kill(self) -> list[psutil.Process]:
        """End the kernel by SIGKILL; it and the processes that were below it."""
        everything = [psutil.Process(self.pid), *self.descendants()]
        os.kill(self.pid, signal.SIGKILL)
        self._running = None
        return everything

    def close(self) -> None:
        """End the kernel and every process that was ever seen below it.

        They may first end by themselves: labkit's do, and remove their files.
        """
        if self._manager.is_alive():
            self.descendants()
        if self._client is not None:
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        if processes.seconds_until_gone(self._seen, GRACE_S) is None:
            processes.end(self._seen)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_DIED = (
    "The kernel must live until it is closed; it ended while a cell ran. "
    "Try `labkit doctor`, and look for a lack of memory."
)


def _environment(folder: Path) -> dict[str, str]:
    """This process's, with every place that a tool writes to moved into `folder`."""
    paths = [_PACKAGE_PARENT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "LABKIT_BENCH_FOLDER": str(folder),
        **{name: str(folder) for name in ("TMPDIR", "IPYTHONDIR", "HF_HOME")},
    }
