"""`labkit bench compute` on a rank, at small sizes; what it keeps is what is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.bench import compute
from labkit.replay import measured
from labkit.replay.catalog import hardware
from tests.replay.issued import work

FOUND = compute.Measured(
    2e-6, {"float32": [(1e3, 1e-6), (1e9, 1e-2)]}, [(1e6, 1e-4), (1e8, 1e-2)]
)


def test_what_is_kept_has_launching_taken_off() -> None:
    kept = compute.as_stored(FOUND)
    assert kept["operation_s"] == 2e-6
    assert kept["matmul"] == {"float32": [(1e3, 0.0), (1e9, pytest.approx(0.009998))]}
    assert kept["copy"][0] == (1e6, pytest.approx(9.8e-5))
    assert "torch" in kept["machine"]


def test_a_size_that_takes_too_long_is_the_last() -> None:
    impatient = compute.Effort(
        dims=(8, 16, 32), copied_bytes=(1024,), budget_s=0.0, longest_s=0.0
    )
    found = compute.timed(impatient)
    assert {len(points) for points in found.matmul.values()} == {1}


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_rank_is_measured_and_replay_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    effort = compute.Effort((64, 256), (1 << 16, 1 << 22), budget_s=0.02)
    found = compute.measure(effort)
    names = [figure.name.partition(" (")[0] for figure in found]
    assert names == [
        "an operation on one number",
        "float32 64^3", "float32 256^3", "float64 64^3", "float64 256^3",
        "bfloat16 64^3", "bfloat16 256^3", "copy 64 KiB", "copy 4 MiB",
    ]  # fmt: skip
    assert str(tmp_path) in capsys.readouterr().err
    by_name = dict(zip(names, found, strict=True))
    compute_only(tmp_path)
    machine = hardware("this machine")
    took_s = machine.work_s(work(2.0 * 256**3)) + machine.launch_s
    assert took_s == pytest.approx(by_name["float32 256^3"].ours)


def compute_only(folder: Path) -> None:
    """Give the file the other part, which this benchmark does not measure."""
    points = [(1024, 1e-4), (1 << 20, 1e-3)]
    measured.store(
        "comm",
        {
            "machine": "",
            "issue_s": 1e-5,
            "all_reduce": {"2": points},
            "message": points,
        },
    )
    assert measured.path().parent.parent == folder
