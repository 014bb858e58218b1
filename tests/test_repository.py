"""What the files beside the package promise: installs, README, make, sizes."""

from __future__ import annotations

import ast
import os
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit.course.source import read_lesson

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "labkit"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
README = (ROOT / "README.md").read_text()
LEFT_OUT = {
    ".git", ".venv", "work", "shared", "build", "dist", "__pycache__", ".pytest_cache",
    ".ruff_cache", ".ipynb_checkpoints",
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


def pins() -> dict[str, str]:
    """Version by package, from the pinned file."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9a-z.]+", line) for line in named)
    return dict(line.split("==") for line in named)


def text_files() -> Iterator[Path]:
    """Every text file of the repository."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in files:
            path = Path(folder, name)
            if path.suffix not in (".png", ".pyc") and "egg-info" not in folder:
                yield path


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the package, parsed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def functions() -> Iterator[tuple[str, Function]]:
    """Every function of the package, with the place where it stands."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def code_lines(node: Function) -> int:
    """Lines of a function from `def` to its end, without the docstring."""
    total = (node.end_lineno or 0) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        total -= (first.end_lineno or 0) - first.lineno + 1
    return total


def test_conda_environment_has_the_ranges_of_pyproject() -> None:
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    *conda, by_pip = wanted
    assert by_pip["pip"] == RANGES
    assert conda == [f"python{PROJECT['requires-python']}", "pip"]


@pytest.mark.parametrize("line", RANGES)
def test_the_pinned_file_satisfies_pyproject(line: str) -> None:
    wanted = Requirement(line)
    assert pins()[canonicalize_name(wanted.name)] in wanted.specifier


@pytest.mark.parametrize("line", RANGES)
def test_every_range_has_both_ends(line: str) -> None:
    assert {spec.operator for spec in Requirement(line).specifier} == {">=", "<"}


def test_torch_is_pinned_without_a_build() -> None:
    assert pins()["torch"] == "2.13.0"


def test_every_import_is_declared() -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in RANGES}
    declared |= {"ipyparallel", "accelerate", "labkit"}
    owners = packages_distributions()
    for path, tree in trees():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for top in {name.partition(".")[0] for name in names}:
                if top not in sys.stdlib_module_names and top != "labkit":
                    found = {canonicalize_name(o) for o in owners.get(top, [top])}
                    assert found & declared, f"{path} imports {top}"


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    # A URL's path or a relative path is none: nothing may stand before the slash.
    place = re.compile(r"(?<![\w.:/})])/(?:work|root|opt|home)/\w")
    assert place.search('open("/work' + '/main")')
    for path in text_files():
        assert not place.search(path.read_text()), path


@pytest.mark.parametrize("name", ["requirements.txt", "environment.yml", "Makefile"])
def test_installs_name_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links", text)


def readme_lessons() -> list[tuple[str, str, bool]]:
    """Number, title and whether it is written, from README's table."""
    row = re.compile(r"^\| (\d\d) \| (.+?) \| (written|not written yet) \|$", re.M)
    return [(n, title, state == "written") for n, title, state in row.findall(README)]


def test_readme_lists_the_lessons_that_are_there() -> None:
    listed = readme_lessons()
    assert [number for number, _, _ in listed] == [f"{n:02}" for n in range(17)]
    sources = {path.name[:2]: path for path in (ROOT / "solutions").glob("*.py")}
    for number, title, written in listed:
        assert written == (number in sources), f"lesson {number}"
        if written:
            assert title.lower() in read_lesson(sources[number]).title.lower()


def test_readme_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert target.startswith("http") or (ROOT / target).is_file(), target


def test_readme_names_real_commands() -> None:
    from labkit.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    assert commands == {"lab", "update", "build", "check", "grade", "bench", "doctor"}
    assert set(re.findall(r"\blabkit ([a-z]+) [0-9-]", README)) <= commands


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make and return what it said."""
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [(), ("help",)])
def test_make_lists_its_targets(arguments: tuple[str, ...]) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    listed = [line.split()[0] for line in make(*arguments).stdout.splitlines()]
    assert sorted(listed) == sorted(phony[1].split())
    assert {"lab", "test"} <= set(listed)


def test_make_says_which_python_is_missing(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = make("lab", "PYTHONS=false no-such-python", cwd=tmp_path)
    assert done.returncode != 0
    assert "needs Python 3.11 to 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("failing", ["check", "test", "neither"])
def test_ci_runs_both_and_fails_when_one_does(tmp_path: Path, failing: str) -> None:
    make_stub = (
        "#!/bin/sh\n"
        'for target in "$@"; do :; done\n'
        f'echo "$target $LABKIT_REQUIRE_BROWSER" >> {tmp_path}/calls\n'
        f'[ "$target" != {failing} ]\n'
    )
    for name, text in (("make", make_stub), ("chromium", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(ROOT / ".ci" / "run")],
        env={**os.environ, "PATH": path}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (tmp_path / "calls").read_text() == "check 1\ntest 1\n"
    assert (done.returncode != 0) == (failing != "neither")


def test_functions_are_short() -> None:
    sizes = {name: code_lines(node) for name, node in functions()}
    assert [name for name, size in sizes.items() if size > 60] == []
    assert statistics.median(sizes.values()) < 10
    assert statistics.quantiles(sizes.values(), n=10)[-1] < 35


def test_everything_public_has_a_docstring() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path, tree in trees()
        for node in (tree, *public(tree.body))
        if path.stat().st_size and ast.get_docstring(node) is None
    ]
    assert bare == []


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """The public functions and classes of a body, and what these classes define.

    An overload is described by the function that it stands for.
    """
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and node.name[0] != "_":
            if not any(ast.unparse(mark) == "overload" for mark in node.decorator_list):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)
