"""This machine: what benchmarks wrote is read back, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.replay import measured
from labkit.replay.catalog import hardware
from tests.replay.issued import alone_s, comm, work

COMPUTE = {
    "machine": "a laptop",
    "operation_s": 2e-6,
    "matmul": {"float32": [[1e6, 1e-4], [1e9, 1e-2]], "float64": [[1e9, 2e-2]]},
    "copy": [[1e6, 1e-4], [1e8, 1e-2]],
}
COMM = {
    "machine": "a laptop",
    "issue_s": 3e-5,
    "all_reduce": {
        "2": [[1024, 1e-4], [1 << 20, 1e-3]], "4": [[1024, 2e-4], [1 << 20, 3e-3]],
    },
    "message": [[1024, 5e-5], [1 << 20, 6e-4]],
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "labkit" / "machine.json"


def write(**changed: Any) -> None:
    measured.store("compute", {**COMPUTE, **changed})
    measured.store("comm", COMM)


def test_what_was_measured_is_what_it_answers() -> None:
    write()
    found = hardware("this machine")
    assert (found.is_cpu, found.launch_s, found.comm_launch_s) == (True, 2e-6, 3e-5)
    assert found.work_s(work(1e9)) == pytest.approx(1e-2)
    assert found.work_s(work(1e9, dtype="float64")) == pytest.approx(2e-2)
    assert found.work_s(work(0, 1e8)) == pytest.approx(1e-2)
    for num_ranks, time_s in ((2, 1e-3), (4, 3e-3)):
        asked = found.demand(comm("all_reduce", 1 << 20), tuple(range(num_ranks)))
        assert alone_s(asked) == pytest.approx(time_s)
    asked = found.demand(comm("send", 1 << 20), (0, 3))
    assert alone_s(asked) == pytest.approx(6e-4)
    assert found.flops_per_s == pytest.approx(1e11)


def test_more_ranks_than_were_measured_are_on_this_machine_too() -> None:
    write()
    asked = hardware("this machine").demand(
        comm("all_reduce", 1 << 20), tuple(range(8))
    )
    assert alone_s(asked) > 3e-3
    assert all(link[0] in ("out", "in") for link, _ in asked.links)


def test_what_is_missing_is_asked_for() -> None:
    with pytest.raises(
        UsageError, match="`labkit bench compute` and `labkit bench comm`"
    ):
        hardware("this machine")
    measured.store("compute", COMPUTE)
    with pytest.raises(UsageError, match=r"no comm part\. Run `labkit bench comm`"):
        hardware("this machine")


def test_one_part_keeps_the_other(cache: Path) -> None:
    write()
    measured.store("comm", {**COMM, "issue_s": 1.0})
    kept = json.loads(cache.read_text())
    assert kept["compute"] == COMPUTE
    assert kept["comm"]["issue_s"] == 1.0
    assert [path.name for path in cache.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": 0}', '{"schema": 1, "compute": {}, "comm": {}}',
     '{"schema": 1, "compute": 3, "comm": []}'],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    with pytest.raises(UsageError, match=r"machine\.json must h.*Delete it"):
        hardware("this machine")


@pytest.mark.parametrize("value", [None, -1.0, float("nan"), float("inf"), "long"])
def test_numbers_that_nobody_measures_are_refused(value: Any) -> None:
    write(operation_s=value)
    with pytest.raises(UsageError, match="launch_s of 'this machine' must be"):
        hardware("this machine")


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "labkit").write_text("a file, not a folder")
    with pytest.raises(UsageError, match=r"must be writable.*XDG_CACHE_HOME"):
        measured.store("comm", COMM)
