"""A pytest plugin that runs a notebook by nbval and writes down what each cell did.

pytest's exit code and its junit file do not tell the truth about a notebook: after one
cell ran out of time nbval expects all later ones to fail. So this plugin writes a line
of JSON a cell as it ends. It also bounds what nbval does not bound: a kernel that died,
and a cell that prints without end.

[Note: nbval] Written against nbval 0.11, whose item has `cell`, `parent.kernel` and
`test_outputs`; pyproject.toml keeps it below 0.12.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

POLL_S = 0.1
MAX_OUTPUT_BYTES = 4 << 20
MAX_MESSAGE_CHARS = 10_000
INTERRUPT_GRACE_S = 10.0
# nbval does nothing with them, and a live picture sends one after another.
_UNREAD = ("comm_open", "comm_msg", "comm_close", "update_display_data", "clear_output")


class KernelEnded(RuntimeError):
    """The kernel's process ended while a cell ran."""


class BoundedKernel:
    """Stands before nbval's kernel: sees it die, and bounds what a cell prints.

    nbval reads a cell's output only once the cell has ended. Here it is read while the
    cell runs, and what is beyond MAX_OUTPUT_BYTES is dropped.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._ahead: deque[dict[str, Any]] = deque()
        self._num_bytes = 0
        self._give_up_s: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        """Start a cell, with a fresh allowance of output."""
        self._num_bytes, self._give_up_s = 0, None
        return self._kernel.execute_cell_input(source, allow_stdin=allow_stdin)

    def interrupt(self) -> None:
        """Interrupt the cell; from now on wait for its output only for a while."""
        self._give_up_s = time.monotonic() + INTERRUPT_GRACE_S
        self._kernel.interrupt()

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Wait for the cell's end, or raise Empty at the limit, as nbval's own does.

        Raises:
            KernelEnded: The kernel's process is gone.
        """
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while time.monotonic() < deadline:
            try:
                reply = self.get_message("shell", timeout=POLL_S)
            except Empty:
                self._read_ahead()
                if not self._kernel.is_alive():
                    raise KernelEnded("the kernel's process ended") from None
            else:
                if reply["parent_header"].get("msg_id") == msg_id:
                    return
        raise Empty

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """The next message, those first that were read ahead."""
        if self._give_up_s is not None and time.monotonic() > self._give_up_s:
            raise Empty
        if stream == "iopub" and self._ahead:
            return self._ahead.popleft()
        # Not nbval's get_message: it formats each message for a log that nobody reads,
        # which takes longer than a flooding cell needs for the next one.
        client = self._kernel.kc
        get = client.get_iopub_msg if stream == "iopub" else client.get_shell_msg
        return get(timeout=timeout)

    def await_idle(self, msg_id: str, timeout: float) -> None:
        """Read until the cell's end has been announced."""
        while True:
            message = self.get_message("iopub", timeout=timeout)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            if message["content"].get("execution_state") == "idle":
                return

    def _read_ahead(self, most: int = 500) -> None:
        # A cell that floods the channel must not keep us from the clock: `most`.
        for _ in range(most):
            try:
                message = self._kernel.kc.get_iopub_msg(timeout=0)
            except Empty:
                return
            if message["msg_type"] in _UNREAD:
                continue
            self._num_bytes += _output_bytes(message)
            if self._num_bytes <= MAX_OUTPUT_BYTES or not _output_bytes(message):
                self._ahead.append(message)


def _output_bytes(message: dict[str, Any]) -> int:
    """Size of what a message would add to a cell's output; 0 for all else."""
    content = message["content"]
    if message["msg_type"] == "stream":
        return len(content["text"])
    if message["msg_type"] in ("display_data", "execute_result"):
        return sum(len(str(value)) for value in content["data"].values())
    return 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that `labkit check` passes."""
    group = parser.getgroup("labkit")
    group.addoption("--harvest", required=True, help="file to write a line a cell to")
    group.addoption("--kernel-folder", required=True, help="where the kernel works")


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Bound the kernel that nbval has just started, and move it to its folder."""
    notebook: Any = item.parent
    if isinstance(notebook.kernel, BoundedKernel):
        return
    notebook.kernel = kernel = BoundedKernel(notebook.kernel)
    folder = item.config.getoption("--kernel-folder")
    msg_id = kernel.execute_cell_input(f"import os; os.chdir({folder!r}); del os")
    kernel.await_reply(msg_id, timeout=60)
    kernel.await_idle(msg_id, timeout=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[Any]:
    """Write down how the cell ended, from the call itself."""
    report = yield
    if call.when == "call" or (call.when == "setup" and call.excinfo is not None):
        line = json.dumps(_describe(item, call)) + "\n"
        with Path(str(item.config.getoption("--harvest"))).open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    return report


def _describe(item: Any, call: pytest.CallInfo[None]) -> dict[str, Any]:
    failure = call.excinfo
    outputs: list[Any] = getattr(item, "test_outputs", None) or []
    errors = [output for output in outputs if output.output_type == "error"]
    if failure is None:
        name = message = None
    elif errors and not str(failure.value).startswith("Timeout"):
        name, message = errors[-1].ename, errors[-1].evalue
    else:
        name, message = failure.typename, str(failure.value)
    return {
        "cell": item.cell_num,
        "ran": not (message or "").startswith("Kernel dead on test start"),
        "passed": failure is None,
        "error": name,
        "message": None if message is None else message[:MAX_MESSAGE_CHARS],
        "seconds": call.duration,
    }
