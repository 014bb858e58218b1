"""Published all-reduces, held against the models that were fitted to other rows."""

from __future__ import annotations

import pytest

from labkit.replay import calibration
from labkit.replay.calibration import FITTED_MIB, MIB, OVERLAP_MIB
from labkit.replay.catalog import hardware
from tests.replay.issued import alone_s, comm

MIDDLE_MIB = range(8, 257)  # Of 1 to 1024, by three doublings and two from the ends.
TWO_NODES_MIDDLE_MIB = range(256, 4097)  # Of 128 to 8192.


def off(name: str, num_bytes: int, num_ranks: int, measured_s: float) -> float:
    """How far a model's all-reduce is from a measured one: 0.1 is 10 % too long."""
    ranks = tuple(range(num_ranks))
    demand = hardware(name).demand(comm("all_reduce", num_bytes), ranks)
    return alone_s(demand) / measured_s - 1


@pytest.mark.parametrize("gpu", ["a100", "v100"])
def test_one_node_within_ten_percent_and_twenty_at_the_ends(gpu: str) -> None:
    held_out = 0
    for (num_ranks, num_bytes), measured_s in calibration.measured(gpu).items():
        mib = num_bytes // MIB
        held_out += mib not in FITTED_MIB
        bound = 0.10 if mib in MIDDLE_MIB else 0.20
        found = off(f"dgx-{gpu}", num_bytes, num_ranks, measured_s)
        assert abs(found) < bound, (num_ranks, mib, found)
    assert held_out == 4 * 7  # Of 2, 32, 128, 1024 MiB, with 2 to 8 ranks.


def test_a_fitted_row_is_met_and_a_held_out_one_is_not_used() -> None:
    table = calibration.measured("a100")
    curve = calibration.in_one_node("a100")[8]
    assert curve.at(16 * MIB) == pytest.approx(table[8, 16 * MIB])
    assert curve.sizes == (0.0, *(float(mib * MIB) for mib in FITTED_MIB))
    assert curve.at(32 * MIB) != pytest.approx(table[8, 32 * MIB], rel=1e-3)


def test_two_nodes_within_ten_percent_and_twenty_at_the_ends() -> None:
    rows = calibration.measured_on_two_nodes()
    held_out = 0
    for num_bytes, measured_s in rows:
        mib = num_bytes // MIB
        held_out += mib not in OVERLAP_MIB
        bound = 0.10 if mib in TWO_NODES_MIDDLE_MIB else 0.20
        found = off("2x dgx-h100 infiniband", num_bytes, 16, measured_s)
        assert abs(found) < bound, (mib, found)
    assert (len(rows), held_out) == (10, 6)


@pytest.mark.parametrize(
    ("num_bytes", "measured_s"),
    [(1 << 33, 31517e-6), (1 << 30, 4.06e-3), (1 << 20, 25e-6)],
    ids=["8 GiB, an H200's", "1 GiB", "1 MiB"],
)
def test_eight_h100_meet_what_is_published(num_bytes: int, measured_s: float) -> None:
    """Of these only 1 MiB was used, and 4 GiB, which is not here."""
    assert abs(off("dgx-h100", num_bytes, 8, measured_s)) < 0.05


def test_bus_bandwidth_of_the_table_is_nccl_tests_own() -> None:
    for row in calibration.rows("vtrain_all_reduce.csv"):
        num_ranks, num_bytes = int(row["ranks"]), int(row["bytes"])
        wire = 2 * (num_ranks - 1) / num_ranks * num_bytes
        assert wire / float(row["time_us"]) / 1e3 == pytest.approx(
            float(row["busbw_gbps"]), rel=1e-3
        )


@pytest.mark.parametrize("name", ["dgx-v100", "dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("num_ranks", [2, 5, 8])
def test_below_what_was_measured_a_latency_is_left(name: str, num_ranks: int) -> None:
    ranks = tuple(range(num_ranks))
    times_s = [
        alone_s(hardware(name).demand(comm("all_reduce", size), ranks))
        for size in (0, 8, 1 << 10, 1 << 15, 1 << 20)
    ]
    assert times_s == sorted(times_s)
    assert times_s[0] == pytest.approx(calibration.nccl_latency_s(num_ranks))
    assert times_s[1] == pytest.approx(times_s[0], rel=1e-3)


def test_tables_name_their_source() -> None:
    for name in ("vtrain_all_reduce", "nccl_tests_all_reduce", "h100_small_all_reduce"):
        path = calibration.files("labkit.replay") / "data" / f"{name}.csv"
        assert path.read_text().startswith("# Source:")
