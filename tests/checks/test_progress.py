"""What is kept of a learner's work, by whom it may be written, and what may break."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit import Cluster, check, hint, mine
from labkit.checks import progress
from labkit.checks.exercise import find
from labkit.checks.mine import keep
from labkit.checks.progress import Entry
from labkit.errors import CheckFailed, UsageError
from tests.checks import answers_01 as answers


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course's work folder, with the process in it."""
    (tmp_path / "lessons").mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv(progress.GRADING, raising=False)
    monkeypatch.delenv(progress.FOLDER, raising=False)
    return folder


def test_attempts_and_points_are_kept_by_exercise(work: Path) -> None:
    progress.attempted("1.2", 4, 10)
    progress.attempted("1.2", 10, 10)
    progress.attempted("1.2", 6, 10)
    progress.hinted("1.2", 2)
    progress.hinted("0.1", 1)
    assert progress.of("1.2") == Entry(3, last=6, best=10, out_of=10, hints=2)
    assert progress.of("0.1") == Entry(hints=1)
    assert progress.of("9.9") == Entry()
    assert set(json.loads((work / "progress.json").read_text())) == {"0.1", "1.2"}


def test_a_check_counts_whether_it_passes_or_not(work: Path) -> None:
    with pytest.raises(CheckFailed):
        check("1.5", answers.alpha_once, answers.crossover_bytes)
    check("1.5", answers.predict_s, answers.crossover_bytes)
    assert progress.of("1.5") == Entry(2, last=10, best=10, out_of=10)


def test_hints_go_on_where_they_were(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.checks._hints_given", {})
    hint("1.2")
    monkeypatch.setattr("labkit.checks._hints_given", {})  # A new kernel.
    hint("1.2")
    assert "Hint 2 of 3" in capsys.readouterr().out
    assert progress.of("1.2").hints == 2


def test_nothing_is_written_while_grading_or_outside_a_course(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.GRADING, "1")
    progress.attempted("1.2", 10, 10)
    keep("1.2", answers.ring_sums)
    monkeypatch.delenv(progress.GRADING)
    monkeypatch.chdir(tmp_path)
    progress.attempted("1.2", 10, 10)
    assert list(work.iterdir()) == []
    assert progress.folder() is None


def _many(number: int) -> None:
    for _ in range(25):
        progress.attempted(f"1.{number % 2}", 1, 10)


def test_two_notebooks_at_the_same_time_lose_nothing(work: Path) -> None:
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=_many, args=(number,)) for number in range(4)]
    for each in both:
        each.start()
    for each in both:
        each.join(30)
    assert [progress.of(name).attempts for name in ("1.0", "1.1")] == [50, 50]
    assert [p.name for p in work.iterdir() if p.name.endswith(".new")] == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", "null", '{"1.2": 3}', '{"1.2": {"attempts": "x"}}', "\x00\xff",
     '{"1.2": {"attempts":-1,"last":0,"best":0,"out_of":0,"hints":0}}'],
)  # fmt: skip
def test_a_file_that_is_none_of_ours_is_set_aside_and_said(
    work: Path, content: str
) -> None:
    (work / "progress.json").write_text(content)
    with pytest.warns(UserWarning, match=r"kept as progress\.broken1\.json"):
        progress.attempted("1.2", 10, 10)
    assert (work / "progress.broken1.json").read_text() == content
    assert progress.of("1.2").attempts == 1


def test_a_folder_that_is_not_writable_is_said_and_nothing_more(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.FOLDER, str(work / "not there"))
    with pytest.warns(UserWarning, match="must be writable; got No such file"):
        progress.attempted("1.2", 10, 10)


def test_a_passed_answer_is_mine_and_runs_on_ranks(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mine("1.2") is find("1.2").reference
    assert (
        "1.2: the reference (no answer of yours has passed" in capsys.readouterr().out
    )
    keep("1.2", answers.ring_sums)
    own = mine("1.2")
    assert "1.2: your own answer" in capsys.readouterr().out

    def summed() -> float:
        return float(own(torch.ones(4), dist.group.WORLD).sum())

    with Cluster(2, backend="threads", quiet=True, live=False) as cluster:
        assert cluster.run(summed).results == [4.0, 4.0]


def test_only_a_check_that_passes_keeps_an_answer(work: Path) -> None:
    with pytest.raises(CheckFailed):
        check("1.2", answers.returns_nothing)
    assert not (work / progress.PASSED).exists()
    check("1.2", answers.ring_sums)
    assert [path.name for path in (work / progress.PASSED).iterdir()] == ["1.2.pkl"]


def test_while_grading_mine_is_the_reference(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep("1.2", answers.ring_sums)
    monkeypatch.setenv(progress.GRADING, "1")
    assert mine("1.2") is find("1.2").reference
    assert "as always while grading" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x05N."])
def test_a_kept_answer_that_cannot_be_read_gives_way_to_the_reference(
    work: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    keep("1.2", answers.ring_sums)
    (work / progress.PASSED / "1.2.pkl").write_bytes(content)
    assert mine("1.2") is find("1.2").reference
    assert "yours cannot be read" in capsys.readouterr().out


def test_an_answer_that_cannot_be_kept_is_said(work: Path) -> None:
    file = (work / "open").open("w")

    def holds_a_file(x_N: Any, group: Any) -> None:
        file.write("x")

    with file, pytest.warns(UserWarning, match="must be picklable.*1.2 gave"):
        keep("1.2", holds_a_file)
    assert not list(work.rglob("*.pkl"))


def test_an_exercise_that_nobody_builds_on_is_refused(work: Path) -> None:
    with pytest.raises(UsageError, match=r"0\.1 has none"):
        mine("0.1")
