"""Prints what a check of a notebook found."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labkit.course.check import NotebookReport

MOST_LINES = 12
_STYLE = {
    "passed": "green",
    "failed": "bold red",
    "not answered": "yellow",
    "not run": "bold red",
}


def show_report(report: NotebookReport, console: Console) -> None:
    """Print a row an exercise, then each other cell that stopped."""
    table = Table("exercise", "result", "points", "what was seen", box=None)
    for result in report.exercises:
        status = f"[{_STYLE[result.status]}]{result.status}[/]"
        row = (result.exercise, status, f"{result.points} of {result.out_of}")
        table.add_row(*row, escape(result.message))
    console.print(table)
    for cell in report.stopped:
        lines = f"{cell.error}: {cell.message or ''}".splitlines()
        more = len(lines) - MOST_LINES
        seen = "\n".join(
            [*lines[:MOST_LINES], *([f"({more} more lines)"] * (more > 0))]
        )
        console.print(
            f"[bold red]code cell {cell.number + 1} stopped:[/] {escape(seen)}"
        )
    passed = sum(result.status == "passed" for result in report.exercises)
    console.print(
        f"{passed} of {len(report.exercises)} exercises of {report.path.name} hold",
        highlight=False,
    )
