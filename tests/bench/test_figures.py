"""Figures, the list of benchmarks, and how both are shown."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from rich.console import Console

from labkit.bench import registry, table
from labkit.bench.figures import Figure, this_machine
from labkit.errors import UsageError


def printed(*figures: Figure) -> str:
    """The table as text."""
    console = Console(width=160, record=True, quiet=False, file=None)
    with console.capture() as capture:
        table.print_figures(figures, console)
    return capture.get()


def test_the_ratio_is_ours_over_theirs() -> None:
    assert Figure("cold start", "s", 2.0, 8.0).ratio == 0.25
    assert Figure("memory", "bytes", 10, None).ratio is None
    assert Figure("left over", "processes", 1, 0).ratio is None
    with pytest.raises(FrozenInstanceError):
        Figure("x", "s", 1.0).ours = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(-1.0, 1.0), (1.0, float("nan")), (float("inf"), None)]
)
def test_a_value_must_be_a_number(ours: float, theirs: float | None) -> None:
    with pytest.raises(UsageError, match="finite and at least 0"):
        Figure("cold start", "s", ours, theirs)


def test_the_machine_is_named() -> None:
    assert "torch" in this_machine()
    assert "cores" in this_machine()


def test_the_table_has_a_row_a_figure() -> None:
    text = printed(
        Figure("warm run", "s", 0.012, 0.024, (0.4, 0.6), (0.97, 1.02), "other 1.2"),
        Figure("memory", "bytes", 3 << 20, 6 << 20, machine="a small one"),
        Figure("left over", "processes", 0, 15),
        Figure("interrupt", "s", 0.1),
    )
    lines = text.splitlines()
    assert lines[0].split() == [
        "figure", "ours", "theirs", "against", "ratio", "95", "%", "A/A", "95", "%"
    ]  # fmt: skip
    assert " ".join(lines[1].split()) == (
        "warm run 12 ms 24 ms other 1.2 0.50 0.40 to 0.60 0.97 to 1.02"
    )
    assert lines[2].split() == ["memory", "3", "MiB", "6", "MiB", "0.50"]
    assert " ".join(lines[3].split()) == "left over 0 processes 15 processes 0.00"
    assert lines[4].split() == ["interrupt", "100", "ms"]
    assert [line.startswith("measured on") for line in lines[5:]] == [True, True]


def test_json_keeps_every_field(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    table.write_json([Figure("x", "s", 1.0, 2.0, (0.4, 0.6), (0.9, 1.1))], path)
    assert json.loads(path.read_text()) == [
        {"name": "x", "unit": "s", "ours": 1.0, "theirs": 2.0, "ratio": 0.5,
         "interval": [0.4, 0.6], "aa_interval": [0.9, 1.1], "against": "",
         "machine": this_machine()},
    ]  # fmt: skip
    with pytest.raises(UsageError, match="must be writable"):
        table.write_json([], tmp_path / "none" / "figures.json")


def test_every_benchmark_is_a_module_with_figures() -> None:
    folder = Path(registry.__file__).parent
    for benchmark in registry.BENCHMARKS:
        assert (
            "def figures() -> list[Figure]:"
            in (folder / f"{benchmark.name}.py").read_text()
        )
        assert benchmark.description
        assert registry.find(benchmark.name) is benchmark


def test_an_unknown_benchmark_is_told() -> None:
    with pytest.raises(UsageError, match=r"one of: ranks.*; 'rank'"):
        registry.find("rank")
