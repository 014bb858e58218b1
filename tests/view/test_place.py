"""Where a picture goes: under the cell that asked for it, whoever runs by then."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.view import place
from labkit.view.place import Place

TEXT = {"text/plain": "a picture"}


class FakeSession:
    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(
        self, socket: Any, kind: str, content: Any, *, parent: Any, ident: bytes
    ) -> None:
        self.sent.append((socket, kind, content, parent, ident))


class FakePublisher:
    """Publishes as ipykernel's does: for the cell that runs now."""

    pub_socket = "socket"

    def __init__(self) -> None:
        self.session = FakeSession()
        self.parent_header = {"msg_id": "cell 1"}
        self.published: list[dict[str, Any]] = []

    def publish(self, **what: Any) -> None:
        self.published.append({**what, "cell": self.parent_header["msg_id"]})


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> FakePublisher:
    fake = FakePublisher()
    monkeypatch.setattr(place, "_publisher", lambda: fake)
    return fake


def test_what_is_shown_later_takes_the_place_of_the_first(
    publisher: FakePublisher,
) -> None:
    here = Place()
    here.show(TEXT)
    here.show({"text/plain": "another"}, {"image/png": {"width": 3}})
    first, second = publisher.published
    assert (first["data"], first["update"], first["cell"]) == (TEXT, False, "cell 1")
    assert (second["update"], second["metadata"]) == (True, {"image/png": {"width": 3}})
    assert first["transient"] == second["transient"]
    assert first["transient"]["display_id"]


def test_two_places_do_not_touch_each_other(publisher: FakePublisher) -> None:
    Place().show(TEXT)
    Place().show(TEXT)
    one, two = publisher.published
    assert one["transient"] != two["transient"]
    assert not two["update"]


def test_wi_10_it_stays_under_its_cell_while_another_runs(
    publisher: FakePublisher,
) -> None:
    here = Place()
    publisher.parent_header = {"msg_id": "cell 2"}
    here.show(TEXT)
    here.show(TEXT)
    assert publisher.published == []
    (_, first, content, parent, ident), (_, second, *_) = publisher.session.sent
    assert (first, second) == ("display_data", "update_display_data")
    assert parent == {"msg_id": "cell 1"}
    assert (content["data"], ident) == (TEXT, b"display_data")


def test_without_a_notebook_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_publisher", lambda: None)
    Place().show(TEXT)
