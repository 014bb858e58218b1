"""The command line: thin, and its mistakes are messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from labkit import cli
from labkit.bench import registry
from labkit.bench.figures import Figure
from labkit.course import launch
from labkit.course.places import Course
from labkit.errors import UsageError
from tests.course.conftest import SOURCE

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A course with one source, which is also the working folder."""
    made = Course(tmp_path)
    made.solutions.mkdir()
    made.lessons.mkdir()
    (made.root / "pyproject.toml").touch()
    (made.solutions / "00_first.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "console", Console(width=200))
    return made


def run(*arguments: str) -> Result:
    """Run the command in this process; an error that no user should see is raised."""
    return CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)


def run_as_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m labkit`."""
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments], cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_commands_are_those_that_exist_now(tmp_path: Path) -> None:
    done = run_as_process("--help", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("lab", "update", "build", "check", "grade", "bench", "doctor"):
        assert f" {name} " in done.stdout
    assert " plan " not in done.stdout


def test_a_users_mistake_is_one_message(course: Course) -> None:
    done = run_as_process("check", "07", cwd=course.root)
    assert done.returncode == 2
    assert done.stderr.startswith("error: A lesson must be one of []; '07'")
    assert "Traceback" not in done.stderr


def test_build_writes_then_finds_all_fresh(course: Course) -> None:
    stale = run("build", "--check")
    assert stale.exit_code == 1
    assert "stale: lessons/00_first.ipynb" in stale.output
    assert list(course.lessons.iterdir()) == []
    assert run("build").exit_code == 0
    fresh = run("build", "--check")
    assert (fresh.exit_code, fresh.output) == (0, "2 notebooks, 0 stale\n")


def test_build_check_names_the_one_that_is_stale(course: Course) -> None:
    run("build")
    path = course.lessons / "00_first.ipynb"
    path.write_text(path.read_text() + " ")
    before = path.read_bytes()
    done = run("build", "--check")
    assert done.exit_code == 1
    assert "stale: lessons/00_first.ipynb" in done.output
    assert "solutions/" not in done.output
    assert path.read_bytes() == before


def test_build_check_names_what_has_no_source(course: Course) -> None:
    run("build")
    (course.lessons / "09_gone.ipynb").touch()
    done = run("build", "--check")
    assert done.exit_code == 1
    assert "without a source: lessons/09_gone.ipynb" in done.output


def test_a_malformed_source_is_told(course: Course) -> None:
    (course.solutions / "00_first.py").write_text(SOURCE.replace("points=10", ""))
    with pytest.raises(UsageError, match="must have points"):
        run("build")
    assert list(course.lessons.iterdir()) == []


@pytest.mark.slow
def test_check_shows_a_row_an_exercise(course: Course) -> None:
    run("build")
    solved = str(course.solutions / "00_first.ipynb")
    done = run("check", "00", "--notebook", solved)
    assert done.exit_code == 0
    assert "2 of 2 exercises of 00_first.ipynb hold" in done.output
    handed_out = str(course.lessons / "00_first.ipynb")
    done = run("check", "00", "--notebook", handed_out, "--upto", "0.1")
    assert done.exit_code == 1
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[1][:6] == ["0.1", "not", "answered", "0", "of", "10"]


def test_lab_copies_and_passes_the_rest_on(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path, list[str]]] = []

    def start_lab(work: Path, extra: list[str]) -> int:
        started.append((work, extra))
        return 3

    monkeypatch.setattr(launch, "start_lab", start_lab)
    run("build")
    done = run("lab", "--no-browser", "--port", "9000", "--ServerApp.token=x")
    assert done.exit_code == 3
    assert "new in work/: 00_first.ipynb" in done.output
    assert started == [
        (course.work, ["--no-browser", "--port", "9000", "--ServerApp.token=x"])
    ]
    assert "lessons copied: 0; kept as you left them: 1." in run("lab").output


def test_the_lab_command_is_one_that_jupyterlab_takes(tmp_path: Path) -> None:
    command = launch.lab_command(tmp_path, ["--no-browser", "--show-config-json"])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["ServerApp"]["root_dir"] == str(tmp_path)
    assert shown["ServerApp"]["open_browser"] is False


def test_bench_lists_names_and_runs_one(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = run("bench")
    assert listed.exit_code == 0
    assert "ranks" in listed.output
    figures = [Figure("warm run", "s", 1.0, 4.0, machine="m")]
    monkeypatch.setattr(registry.Benchmark, "run", lambda self: figures)
    done = run("bench", "ranks", "--json", "out.json")
    assert done.exit_code == 0
    assert "0.25" in done.output
    assert json.loads((course.root / "out.json").read_text())[0]["ratio"] == 0.25
    assert run("bench", "--all").output.count("warm run") == len(registry.BENCHMARKS)


def test_doctor_prints_a_report(course: Course) -> None:
    done = run("doctor")
    assert done.exit_code == 0
    assert "torch" in done.output


def test_starting_the_command_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, labkit.cli; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "numpy", "IPython", "jupytext", "plotly", "pytest"}


def test_update_says_what_it_did_to_each_notebook(course: Course) -> None:
    run_as_process("build", cwd=course.root)
    nothing = run_as_process("update", cwd=course.root)
    assert nothing.returncode == 0
    assert "labkit lab" in nothing.stdout
    course.work.mkdir()
    (course.work / "00_first.ipynb").write_text("no notebook")
    done = run_as_process("update", cwd=course.root)
    assert done.returncode == 0
    assert done.stdout.startswith("left alone: 00_first.ipynb: ")
