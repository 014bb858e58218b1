"""What one can ask of a Program itself."""

from __future__ import annotations

import pytest

from labkit.errors import UsageError
from labkit.record.program import Comm, Event, Program
from tests.record import made


def messages() -> Program:
    """Rank 3 sends to rank 5."""
    source, destination = made.Rank(3), made.Rank(5)
    source.comm("send", 0.0, 1.0, peer=5)
    destination.comm("recv", 0.0, 1.0, peer=3)
    return made.program(source, destination, world_size=8)


def only(events: tuple[Event, ...]) -> Comm:
    (comm,) = events
    assert isinstance(comm, Comm)
    return comm


def test_a_send_and_its_receive_have_the_same_ends() -> None:
    program = messages()
    assert only(program.of(3)).ends == only(program.of(5)).ends == (3, 5)


def test_events_of_a_rank_that_is_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match=r"ranks \(3, 5\); rank 0 was asked for"):
        messages().of(0)
