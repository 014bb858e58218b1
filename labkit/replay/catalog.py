"""The machines that replay knows by name.

    dgx-v100, dgx-a100, dgx-h100       one node of 8 GPUs over NVLink
    2x dgx-h100 infiniband             so many nodes, each with all its NICs
    2x dgx-h100 ethernet               so many nodes, each with one 100 Gb/s NIC
    this machine                       as `labkit bench` measured it

`data/nodes.json` has each figure with its source; the times of transfers come from
`labkit.replay.calibration`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from labkit.errors import UsageError
from labkit.replay import calibration
from labkit.replay.curve import Curve
from labkit.replay.device import Device, Efficiency
from labkit.replay.hardware import Hardware
from labkit.replay.measured import this_machine
from labkit.replay.network import Network

THIS_MACHINE = "this machine"
RANKS_PER_NODE = 8
_NODES = ("dgx-v100", "dgx-a100", "dgx-h100")
_FABRICS = ("infiniband", "ethernet")
_NAME = re.compile(r"(?:(\d+)x )?(dgx-\w+)(?: (\w+))?")

_EVERYWHERE = (
    "Transfers take no multiprocessors and no memory bandwidth from compute.",
    "NCCL's choice of algorithm by size is in the times only as calibrated.",
    "Each operation reads and writes memory: nothing is fused or cached.",
    "Below 1 MB a transfer's time is NCCL's own estimate, not measured.",
)
_OF_H100 = (
    "Of an H100 only small and very large all-reduces are published; between them the "
    "A100's curve is taken, at the H100's rate."
)
_OF_H100_NODES = (
    "Between nodes one figure is fitted to 16-rank rows of 128 MiB to 8 GiB; below "
    "that it is extrapolated."
)
_OF_OTHER_NODES = (
    "Across nodes a ring is assumed; on two nodes NCCL may choose a faster tree."
)


def names() -> tuple[str, ...]:
    """Every name that `hardware` finds; "2x" stands for any number of nodes."""
    several = (f"2x {node} {fabric}" for node in _NODES for fabric in _FABRICS)
    return (*_NODES, *several, THIS_MACHINE)


def hardware(name: str) -> Hardware:
    """The machine of this name.

    Raises:
        UsageError: There is none; or this machine has not been measured yet.
    """
    if name == THIS_MACHINE:
        return this_machine()
    parts = _NAME.fullmatch(name)
    if parts is not None and parts[2] in _NODES:
        count, fabric = int(parts[1] or 1), parts[3] or "infiniband"
        is_several = parts[1] is not None and parts[3] in _FABRICS and count > 1
        if is_several or (parts[1] is None and parts[3] is None):
            return _nodes(name, parts[2], count, fabric)
    raise UsageError(
        f"a hardware model must be one of: {', '.join(names())} (2x stands for any "
        f"number of nodes); {name!r} was asked for. Try hardware({_closest(name)!r})"
    )


def _closest(name: str) -> str:
    """The known name that looks most like this one."""
    alike = get_close_matches(name.lower(), names(), n=1, cutoff=0.0)
    return alike[0] if alike else names()[0]


@cache
def _figures() -> dict[str, Any]:
    path = files("labkit.replay") / "data" / "nodes.json"
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def _nodes(name: str, node: str, count: int, fabric: str) -> Hardware:
    """So many of a node, joined by a fabric."""
    figures: dict[str, Any] = {**_figures()[node], **_figures()[fabric]}
    value = dict(_values(figures))
    sources = dict(_sources(figures))
    sources["all_reduce"] = _TIMES[figures["gpu"]]
    is_h100 = figures["gpu"] == "h100"
    if is_h100:
        sources["exposed"] = f"fitted to 16 ranks of {_TIMES['h100']}"
    return Hardware(
        name=name,
        device=_device(value),
        network=_network(figures["gpu"], value, count),
        launch_s=value["launch_s"],
        comm_launch_s=value["comm_launch_s"],
        sources=sources,
        notes=_notes(is_h100=is_h100, has_several=count > 1),
    )


def _notes(*, is_h100: bool, has_several: bool) -> tuple[str, ...]:
    across = _OF_H100_NODES if is_h100 else _OF_OTHER_NODES
    return (*_EVERYWHERE, *([_OF_H100] * is_h100), *([across] * has_several))


_TIMES = {
    "a100": "VIA-Research/vTrain trace/a100 (NCCL in one node), data/vtrain_all_reduce",
    "v100": "VIA-Research/vTrain trace/v100 (NCCL in one node), data/vtrain_all_reduce",
    "h100": "data/nccl_tests_all_reduce, data/h100_small_all_reduce; A100's shape",
}


def _values(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure by its dotted name: ("peak_flops_per_s.bfloat16", 312e12)."""
    for key, entry in figures.items():
        if isinstance(entry, dict):
            yield from _values(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry[0] if isinstance(entry, list) else entry


def _sources(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Where every figure is from, by its dotted name."""
    for key, entry in figures.items():
        if isinstance(entry, dict):
            yield from _sources(entry, f"{prefix}{key}.")
        elif isinstance(entry, list):
            yield f"{prefix}{key}", entry[1]


def _device(value: Mapping[str, Any]) -> Device:
    peaks = {
        name.partition(".")[2]: each
        for name, each in value.items()
        if name.startswith("peak_flops_per_s.")
    }

    def efficiency(of: str) -> Efficiency:
        return Efficiency(*(value[f"{of}.{field}"] for field in _SHARES))

    return Device.of(
        peaks, value["bytes_per_s"], efficiency("computing"), efficiency("moving")
    )


_SHARES = ("best", "floor", "half")


def _network(gpu: str, value: Mapping[str, Any], count: int) -> Network:
    all_reduce, ring = _curves(gpu)
    half_s = ring[2].latency_s / 2
    return Network(
        all_reduce=all_reduce,
        ring=ring,
        # Two ranks' ring puts the tensor's bytes on each edge, in two steps.
        message=Curve(ring[2].sizes, tuple(each - half_s for each in ring[2].times_s)),
        port_bytes_per_s=value["port_bytes_per_s"],
        ranks_per_node=RANKS_PER_NODE,
        num_nodes=count,
        num_nics=value["num_nics"],
        nic_bytes_per_s=value["nic_bytes_per_s"],
        hop_s=value["hop_s"],
        adds_in_switch=value["adds_in_switch"],
        exposed=_exposed() if value["adds_in_switch"] else 1.0,
    )


def _curves(gpu: str) -> tuple[dict[int, Curve], dict[int, Curve]]:
    """Times of an all-reduce, and of a ring, in one node."""
    if gpu != "h100":
        curves = calibration.in_one_node(gpu)
        return curves, curves
    return (
        calibration.h100_in_one_node(calibration.H100_SWITCH_BYTES_PER_S),
        calibration.h100_in_one_node(calibration.H100_RING_BYTES_PER_S),
    )


@cache
def _exposed() -> float:
    """The fitted figure of two H100 nodes over InfiniBand."""
    figures: dict[str, Any] = {**_figures()["dgx-h100"], **_figures()["infiniband"]}
    node = calibration.h100_in_one_node(calibration.H100_SWITCH_BYTES_PER_S)[8]
    nic_rate = figures["nic_bytes_per_s"][0] * figures["num_nics"][0]
    latency_s = node.latency_s + 2 * figures["hop_s"][0]
    return calibration.exposed_between_two_nodes(node, nic_rate, latency_s)
