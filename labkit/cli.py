"""The `labkit` command. Each subcommand loads only what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from labkit.errors import LabkitError

app = typer.Typer(
    help="An interactive course on training large models on many GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


def main() -> None:
    """Run the command; a mistake of the user's is a message, not a traceback."""
    try:
        app()
    except LabkitError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(2)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def lab(context: typer.Context) -> None:
    """Copy lessons that are not in work/ yet, then open JupyterLab on work/.

    Everything else on the line goes to JupyterLab: `labkit lab --no-browser`.
    """
    from labkit.course.launch import start_lab
    from labkit.course.places import find_course
    from labkit.course.work import hand_out

    course = find_course()
    handed_out = hand_out(course)
    for path in handed_out.new:
        console.print(f"new in work/: {path.name}", highlight=False)
    console.print(
        f"lessons copied: {len(handed_out.new)}; kept as you left them: "
        f"{len(handed_out.kept)}. Opening JupyterLab on {course.work}",
        highlight=False,
    )
    sys.exit(start_lab(course.work, context.args))


@app.command()
def update() -> None:
    """Put the newest edition of each lesson under your answers in work/."""
    from labkit.course.places import find_course
    from labkit.course.update import update as bring_up

    course, nothing = find_course(), True
    for item in bring_up(course):
        console.print(str(item), highlight=False, markup=False, soft_wrap=True)
        nothing = False
    if nothing:
        console.print(f"no lesson is in {course.work} yet; try `labkit lab`")


@app.command()
def build(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if one is stale.")
    ] = False,
) -> None:
    """Build the notebooks of every lesson from solutions/NN_slug.py."""
    from labkit.course import build as builder
    from labkit.course.places import find_course

    course = find_course()
    built = builder.build(course)
    stale = [item.path for item in built if not item.fresh]
    left_over = builder.orphans(course, built)
    for item in built:
        if not check and not item.fresh:
            item.write()
    word = "stale" if check else "written"
    _list_paths(word, stale, course.root)
    _list_paths("without a source", left_over, course.root)
    console.print(f"{len(built)} notebooks, {len(stale)} {word}", highlight=False)
    if left_over or (check and stale):
        console.print("Try `make notebooks`; delete what has no source.")
        raise typer.Exit(1)


@app.command()
def check(
    lesson: Annotated[str, typer.Argument(help="Two digits, such as 00.")],
    upto: Annotated[
        str | None, typer.Option(help="Stop after this exercise, such as 0.2.")
    ] = None,
    notebook: Annotated[
        Path | None, typer.Option(help="Check this notebook, not the one in work/.")
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds that one cell may run.")
    ] = 120.0,
) -> None:
    """Run a lesson's notebook from top to bottom and show how its exercises stand."""
    from labkit.course.check import check_notebook
    from labkit.course.places import find_course
    from labkit.course.show import show_report

    path = notebook or find_course().work_notebook(lesson)
    with console.status(f"running {path.name}") as status:
        report = check_notebook(
            path,
            upto=upto,
            cell_limit_s=limit,
            progress=lambda done, total: status.update(
                f"running {path.name}: {done} of {total} cells"
            ),
        )
    show_report(report, console)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="What came back from learners.")],
    lesson: Annotated[
        str | None, typer.Option(help="For files that do not say which they are of.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the rows to this file.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds that one cell may run.")] = 120,
    total: Annotated[
        float, typer.Option(help="Seconds that one notebook may run.")
    ] = 900,
) -> None:
    """Run every notebook of a folder with its answers, and give each file a row."""
    from labkit.course import grade as grading
    from labkit.course.gradebook import FORGEABLE, Gradebook
    from labkit.course.places import find_course
    from labkit.course.trial import Limits

    limits = Limits(limit, total, grading.LIMITS.file_bytes)
    files = [path for path in (csv_file, json_file) if path is not None]
    book = Gradebook(csv_file, json_file)
    console.print(FORGEABLE, highlight=False, soft_wrap=True)
    with console.status("") as status:
        for row in grading.grade(
            find_course(), folder, lesson=lesson, limits=limits, but=files,
            progress=lambda told: status.update(escape(told)),
        ):  # fmt: skip
            book.add(row)
            console.print(str(row), highlight=False, markup=False, soft_wrap=True)
    written = "".join(f", in {path}" for path in files)
    console.print(f"{len(book.rows)} rows{written}", highlight=False)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Which; without it they are listed.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run every benchmark.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
) -> None:
    """Measure labkit beside other tools; without a name, list the benchmarks."""
    from labkit.bench import registry, table

    if name is None and not everything:
        table.print_names(console)
        return
    chosen = registry.BENCHMARKS if name is None else (registry.find(name),)
    figures = [figure for benchmark in chosen for figure in benchmark.run()]
    if json_file is not None:
        table.write_json(figures, json_file)
    table.print_figures(figures, console)


@app.command()
def doctor() -> None:
    """Say what this machine can run, and what to fix."""
    from labkit.runtime.doctor import print_report

    print_report(console)


def _list_paths(word: str, paths: list[Path], root: Path) -> None:
    for path in paths:
        console.print(f"{word}: {path.relative_to(root)}", highlight=False)
