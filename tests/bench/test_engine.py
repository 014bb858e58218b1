"""The programs of `labkit bench engine`: as large as it says, and really sharing."""

from __future__ import annotations

import pytest

from labkit.bench import engine
from labkit.record.program import Comm
from labkit.replay.engine import replay
from labkit.replay.links import Links
from labkit.replay.transfers import Transfer


def test_every_rank_is_in_four_groups_and_transfers_on_each() -> None:
    made = engine.program(10_000)
    num_events = sum(map(len, made.events))
    assert num_events == pytest.approx(10_000, rel=0.05)
    for rank in made.header.ranks:
        used = {event.group for event in made.of(rank) if isinstance(event, Comm)}
        assert used == {name for name, ranks in made.groups.items() if rank in ranks}
        assert len(used) == 4


def test_transfers_share_links_only_where_they_should(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most begin to move on a link on which another already moves."""
    movers: list[int] = []
    add = Links.add

    def counted(links: Links, transfer: Transfer, now_s: float) -> None:
        add(links, transfer, now_s)
        movers.append(max(len(links.on(link)) for link, _ in transfer.links))

    monkeypatch.setattr(Links, "add", counted)
    made = engine.program(10_000)
    replay(made, engine.SHARED)
    assert sum(count > 1 for count in movers) > len(movers) / 2 > 0
    movers.clear()
    replay(made, engine.ALONE)
    assert movers == []


def test_both_cases_are_timed() -> None:
    cases = ((3400, engine.SHARED, "soon"), (3400, engine.ALONE, "sooner"))
    shared, alone = engine.measure(cases)
    assert "3,264 events, 64 ranks" in shared.name
    assert "shared links (soon)" in shared.name
    assert "links of their own (sooner)" in alone.name
    assert min(shared.ours, alone.ours) > 0
