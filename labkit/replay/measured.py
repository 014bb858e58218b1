"""What was measured of this machine: kept in a file of the user's, read as Hardware.

`labkit bench compute` and `labkit bench comm` each write their part; a part that is
missing is asked for. The file is ~/.cache/labkit/machine.json, or under
XDG_CACHE_HOME.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from labkit.errors import UsageError
from labkit.replay.curve import Curve
from labkit.replay.device import Device
from labkit.replay.hardware import Hardware
from labkit.replay.network import Network, ring_edge_bytes
from labkit.replay.number import check_positive

SCHEMA = 1
EVERYBODY = 1024  # Ranks of this machine: it is one node, however many there are.
Points: TypeAlias = Sequence[tuple[float, float]]  # (bytes or FLOPs, seconds)
AGAIN = "Delete it, and run `labkit bench compute` and `labkit bench comm`"
_NOTES = (
    "All ranks are taken to be on this machine; more ranks than were measured are "
    "extrapolated by a ring's steps and bytes.",
    "Ranks are taken to compute at the speed that one had alone: more ranks than cores "
    "share them, which is not modelled.",
    "Each operation reads and writes memory: nothing is fused or cached.",
)


def path() -> Path:
    """Where the measurements of this machine are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "labkit" / "machine.json"


def store(part: str, measured: Mapping[str, Any]) -> Path:
    """Keep what was measured: `part` is "compute" or "comm". Returns the file.

    Raises:
        UsageError: The file cannot be written.
    """
    file = path()
    known: dict[str, Any] = _read() if file.exists() else {"schema": SCHEMA}
    known[part] = dict(measured)
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise UsageError(
            f"the measurements' file must be writable; {file} gave: {error.strerror}. "
            "Set XDG_CACHE_HOME to a folder of yours"
        ) from error
    return file


def this_machine() -> Hardware:
    """This machine as measured.

    Raises:
        UsageError: It was not measured, or the file cannot be understood.
    """
    known = _read() if path().exists() else {}
    missing = [part for part in ("compute", "comm") if part not in known]
    if missing:
        raise UsageError(
            f"'this machine' must have been measured; {path()} has no "
            f"{' and no '.join(missing)} part. Run "
            f"{' and '.join(f'`labkit bench {part}`' for part in missing)}: it takes "
            "under a minute each"
        )
    try:
        return _hardware(known["compute"], known["comm"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path()} must hold what `labkit bench` wrote; reading it gave: "
            f"{error!r}. {AGAIN}"
        ) from error


def _read() -> dict[str, Any]:
    try:
        known = json.loads(path().read_text(encoding="utf-8"))
        schema = known["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path()} must hold measurements of this machine; reading it gave: "
            f"{error!r}. {AGAIN}"
        ) from error
    if schema != SCHEMA:
        raise UsageError(
            f"{path()} must have schema {SCHEMA}; it has {schema!r}. {AGAIN}"
        )
    return known


def _hardware(compute: Mapping[str, Any], comm: Mapping[str, Any]) -> Hardware:
    by = f"labkit bench on {compute['machine']}"
    return Hardware(
        name="this machine",
        device=_device(compute),
        network=_network(comm),
        launch_s=compute["operation_s"],
        comm_launch_s=comm["issue_s"],
        is_cpu=True,
        sources={"compute": by, "comm": f"labkit bench on {comm['machine']}"},
        notes=_NOTES,
    )


def _device(compute: Mapping[str, Any]) -> Device:
    """From (FLOPs, seconds) of matrix products and (bytes, seconds) of copies."""
    computing = {
        dtype: Curve.through(0.0, points) for dtype, points in compute["matmul"].items()
    }
    peaks = {
        dtype: max(size / time_s for size, time_s in points)
        for dtype, points in compute["matmul"].items()
    }
    return Device(computing, Curve.through(0.0, compute["copy"]), peaks)


def _network(comm: Mapping[str, Any]) -> Network:
    """From (bytes, seconds) of all-reduces by number of ranks, and of messages."""
    all_reduce = {
        int(num_ranks): through_smallest(points)
        for num_ranks, points in comm["all_reduce"].items()
    }
    message = through_smallest(comm["message"])
    rates = [message.peak_rate_per_s]
    for num_ranks, curve in all_reduce.items():
        rates.append(ring_edge_bytes(num_ranks, 1.0) * curve.peak_rate_per_s)
    port = max(rate for rate in rates if rate != float("inf"))
    check_positive("this machine", "the rate of a link", port)
    return Network(
        all_reduce=all_reduce,
        ring=all_reduce,
        message=message,
        port_bytes_per_s=port,
        ranks_per_node=EVERYBODY,
        num_nodes=1,
        num_nics=1,
        nic_bytes_per_s=port,
        hop_s=0.0,
    )


def through_smallest(points: Points) -> Curve:
    """A curve whose latency is the time of the smallest size."""
    (_, smallest_s), *rest = sorted((float(size), float(s)) for size, s in points)
    return Curve.through(smallest_s, rest)
