"""The figures of made-up records, of which the answers are known by hand."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record.measure import Measures, measure
from labkit.record.measure.bandwidth import Bandwidth, factor
from labkit.record.measure.cover import Cover
from labkit.record.program import Clock, Program, Traffic
from tests.record import made
from tests.record.made import Rank

near = pytest.approx


def times(m: Measures, rank: int = 0) -> Any:
    return m.times[rank]


def figure(m: Measures, name: str) -> str:
    (found,) = (f.value for f in m.figures() if f.name == name)
    return found


def test_where_time_went_in_training() -> None:
    m = measure(made.training(world_size=3, steps=4, late=0.5))
    assert m.step_s == near(1.75)
    for rank in (0, 1):
        assert times(m, rank)[1:6] == near((7.0, 4.0, 1.0, 2.0, 0.0), abs=1e-12)
    assert times(m, 2)[1:6] == near((7.0, 6.0, 1.0, 0.0, 0.0), abs=1e-12)
    assert m.exposed_s == near(0.25)
    assert m.late_s == near((0.5 + 0.5 + 0.0) / 3)
    assert m.overlap == 0.0
    assert [(w.rank, w.for_rank, w.seconds) for w in m.waits] == [
        (0, 2, near(2.0)),
        (1, 2, near(2.0)),
    ]


def test_rt_47_a_late_rank_is_no_communication() -> None:
    """Rank 1 sleeps 200 ms, then all reduce 4 bytes: waiting, not transfer."""
    first, second = made.ranks(2)
    first.call("all_reduce", 0.0, 0.2, 0.201, num_bytes=4)
    second.work(0.0, 0.2)
    second.call("all_reduce", 0.2, 0.2, 0.201, num_bytes=4)
    m = measure(made.program(first, second))
    assert times(m, 0).late_s == near(0.2)
    assert times(m, 0).exposed_s == near(0.001)
    assert m.waited_s(0, 1) == near(0.2)
    assert m.waited_s(1, 0) == 0.0
    assert m.bandwidths[0].seconds == near(0.001)


@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (2, 1), (4, 8), (8, 4), (3, 7)])
def test_both_bubbles_of_gpipe_are_the_closed_forms(stages: int, micro: int) -> None:
    m = measure(made.pipeline(stages, micro, 1.0, 2.0))
    assert m.bubble.of_ideal == near((stages - 1) / micro)
    assert m.bubble.of_total == near((stages - 1) / (micro + stages - 1))


def test_the_bubble_counts_the_longest_span_and_not_the_makespan() -> None:
    """Stages that begin late and end late, as in ZB-H2: no bubble in either."""
    made_ranks = made.ranks(2)
    for rank in made_ranks:
        for step in range(3):
            start = step * 4.0 + rank.rank
            with rank.span("step", start, start + 4.0):
                rank.work(start, start + 4.0)
    m = measure(made.program(*made_ranks))
    assert m.bubble.of_total == near(0.0)
    assert m.step_s == near(4.0)


def overlapped(hidden: float, **end: Any) -> Program:
    """Two ranks: a transfer from 1 to 3, compute until 1 + `hidden`, then a wait."""
    both = made.ranks(2)
    for rank in both:
        with rank.span("step", 0.0, 4.0):
            rank.work(0.0, 1.0)
            comm = rank.comm("all_reduce", 1.0, 3.0, 1.0, is_async=True, **end)
            rank.work(1.0, 1.0 + hidden)
            rank.wait(comm, 1.0 + hidden, max(3.0, 1.0 + hidden))
            rank.work(max(3.0, 1.0 + hidden), 4.0)
    return made.program(*both)


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.5, 2.0, 3.0])
def test_overlap_and_exposed_share_the_transfer(hidden: float) -> None:
    m = measure(overlapped(hidden))
    assert m.overlap == near(min(hidden, 2.0) / 2.0)
    assert m.exposed_s == near(max(0.0, 2.0 - hidden))
    assert m.late_s == near(0.0)


def test_an_end_that_only_a_late_wait_tells_hides_nothing_and_is_said() -> None:
    m = measure(overlapped(1.5, end_source="wait"))
    assert m.overlap == near(0.0)
    assert m.exposed_s == near(0.5)
    assert not m.bandwidths
    assert any("only a late wait tells the end" in note for note in m.notes)
    assert any("tell no bandwidth" in note for note in m.notes)


@pytest.mark.parametrize(("unsure_s", "is_known"), [(0.1, True), (0.5, False)])
def test_an_end_that_was_seen_too_late_tells_no_bandwidth_and_is_said(
    unsure_s: float, is_known: bool
) -> None:
    m = measure(overlapped(1.5, end_source="look", end_unsure_s=unsure_s))
    assert m.overlap == near(0.75)
    assert bool(m.bandwidths) == is_known
    assert any("was seen some time after it" in n for n in m.notes) != is_known


def test_waits_inside_cpp_have_no_times_and_that_is_said() -> None:
    (rank,) = made.ranks(1)
    comm = rank.comm("all_reduce", 0.0, 1.0, 0.0)
    rank.wait(comm, None, None, cause="future", ok=True)
    rank.work(0.0, 2.0)
    m = measure(made.program(rank))
    assert m.exposed_s == 0.0
    assert any("1 waits happened inside C++" in note for note in m.notes)


def on_a_gpu(build: Any) -> Program:
    both = made.ranks(2)
    for rank in both:
        build(rank)
    return made.program(*both, device="cuda", source="replayed", hardware="a box")


def test_on_a_gpu_compute_is_stream_0_and_not_the_host() -> None:
    def build(rank: Rank) -> None:
        rank.work(0.0, 2.0)
        rank.work(0.5, 5.0, stream=1, name="copy")
        comm = rank.comm("all_gather", 0.1, 3.0, 2.0)
        rank.wait(comm, 2.0, 3.0, who="stream")
        # The host waits while the stream still computes: that is no standstill.
        rank.wait(comm, 0.1, 3.0)
        rank.work(3.0, 4.0)

    m = measure(on_a_gpu(build))
    assert times(m)[1:6] == near((5.0, 3.0, 1.0, 0.0, 1.0))
    assert any("computed by a model of a box" in note for note in m.notes)


def test_on_a_gpu_a_wait_for_a_mark_is_what_the_other_stream_waits_for() -> None:
    """A prefetch on stream 1: rank 1 comes to it a second later."""

    def build(rank: Rank) -> None:
        rank.work(0.0, 1.0)
        rank.work(0.0, 1.0 + rank.rank, stream=1, name="copy")
        comm = rank.comm("all_gather", 0.0, 3.0, 2.0, stream=1)
        rank.wait(comm, 1.0 + rank.rank, 3.0, who="stream", stream=1)
        mark = rank.mark(stream=1)
        rank.wait(mark, 1.0, 3.0, who="stream", cause="event")
        rank.work(3.0, 4.0)

    m = measure(on_a_gpu(build))
    assert times(m, 0)[1:6] == near((4.0, 2.0, 1.0, 1.0, 0.0))
    assert m.waited_s(0, 1) == near(1.0)
    # Rank 1's stream 1 copied for a second before it waited: nobody was late.
    assert times(m, 1)[1:6] == near((4.0, 2.0, 1.0, 0.0, 1.0))


def test_on_a_gpu_who_came_last_is_told_by_streams_not_by_hosts() -> None:
    """Both hosts issue at once; rank 1's stream is busy for another second."""

    def build(rank: Rank) -> None:
        busy = 1.0 + rank.rank
        rank.work(0.0, busy)
        comm = rank.comm("all_reduce", 0.2 - 0.1 * rank.rank, 2.5, 2.0)
        rank.wait(comm, busy, 2.5, who="stream")

    m = measure(on_a_gpu(build))
    assert m.waited_s(0, 1) == near(1.0)
    assert m.waited_s(1, 0) == 0.0


def test_a_wait_of_another_thread_does_not_stop_compute() -> None:
    (rank,) = made.ranks(1)
    rank.wait(rank.comm("all_reduce", 0.0, 1.0, 0.0, lane=1), 0.0, 1.0, lane=1)
    rank.work(1.0, 2.0)
    m = measure(made.program(rank))
    assert times(m).exposed_s == 0.0
    assert times(m).other_s == near(1.0)


def random_program(seed: int) -> Program:
    """Ranks that compute, issue and wait in any order, also on two streams."""
    rng = random.Random(seed)
    device = rng.choice(["cpu", "cuda"])
    all_ranks = made.ranks(rng.randint(1, 4))
    for rank in all_ranks:
        now = 0.0
        for step in range(3):
            start = now
            index = len(rank.events)
            with rank.span("step", start, None):
                for _ in range(rng.randint(0, 8)):
                    now = _random_event(rng, rank, now)
            rank.events[index] = rank.events[index]._replace(end_s=now)  # type: ignore[call-arg]
            now += rng.choice([0.0, 0.5])
            assert step >= 0
    return made.program(*all_ranks, device=device)


def _random_event(rng: random.Random, rank: Rank, now: float) -> float:
    length = rng.choice([0.0, 0.5, 1.0])
    if rng.random() < 0.5:
        rank.work(now, now + length, stream=rng.choice([0, 0, 1]))
        return now + length
    came = now + rng.choice([0.0, 0.5])
    comm = rank.comm("all_reduce", now, came + length, came)
    later = now + rng.choice([0.0, 0.25])
    who = rng.choice(["host", "stream"])
    rank.wait(comm, later, max(later, came + length), who=who)
    return max(later, came + length)


@pytest.mark.parametrize("seed", range(100))
def test_a_step_is_the_sum_of_its_parts(seed: int) -> None:
    m = measure(random_program(seed))
    for rank in m.times:
        parts = (rank.compute_s, rank.exposed_s, rank.late_s, rank.other_s)
        assert all(part >= 0 for part in (*parts, rank.transfer_s, rank.hidden_s))
        assert sum(parts) == near(rank.total_s, abs=1e-9)
        assert rank.hidden_s <= rank.transfer_s + 1e-9
        assert rank.hidden_s <= rank.compute_s + 1e-9
        waited = sum(w.seconds for w in m.waits if w.rank == rank.rank)
        assert waited == near(rank.late_s, abs=1e-9)


def test_without_spans_the_whole_record_is_measured() -> None:
    (rank,) = made.ranks(1)
    rank.work(1.0, 3.0)
    m = measure(made.program(rank))
    assert m.step_s == 3.0
    assert m.bubble.of_total == near(1 / 3)
    assert "no spans named" in str(m)


def test_the_warm_up_is_left_out() -> None:
    (rank,) = made.ranks(1)
    for start, end in ((0.0, 10.0), (10.0, 11.0), (12.0, 14.0)):
        with rank.span("step", start, end):
            rank.work(start, end)
    m = measure(made.program(rank), skip_steps=1)
    assert m.step_s == near(1.5)
    assert m.steps.lengths_s == {1: near(1.0), 2: near(2.0)}
    assert "2 steps, from 1 s to 2 s" in figure(m, "step time")


def test_a_step_that_is_never_closed_is_left_out_and_said() -> None:
    both = made.ranks(2)
    for rank in both:
        for step in range(2):
            end = None if (step, rank.rank) == (1, 1) else step + 1.0
            with rank.span("step", float(step), end):
                rank.work(float(step), step + 1.0)
    m = measure(made.program(*both))
    assert m.steps.numbers == (0,)
    assert "Step 1 is left out: rank 1 never closed it." in m.notes
    with pytest.raises(
        UsageError, match=r"of 2 steps 1 were closed, and 1 are skipped"
    ):
        measure(made.program(*both), skip_steps=1)


def test_a_rank_without_steps_is_measured_while_the_others_are_in_theirs() -> None:
    first, second = made.ranks(2)
    with first.span("step", 1.0, 3.0):
        first.work(1.0, 3.0)
    second.work(0.0, 2.0)
    m = measure(made.program(first, second))
    assert times(m, 1).total_s == near(2.0)
    assert times(m, 1).compute_s == near(1.0)


# By nccl-tests' sources: all_reduce.cu, all_gather.cu, and so on.
FACTORS = {
    "all_reduce": 2 * 3 / 4, "all_gather": 3 / 4, "reduce_scatter": 3 / 4,
    "all_to_all": 3 / 4, "gather": 3 / 4, "scatter": 3 / 4, "broadcast": 1.0,
    "reduce": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("kind", FACTORS)
def test_bus_bandwidth_is_that_of_nccl_tests(kind: Any) -> None:
    four = made.ranks(4)
    for rank in four:
        came = 0.1 * rank.rank
        rank.call(kind, came, 0.3, 0.5, num_bytes=1_000_000)
    m = measure(made.program(*four))
    (found,) = m.bandwidths
    whole = 4_000_000 if kind in ("all_gather", "gather", "scatter") else 1_000_000
    assert found[:4] == (kind, 4, whole, 1)
    assert found.seconds == near(0.2)
    assert found.algbw_bytes_per_s == near(whole / 0.2)
    assert found.busbw_bytes_per_s == near(whole / 0.2 * FACTORS[kind])


def test_a_message_is_timed_by_its_receiver() -> None:
    first, second = made.ranks(2)
    first.call("send", 0.0, 0.0, 0.1, peer=1, num_bytes=1000)
    second.call("recv", 0.5, 0.5, 1.0, peer=0, num_bytes=1000)
    (found,) = measure(made.program(first, second)).bandwidths
    assert found[:4] == ("send", 2, 1000, 1)
    assert found.seconds == near(0.5)
    assert found.busbw_bytes_per_s == near(2000.0)


def test_the_published_bus_bandwidths_follow_from_size_and_time() -> None:
    """Rows of a printed nccl-tests table: 8 ranks, all_reduce, 1 GiB."""
    row = Bandwidth("all_reduce", 8, 1 << 30, 1, 8.0e-3)
    assert row.algbw_bytes_per_s / 1e9 == near(134.22, abs=0.01)
    assert row.busbw_bytes_per_s / 1e9 == near(134.22 * 1.75, abs=0.02)
    assert [factor("all_reduce", n) for n in (1, 2, 8)] == [0.0, 1.0, 1.75]


def test_transfers_of_which_a_rank_is_missing_tell_no_bandwidth() -> None:
    (rank,) = made.ranks(1)
    rank.call("all_reduce", 0.0, 0.5, 1.0)
    rank.call("barrier", 1.0, 1.0, 1.5, num_bytes=0)
    m = measure(made.program(rank, world_size=2, groups={"world": (0, 1)}))
    assert m.bandwidths == ()
    assert any("1 transfers tell no bandwidth" in note for note in m.notes)
    assert m.waited_s(0, None) == near(0.5)
    assert "cannot be told" in str(m)


def test_mfu_given_and_counted() -> None:
    program = made.training(world_size=2, steps=3, late=0.0)
    given = measure(program, model_flops=2e9, peak_flops_per_s=1e9)
    assert given.utilization is not None
    assert given.utilization.share == near(2e9 / (1.25 * 2 * 1e9))
    assert figure(given, "MFU").startswith("80.0 %")
    counted = measure(program, peak_flops_per_s=1e11)
    assert counted.utilization is not None
    assert counted.utilization.flops == near(2 * 12e9)
    assert figure(counted, "HFU").startswith("9.6 %")
    assert "recomputed ones too" in str(counted)
    assert figure(measure(program), "achieved") == "19.2 GFLOP/s"
    above = measure(program, model_flops=1e12, peak_flops_per_s=1e9)
    assert "above the peak" in figure(above, "MFU")


def test_flops_outside_the_measured_steps_do_not_count() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0, flops=7e9)
    for start in (1.0, 2.0, 3.0):
        with rank.span("step", start, start + 1):
            rank.work(start, start + 1, flops=1e9 if start > 1 else 5e9)
    m = measure(made.program(rank), skip_steps=1)
    assert m.utilization is not None
    assert m.utilization.flops == near(1e9)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"peak_flops_per_s": 0.0}, "peak_flops_per_s is a finite number above 0; got 0"),
     ({"model_flops": -1.0}, "got -1.0"), ({"model_flops": math.nan}, "got nan"),
     ({"peak_flops_per_s": math.inf}, "got inf")],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(more: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        measure(made.training(), **more)


def test_mfu_without_flops_is_refused() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    with pytest.raises(UsageError, match='at level "comm", counts 0'):
        measure(made.program(rank), peak_flops_per_s=1e12)
    assert measure(made.program(rank)).utilization is None


def test_zero_ranks_and_no_times_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 rank; this record has 0"):
        measure(made.program())
    (rank,) = made.ranks(1)
    rank.work(None, None)
    for source in ("dry", "planned"):
        with pytest.raises(UsageError, match=r"run\.replay"):
            measure(made.program(rank, source=source))


def test_a_record_of_nothing_has_no_ratios() -> None:
    m = measure(made.program(*made.ranks(2)))
    assert m.step_s == 0.0
    assert (m.overlap, m.bubble.of_ideal, m.bubble.of_total) == (None, None, None)
    assert "\u2014 of ideal" in str(m)


def test_fewer_than_no_steps_cannot_be_skipped() -> None:
    with pytest.raises(UsageError, match="0 or more are skipped; got -1"):
        measure(made.training(), skip_steps=-1)


def test_skipping_steps_that_are_not_there_is_refused() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    with pytest.raises(UsageError, match="this record has none, so skip_steps=2"):
        measure(made.program(rank), skip_steps=2)


def clocked(apart: float, uncertainty: float, **header: Any) -> Measures:
    """Rank 1 comes `apart` seconds after rank 0, on clocks so unsure."""
    first, second = made.ranks(2)
    first.call("all_reduce", 0.0, apart, apart + 0.01)
    second.work(0.0, apart)
    second.call("all_reduce", apart, apart, apart + 0.01)
    clocks = (Clock(0.0, uncertainty), Clock(3.0, uncertainty))
    return measure(made.program(first, second, clocks=clocks, **header))


def test_differences_below_the_clocks_uncertainty_name_nobody() -> None:
    sure = clocked(0.1, 0.001)
    assert sure.waited_s(0, 1) == near(0.1)
    assert any("clocks agree to 2 ms" in note for note in sure.notes)
    assert "\u00b1" in figure(sure, "waiting for a late rank")
    unsure = clocked(0.1, 0.06)
    assert unsure.waited_s(0, 1) == 0.0
    assert unsure.waited_s(0, None) == near(0.1)
    late = figure(unsure, "waiting for a late rank")
    assert "not above what the clocks can tell" in late
    assert unsure.bandwidths == ()


def test_ranks_of_one_machine_read_one_clock() -> None:
    m = clocked(0.1, 0.06, hosts=("node", "node"))
    assert m.waited_s(0, 1) == near(0.1)
    assert not any("clocks" in note for note in m.notes)
    assert "\u00b1" not in str(m)


def test_dropped_events_are_said() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    m = measure(made.program(rank, dropped=(12,)))
    assert any("Rank 0 lost 12 events" in note for note in m.notes)


def test_a_wait_that_is_still_on_lasts_to_the_end() -> None:
    first, second = made.ranks(2)
    first.wait(first.comm("all_reduce", 0.0, None, None), 0.0, None)
    second.work(0.0, 5.0)
    m = measure(made.program(first, second))
    assert times(m, 0).late_s == near(5.0)
    assert m.waited_s(0, None) == near(5.0)


def test_traffic_is_added_up_by_rank_and_kind() -> None:
    rows = (
        Traffic(0, "send", "world", 1, 2, 100, 100),
        Traffic(0, "send", "0,2", 2, 1, 50, 50),
        Traffic(1, "all_reduce", "world", None, 3, 300, 400),
    )
    m = measure(made.program(*made.ranks(2), traffic=rows))
    assert [tuple(row) for row in m.traffic] == [
        (0, "send", 3, 150, 150),
        (1, "all_reduce", 3, 300, 400),
    ]
    seen = measure(made.training(2, 3)).traffic
    assert tuple(seen[0]) == (0, "all_reduce", 3, 3 << 20, None)


def test_every_figure_says_what_it_is() -> None:
    m = measure(made.training(), peak_flops_per_s=1e12)
    names = [f.name for f in m.figures()]
    assert names == [
        "step time", "exposed communication", "waiting for a late rank", "overlap",
        "bubble", "HFU",
    ]  # fmt: skip
    shown, page = str(m), m._repr_html_()
    for found in (*m.figures(), *m.grids()):
        assert len(found.definition) > 20
        assert found.definition in shown
        assert "idle / ideal and idle / total" in page
    assert repr(m) == shown
    assert all(len(row) == len(grid.head) for grid in m.grids() for row in grid.rows)


def test_a_name_is_shown_and_not_obeyed() -> None:
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0)
    m = measure(made.program(rank, source="replayed", hardware="<script>"))
    assert "<script>" not in m._repr_html_()


def naive(pieces: list[tuple[int, int]]) -> set[int]:
    return {at for start, end in pieces for at in range(start, end)}


def pairs(rng: random.Random) -> Iterator[tuple[int, int]]:
    for _ in range(rng.randint(0, 8)):
        start = rng.randint(0, 30)
        yield start, start + rng.randint(0, 9)


@pytest.mark.parametrize("seed", range(100))
def test_covers_are_sets_of_moments(seed: int) -> None:
    rng = random.Random(seed)
    one, other = list(pairs(rng)), list(pairs(rng))
    a, b = Cover(one), Cover(other)
    for made_of, expected in (
        (a, naive(one)), (a.common(b), naive(one) & naive(other)),
        (a.without(b), naive(one) - naive(other)),
    ):  # fmt: skip
        assert made_of.length == len(expected)
        assert {at for at in range(50) if made_of.holds(at)} == expected
        for before, after in itertools.pairwise(made_of.pieces):
            assert before[1] < after[0]
    assert a.length_within(5, 12) == len(naive(one) & set(range(5, 12)))


def test_a_cpu_record_with_the_times_of_a_gpu_waits_for_work_not_for_issue() -> None:
    """Each rank issued at once; rank 1 computed longer, and rank 0 stood for it."""
    ranks = made.ranks(2)
    for rank, done in zip(ranks, (1.0, 3.0), strict=True):
        with rank.span("step", 0.0, 3.5):
            rank.work(0.0, done)
            number = rank.comm("all_reduce", 1e-3 * (1 - rank.rank), 3.5, 3.0)
            rank.wait(number, done, 3.5)
    m = measure(made.program(*ranks, source="replayed", level="work"))
    assert m.waited_s(0, 1) == near(2.0)
    assert m.waited_s(1, 0) == 0.0
