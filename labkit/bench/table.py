"""Shows figures: as one table, as a list of JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labkit.bench.figures import Figure, Interval
from labkit.bench.registry import BENCHMARKS
from labkit.errors import UsageError
from labkit.units import format_bytes, format_seconds


def print_names(console: Console) -> None:
    """List the benchmarks and what each measures."""
    table = Table("name", "measures", box=None)
    for benchmark in BENCHMARKS:
        table.add_row(benchmark.name, benchmark.description)
    console.print(table)
    console.print("Run one with `labkit bench NAME`, all with `labkit bench --all`.")


def print_figures(figures: Iterable[Figure], console: Console) -> None:
    """Print one row a figure; a ratio below 1 means that labkit needs less."""
    table = Table(
        "figure", "ours", "theirs", "against", "ratio", "95 %", "A/A 95 %", box=None
    )
    machines: dict[str, None] = {}
    for figure in figures:
        machines[figure.machine] = None
        table.add_row(
            figure.name,
            format_value(figure.ours, figure.unit),
            format_value(figure.theirs, figure.unit),
            figure.against,
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            _format_interval(figure.interval),
            _format_interval(figure.aa_interval),
        )
    console.print(table)
    for machine in machines:
        console.print(f"measured on {machine}", highlight=False)


def write_json(figures: Iterable[Figure], path: Path) -> None:
    """Write the figures to a file, each as an object with the fields of Figure.

    Raises:
        UsageError: The file cannot be written.
    """
    text = json.dumps([asdict(figure) for figure in figures], indent=1)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"The figures' file must be writable; {path} gave: {error.strerror}. "
            "Try another folder."
        ) from error


def format_value(value: float | None, unit: str) -> str:
    """A value with its unit, "" for None: `format_value(0.012, "s")` is "12 ms"."""
    if value is None:
        return ""
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:.3g} {unit}"


def _format_interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
