"""The what-if panel, without a page: settings go out, pictures come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.program import Comm, Header, Program, Work
from labkit.replay.catalog import hardware
from labkit.replay.engine import replay
from labkit.view import whatif
from labkit.view.bundle import PLOTLY
from labkit.view.front_end import FrontEnd
from labkit.view.whatif import Panel, Question, Settings

H100 = hardware("dgx-h100")
START = Settings(
    H100.link_bytes_per_s, H100.latency_s, H100.flops_per_s, H100.ranks_per_node
)
NAMES = list(START._fields)


def recorded(num_ranks: int = 4, num_steps: int = 3) -> Program:
    """Ranks that compute, then add up 64 MiB, again and again."""
    events = tuple(
        tuple(event for step in range(num_steps) for event in one_step(rank, step))
        for rank in range(num_ranks)
    )
    ranks = tuple(range(num_ranks))
    header = Header(world_size=num_ranks, ranks=ranks, source="dry", level="work")
    return Program(header, {"world": ranks}, events)


def one_step(rank: int, step: int) -> Iterator[Work | Comm]:
    yield Work(
        rank,
        0,
        0,
        2 * step,
        "aten.mm",
        1e12,
        1e6,
        1,
        "bfloat16",
        None,
        None,
        None,
        None,
    )
    yield Comm(
        rank, 0, 0, 2 * step + 1, step, "all_reduce", "world", step, None, 0, 0,
        64 << 20, "float32",
    )  # fmt: skip


PROGRAM = recorded()
asked: list[Settings] = []


def retime(settings: Settings) -> Program:
    asked.append(settings)
    return replay(PROGRAM, H100.with_(**settings._asdict()))


def question(**changed: Any) -> Question:
    plain: dict[str, Any] = {
        "retime": retime, "start": START, "node_sizes": (1, 2, 4, 8), "title": "a step",
        "caption": lambda program: f"On {program.header.hardware}.",
    }  # fmt: skip
    return Question(**{**plain, **changed})


@pytest.fixture
def panel() -> Iterator[Panel]:
    asked.clear()
    made = Panel(question())
    yield made
    made.close()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any]]]:
    """What was shown, and in which place."""
    found: list[tuple[int, dict[str, Any]]] = []

    class FakePlace:
        def show(self, data: Any, metadata: Any = None) -> None:
            found.append((id(self), data))

        def show_still(self, still: Any) -> None:
            found.append((id(self), still.bundle()))

    monkeypatch.setattr(whatif, "Place", FakePlace)
    monkeypatch.setattr(whatif, "front_end", lambda: FrontEnd(True))
    return found


def slider(panel: Panel, name: str) -> Any:
    return panel.box.children[NAMES.index(name)]


def test_what_changes_nothing_takes_as_long_as_it_is() -> None:
    same = Panel(question(retime=lambda _: replay(PROGRAM, H100)))
    slider(same, NAMES[0]).value *= 2
    told = same.box.children[-2].value
    same.close()
    assert told.endswith(", as long as it is</div>")
    assert "times" not in told


def test_it_starts_as_it_is(panel: Panel) -> None:
    assert asked == [START]
    assert panel.settings == START
    assert panel.program == replay(PROGRAM, H100)


@pytest.mark.parametrize(
    ("name", "shown_as", "expected"),
    [
        ("link_bytes_per_s", 37.0, 37e9),
        ("latency_s", 39.0, 39e-6),
        ("flops_per_s", 98.94, 98.94e12),
        ("ranks_per_node", 2, 2),
    ],
)
def test_a_slider_alone_changes_its_setting_and_the_picture(
    panel: Panel, name: str, shown_as: float, expected: float
) -> None:
    before = panel.box.children[-1].to_json()
    slider(panel, name).value = shown_as
    assert asked[-1] == pytest.approx(START._replace(**{name: expected}))
    assert panel.program == retime(asked[-1])
    assert panel.program.duration_s > H100_TOOK_S
    assert panel.box.children[-1].to_json() != before
    ratio = panel.program.duration_s / H100_TOOK_S
    assert f"{ratio:.3g} times as long as it is" in panel.box.children[-2].value


H100_TOOK_S = replay(PROGRAM, H100).duration_s


def test_labels_have_units_and_reach_far_both_ways(panel: Panel) -> None:
    labels = [slider(panel, name).description for name in NAMES]
    assert labels == [
        "link bandwidth (GB/s)", "latency (us)", "computing (TFLOP/s)", "ranks a node"
    ]  # fmt: skip
    for name in NAMES[:3]:
        each = slider(panel, name)
        assert each.base**each.max == pytest.approx(100 * each.value)
        assert each.base**each.min == pytest.approx(each.value / 100)


def test_what_is_refused_is_said_and_the_picture_stays(panel: Panel) -> None:
    def refuses(settings: Settings) -> Program:
        raise UsageError("no such <machine>")

    drawn = panel.program
    panel.question = replace(panel.question, retime=refuses)
    slider(panel, "latency_s").value = 50.0
    said = panel.box.children[-2].value
    assert 'role="alert"' in said
    assert "no such &lt;machine&gt;" in said
    assert panel.program is drawn


def test_back_to_the_start(panel: Panel) -> None:
    slider(panel, "latency_s").value = 50.0
    slider(panel, "ranks_per_node").value = 1
    panel.reset()
    assert panel.settings == START
    assert panel.program == replay(PROGRAM, H100)


def test_a_still_picture_stays_above_what_moves(
    shown: list[tuple[int, dict[str, Any]]],
) -> None:
    panel = Panel(question())
    panel.show()
    (first, still), (second, moving) = shown
    assert first != second
    assert {PLOTLY, "image/png", "text/plain"} <= set(still)
    assert "a step: as it is" in still["text/plain"]
    assert "On dgx-h100." in still["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in moving
    panel.close()


def test_keeping_puts_a_still_picture_in_place_and_closes_all(
    shown: list[tuple[int, dict[str, Any]]],
) -> None:
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    panel = Panel(question())
    panel.show()
    slider(panel, "link_bytes_per_s").value = 37.0
    panel.keep()
    assert shown[-1][0] == shown[-2][0]
    kept = shown[-1][1]
    assert {PLOTLY, "image/png", "text/plain"} <= set(kept)
    assert "a step: link bandwidth 37 GB/s, latency 3.9 us" in kept["text/plain"]
    assert "dgx-h100 with links x0.1" in kept["text/plain"]
    assert set(_instances) == before


def test_without_a_page_only_the_still_picture_is_shown(
    shown: list[tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif, "front_end", lambda: FrontEnd(False))
    panel = Panel(question())
    panel.show()
    panel.keep()
    assert len(shown) == 1


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("value", [0, -1.0, nan, inf])
def test_a_start_that_no_slider_can_be_at_is_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{field} is "):
        question(start=START._replace(**{field: value}))


def test_a_start_among_other_node_sizes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"8 is not in \(1, 2\)"):
        question(node_sizes=(1, 2))


def test_a_run_that_takes_no_time_has_a_panel() -> None:
    idle = Program(PROGRAM.header, PROGRAM.groups, tuple(() for _ in PROGRAM.events))
    made = Panel(question(retime=lambda settings: replay(idle, H100)))
    try:
        assert made.program.duration_s == 0
        slider(made, "latency_s").value = 39.0
        assert "times" not in made.box.children[len(NAMES) + 1].value
    finally:
        made.close()
