"""The table of what ranks sent."""

from __future__ import annotations

from labkit.record.program import Program, Traffic
from labkit.view.ranks import spelled
from labkit.view.traffic import COLUMNS, traffic
from tests.record import made


def cells(program: Program) -> list[list[str]]:
    return [[cell.text for cell in row] for row in traffic(program).rows]


def counted(num_ranks: int) -> Program:
    rows = [
        Traffic(rank, "all_reduce", "world", None, 3, 3 << 20, 4 << 20)
        for rank in range(num_ranks)
    ]
    rows.append(Traffic(0, "send", "world", 1, 2, 800, 800))
    return made.program(*made.ranks(num_ranks), traffic=tuple(rows))


def test_each_kind_group_and_peer_of_each_rank_has_a_row() -> None:
    shown = traffic(counted(2))
    assert shown.columns == COLUMNS
    size, wire = "3 MiB (3,145,728)", "4 MiB (4,194,304)"
    assert cells(counted(2)) == [
        ["rank 0", "all_reduce", "world", "\u2014", "3", size, wire],
        ["rank 0", "send", "world", "1", "2", "800 B", "800 B"],
        ["rank 1", "all_reduce", "world", "\u2014", "3", size, wire],
    ]
    assert shown.caption.startswith("Counted exactly")


def test_of_many_ranks_those_that_sent_the_same_share_a_row() -> None:
    assert [row[0] for row in cells(counted(64))] == ["ranks 0-63", "rank 0"]


def test_a_record_without_counters_is_counted_by_its_events() -> None:
    program = made.training(world_size=2, steps=3)
    assert cells(program) == [
        [f"rank {rank}", "all_reduce", "world", "\u2014", "3", "3 MiB (3,145,728)",
         "\u2014"]
        for rank in (0, 1)
    ]  # fmt: skip
    assert "no counters" in traffic(program).caption


def test_a_record_without_transfers_has_no_rows() -> None:
    assert traffic(made.program(made.Rank(0))).rows == ()


def test_ranks_are_spelled_in_few_letters() -> None:
    assert spelled([3]) == "rank 3"
    assert spelled([0, 1, 2]) == "ranks 0-2"
    assert spelled([0, 1, 4, 7, 8]) == "ranks 0-1, 4, 7-8"
