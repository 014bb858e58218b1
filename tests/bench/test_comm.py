"""`labkit bench comm` on ranks, at small sizes; the fit; what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from labkit.bench import collectives, comm, timing
from labkit.bench.alpha_beta import Fit, Point, fit
from labkit.replay import measured

SIZES = [1 << power for power in range(10, 27, 2)]


def test_alpha_and_beta_come_back() -> None:
    points = [Point(size, 3e-5 + size * 2e-9) for size in SIZES]
    assert fit(points) == pytest.approx(Fit(3e-5, 2e-9))


def test_every_size_counts_alike_under_noise() -> None:
    rng = np.random.default_rng(0)
    points = [
        Point(size, (3e-5 + size * 2e-9) * float(rng.uniform(0.9, 1.1)))
        for size in SIZES
    ]
    assert fit(points) == pytest.approx(Fit(3e-5, 2e-9), rel=0.15)


@pytest.mark.parametrize(
    ("points", "alpha_s", "beta"),
    [
        ([Point(1000, 1e-6), Point(2000, 4e-6)], 0.0, None),
        ([Point(1000, 4e-6), Point(2000, 1e-6)], None, 0.0),
    ],
    ids=["no latency", "no bandwidth"],
)
def test_neither_is_ever_negative(
    points: list[Point], alpha_s: float | None, beta: float | None
) -> None:
    found = fit(points)
    assert min(found) == 0.0
    assert max(found) > 0.0
    assert found.alpha_s == alpha_s or found.beta_s_per_byte == beta


def test_a_transfer_lasts_from_the_last_that_came_to_the_last_that_left() -> None:
    clocked = [[(0.0, 5.0), (10.0, 12.0)], [(3.0, 4.0), (9.0, 15.0)], []]
    assert timing.spans_s(clocked) == [2.0, 5.0]


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_ranks_are_measured_and_replay_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    effort = timing.Effort((1 << 10, 1 << 20), (2, 3), budget_s=0.02, most=5)
    found = comm.measure(effort)
    series = ["all-reduce, 2 ranks", "all-reduce, 3 ranks", "message"]
    ends = ["1 KiB", "1 MiB", "fitted: alpha", "fitted: beta x 1 GiB"]
    assert [figure.name.partition(" (")[0] for figure in found] == [
        "to issue an all-reduce", *(f"{name}, {end}" for name in series for end in ends)
    ]  # fmt: skip
    assert all(figure.ours >= 0 for figure in found)
    assert str(tmp_path) in capsys.readouterr().err
    kept = json.loads(measured.path().read_text())["comm"]
    assert kept["all_reduce"]["3"][1] == [1 << 20, found[6].ours]
    assert set(kept["fits"]) == {"message", "all_reduce 2", "all_reduce 3"}


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_every_collective_is_fitted_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    effort = timing.Effort((1 << 10, 1 << 18), budget_s=0.01, most=5)
    found = [figure.name for figure in collectives.measure(effort, 3)]
    for name in collectives.CALLS:
        assert f"{name}, 3 ranks, fitted: alpha" in found
    assert len(found) == 2 * len(collectives.CALLS) - 1  # A barrier moves no bytes.
    page = measured.path().with_name("collectives.html").read_text()
    for heading in ("all-reduce", "reduce-scatter", "all-to-all", "gather"):
        assert f'"text":"{heading}"' in page


def test_a_line_says_how_far_off_it_is() -> None:
    line = Fit(1.0, 0.0)
    assert line.worst([Point(1, 1.0), Point(2, 0.8), Point(3, 1.25)]) == (
        pytest.approx(0.25)
    )
