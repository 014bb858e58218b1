"""The ways to get ranks in a notebook that are compared, each as cells."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Tool:
    """One way to run a function on 4 ranks.

    Attributes:
        name: The tool and its version.
        prepare: The cell that imports it; not timed.
        start: The cell that starts the ranks and ends with a first all-reduce's result.
        call: The expression that runs a function on every rank, with {} for its name.
        keeps_ranks: Whether ranks live on between cells.
        tries: How often a program may fail to get going before that is an error. A
            kernel forked while its threads run may hang; ours has no excuse.
    """

    name: str
    prepare: str
    start: str
    call: str
    keeps_ranks: bool = True
    tries: int = 1

    def calling(self, function: str) -> str:
        """The cell that runs one of the programs."""
        return self.call.format(function)


LABKIT = Tool(
    name="labkit",
    prepare="from labkit import Cluster",
    start="""
cluster = Cluster(4, quiet=True)
assert cluster.run(one_all_reduce).results == [4.0] * 4
""",
    call="cluster.run({})",
)

# The programs go to the engines as `%%px` would send them.
_IPYPARALLEL = Tool(
    name="ipyparallel",
    prepare=f"""
import ipyparallel
PROGRAMS = {PROGRAMS!r}
JOIN = (
    "import os, torch.distributed as dist\\n"
    "dist.init_process_group('gloo', rank=rank, world_size=4,"
    " init_method='file://' + os.environ['LABKIT_BENCH_FOLDER'] + '/' + store)"
)
""",
    start="""
pool = ipyparallel.Cluster(n=4, engines="local")
view = pool.start_and_connect_sync()[:]
view.scatter("rank", range(4), flatten=True, block=True)
view.push({"store": f"store-{os.getpid()}"}, block=True)
view.execute(PROGRAMS, block=True)
view.execute(JOIN, block=True)
assert view.apply_sync(one_all_reduce) == [4.0] * 4
""",
    call="view.apply_sync({})",
    tries=2,
)

_LAUNCHER = Tool(
    name="accelerate",
    prepare="""
import socket
from accelerate import notebook_launcher

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])

def joined(function):
    if function is not nothing:
        dist.init_process_group("gloo")
    function()

def launch(function):
    notebook_launcher(joined, (function,), num_processes=4, use_port=free_port())
""",
    start="launch(one_all_reduce)",
    call="launch({})",
    keeps_ranks=False,
    tries=2,
)


def rivals() -> list[Tool]:
    """Those of the other tools that are installed; says what to do about the rest."""
    found = []
    for tool in (_IPYPARALLEL, _LAUNCHER):
        try:
            found.append(_installed(tool))
        except PackageNotFoundError:
            sys.stderr.write(
                f"ranks: {tool.name} is not installed, so ours stands alone. For the "
                "comparison: pip install 'labkit[bench]' (or `make bench`)\n"
            )
    return found


def _installed(tool: Tool) -> Tool:
    """The tool with its version in its name."""
    number = version(tool.name)
    words = " notebook_launcher" if tool is _LAUNCHER else ""
    return replace(tool, name=f"{tool.name} {number}{words}")
