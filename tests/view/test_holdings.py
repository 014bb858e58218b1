"""The table of who has what."""

from __future__ import annotations

import pytest

from labkit.errors import UsageError
from labkit.record.program import Program
from labkit.view.holdings import holdings
from tests.record import made

KIB = 1024


def record(num_ranks: int = 2, extra: frozenset[int] = frozenset()) -> Program:
    """Parameters on every rank; gradients in backward; buffers on `extra` ranks."""
    ranks = made.ranks(num_ranks)
    for rank in ranks:
        with rank.span("train()", 0.0, 5.0):
            with rank.span("step", 0.0, 4.0):
                rank.alloc(0, 4 * KIB, "parameters", 0.0)
                with rank.span("backward", 1.0, 2.0):
                    rank.alloc(1, 2 * KIB, "gradients", 1.0)
                rank.free(1, 2 * KIB, "gradients", 3.0)
            if rank.rank in extra:
                with rank.span("extra", 4.0, 5.0):
                    rank.alloc(2, KIB, "buffers", 4.0)
    return made.program(*ranks, level="work")


def lines(text: str) -> list[list[str]]:
    """The table's cells, without the rule under its head."""
    head, _, *rows, _ = text.splitlines()
    return [[cell.strip() for cell in row.split("  ") if cell] for row in (head, *rows)]


def test_each_rank_has_a_row_and_each_kind_that_occurs_a_column() -> None:
    shown = holdings(record(2, frozenset({1})))
    assert lines(str(shown)) == [
        ["holder", "parameters", "buffers", "total"],
        ["rank 0", "4 KiB", "\u2014", "4 KiB"],
        ["rank 1", "4 KiB", "1 KiB", "5 KiB"],
    ]
    assert shown.caption == "Bytes of the tensors' storages, at the end of the record."


def test_after_a_span_and_in_a_step() -> None:
    shown = holdings(record(), after="backward", step=0)
    assert lines(str(shown))[1] == ["rank 0", "4 KiB", "2 KiB", "6 KiB"]
    assert shown.caption.endswith('after each rank\'s last "backward" in step 0.')


def test_a_rank_that_never_had_the_span_has_dashes() -> None:
    shown = holdings(record(2, frozenset({1})), after="extra")
    assert lines(str(shown))[1] == ["rank 0", "\u2014", "\u2014", "\u2014"]


def test_of_many_ranks_those_that_hold_the_same_share_a_row() -> None:
    shown = holdings(record(64, frozenset({3, 10, 11, 12})))
    assert [row[0] for row in lines(str(shown))[1:]] == [
        "ranks 0-2, 4-9, 13-63", "ranks 3, 10-12",
    ]  # fmt: skip
    one = holdings(record(9, frozenset({8})))
    assert [row[0] for row in lines(str(one))[1:]] == ["ranks 0-7", "rank 8"]


def test_it_shows_itself_in_a_notebook() -> None:
    shown = holdings(record(), after="backward")._repr_html_()
    assert "<table" in shown
    assert "&quot;backward&quot;" in shown
    assert "2 KiB" in shown


def test_a_record_that_does_not_tell_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r'record="work"'):
        holdings(made.training())
    with pytest.raises(UsageError, match=r"named 'fwd'.*backward, step, train"):
        holdings(record(), after="fwd")


def test_ranks_that_hold_nothing_have_a_total_of_nothing() -> None:
    shown = holdings(made.program(made.Rank(0), level="work"))
    assert lines(str(shown)) == [["holder", "total"], ["rank 0", "0 B"]]
