"""Whether a page can show widgets, and what is told where it should but cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from labkit.view import front_end
from labkit.view.front_end import EXTENSIONS, SESSION, FrontEnd, look

PAGE = {SESSION: "lesson.ipynb"}


def folder(root: Path, *names: str) -> Path:
    """A folder of JupyterLab's extensions."""
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "package.json").write_text("{}")
    return root


def test_a_kernel_without_a_page_shows_stills_and_says_nothing(tmp_path: Path) -> None:
    assert look({}, [folder(tmp_path, *EXTENSIONS)]) == FrontEnd(False)


def test_extensions_may_lie_in_several_folders(tmp_path: Path) -> None:
    first = folder(tmp_path / "one", EXTENSIONS[0])
    second = folder(tmp_path / "two", EXTENSIONS[1])
    assert look(PAGE, [first, second]) == FrontEnd(True)


def test_a_server_of_which_nothing_is_known_is_trusted() -> None:
    assert look(PAGE, None) == FrontEnd(True)


def test_wi_01_without_anywidget_there_is_one_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        front_end, "find_spec", lambda name: None if name == "anywidget" else object()
    )
    found = look(PAGE, None)
    assert not found.shows_widgets
    assert "anywidget is not there" in found.hint
    assert sys.executable in found.hint
    assert "pip install ipywidgets anywidget" in found.hint


@pytest.mark.parametrize("present", [(), EXTENSIONS[:1], EXTENSIONS[1:]])
def test_wi_03_a_server_without_the_extensions_is_told_of(
    tmp_path: Path, present: tuple[str, ...]
) -> None:
    found = look(PAGE, [folder(tmp_path, *present)])
    assert not found.shows_widgets
    assert "JupyterLab's Python" in found.hint
    missing = [name for name in EXTENSIONS if name not in present]
    verb = "is" if len(missing) == 1 else "are"
    assert f"; {' and '.join(missing)} {verb} not there" in found.hint


def test_the_hint_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SESSION, "lesson.ipynb")
    monkeypatch.setattr(front_end, "_server_folders", list)
    front_end.front_end.cache_clear()
    try:
        assert not front_end.front_end().shows_widgets
        assert not front_end.front_end().shows_widgets
    finally:
        front_end.front_end.cache_clear()
    assert capsys.readouterr().err.count("[labkit]") == 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/a/bin/python3.12", "/a/bin/jupyter-lab"], "/a"),
        (["/b/bin/python", "-m", "jupyterlab"], "/b"),
        (["python", "/c/bin/jupyter-lab"], "/c"),
        (["python", "-m", "jupyterlab"], None),
        ([], None),
    ],
)
def test_the_server_is_known_by_its_program(
    monkeypatch: pytest.MonkeyPatch, command: list[str], expected: str | None
) -> None:
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: command)
    prefix = front_end._server_prefix()
    assert prefix == (Path(expected) if expected else None)
    folders = front_end._server_folders()
    if prefix is None:
        assert folders is None
    else:
        assert folders is not None
        assert folders[0] == prefix / "share" / "jupyter" / "labextensions"


def test_a_server_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: psutil.Process) -> list[str]:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil.Process, "cmdline", gone)
    assert front_end._server_prefix() is None
