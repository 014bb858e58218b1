"""Names, and a source for every figure."""

from __future__ import annotations

import pytest

from labkit.errors import UsageError
from labkit.replay.catalog import THIS_MACHINE, hardware, names
from labkit.replay.catalog import _figures as figures

MODELS = [name for name in names() if name != THIS_MACHINE]


@pytest.mark.parametrize("name", MODELS)
def test_each_is_found_and_says_what_it_leaves_out(name: str) -> None:
    found = hardware(name)
    assert found.name == name
    assert any("multiprocessors" in note for note in found.notes)
    of_nodes = [note for note in found.notes if "nodes" in note]
    assert len(of_nodes) == name.startswith("2x")
    assert found.network.num_nodes == (2 if name.startswith("2x") else 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_number_has_a_source(name: str) -> None:
    sources = hardware(name).sources
    needed = {
        "bytes_per_s", "launch_s", "comm_launch_s", "port_bytes_per_s", "num_nics",
        "nic_bytes_per_s", "hop_s", "all_reduce", "computing.best", "computing.floor",
        "computing.half", "moving.best", "moving.floor", "moving.half",
    }  # fmt: skip
    needed |= {
        f"peak_flops_per_s.{dtype}" for dtype in hardware(name).device.peak_flops_per_s
    }
    if hardware(name).network.adds_in_switch:
        needed.add("exposed")
    assert needed <= set(sources)
    assert all(len(source) > 10 for source in sources.values())


def test_no_figure_stands_without_a_source() -> None:
    def bare(entries: dict[str, object], at: str = "") -> list[str]:
        found: list[str] = []
        for key, entry in entries.items():
            if isinstance(entry, dict):
                found += bare(entry, f"{at}{key}.")
            elif isinstance(entry, int | float) and not isinstance(entry, bool):
                found.append(f"{at}{key}")
        return found

    assert bare(figures()) == []


@pytest.mark.parametrize(
    "name",
    ["", "h100", "dgx-b200", "2x dgx-h100", "dgx-h100 infiniband", "DGX-H100",
     "1x dgx-h100 ethernet", "0x dgx-h100 ethernet", "2x dgx-h100 pigeon"],
)  # fmt: skip
def test_another_name_is_told_the_names(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"one of: dgx-v100, .*2x dgx-h100 ethernet"
    ) as e:
        hardware(name)
    assert repr(name) in str(e.value)


def test_any_number_of_nodes() -> None:
    assert hardware("16x dgx-a100 infiniband").network.num_nodes == 16


@pytest.mark.parametrize(
    ("asked", "closest"),
    [
        ("dgx-h10", "dgx-h100"),
        ("2x dgx-h100 infini", "2x dgx-h100 inf"),
        ("this pc", "this machine"),
    ],
)
def test_a_name_that_is_unknown_is_told_the_one_most_like_it(
    asked: str, closest: str
) -> None:
    with pytest.raises(UsageError, match=rf"Try hardware\('{closest}"):
        hardware(asked)
