"""The diagnosis: no false alarm on thousands of right programs, each fault told."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from labkit import errors
from labkit.record.events import (
    CommEnd,
    CommStart,
    Kind,
    Moment,
    NewGroup,
    Site,
    SpanEnd,
    SpanStart,
    WaitEnd,
    WaitStart,
)
from labkit.record.recorder import Recorder
from labkit.runtime.diagnosis import (
    Differs,
    Fault,
    Finding,
    Ledger,
    State,
    doing_text,
    report,
)
from labkit.runtime.diagnosis.matching import MAX_LETTERS, Matcher
from labkit.runtime.diagnosis.wording import call_text, rank_list
from tests.runtime.simulated import FAULTS, Machine, Truth, Writer

NUM_RIGHT_PROGRAMS = 2000
NUM_CHUNKS = 8
NUM_FAULTY_PROGRAMS = 70

# Random programs.


def run_right(seed: int) -> bool:
    """Run a right program, with every view of it looked at; whether one was soft."""
    rng = random.Random(seed)
    any_source, leaning, unseen = (rng.random() < 0.3 for _ in range(3))
    writer = Writer(rng, any_source=any_source, leaning=leaning, unseen=unseen)
    program = writer.write(rng.randint(2, 12))
    soft: list[Finding] = []

    def look(ledger: Ledger) -> None:
        assert ledger.mismatch() is None, f"seed {seed}"
        finding = ledger.stuck()
        if finding is not None:
            assert finding.soft, f"seed {seed}: false alarm {finding}"
            assert program.may_be_soft(), f"seed {seed}: no buffer, yet {finding}"
            soft.append(finding)

    machine = Machine(program, rng, look)
    assert machine.run() == Truth(set(), False, False), f"seed {seed}: the simulator"
    assert machine.ledger.unfinished() is None, f"seed {seed}"
    assert machine.ledger.stuck() is None, f"seed {seed}"
    assert machine.ledger.settled(), f"seed {seed}"
    return bool(soft)


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_rt_34_right_programs_raise_no_report(chunk: int) -> None:
    seeds = range(chunk, NUM_RIGHT_PROGRAMS, NUM_CHUNKS)
    num_soft = sum(run_right(seed) for seed in seeds)
    assert num_soft < len(seeds) // 20, "soft findings on right programs must be rare"


@pytest.mark.grid
def test_rt_34_ten_thousand_right_programs() -> None:
    for seed in range(100_000, 110_000):
        run_right(seed)


def run_faulty(seed: int, name: str) -> Finding | None:
    """Put one fault into a right program; what is told, None where it did no harm."""
    rng = random.Random(seed)
    program = Writer(rng).write(rng.randint(3, 10))
    rank = rng.randrange(program.world_size)
    faulty = FAULTS[name](program, rank, rng)
    if faulty is None:
        return None
    hard: list[Finding] = []

    def look(ledger: Ledger) -> None:
        finding = ledger.stuck()
        if finding is not None and not finding.soft:
            hard.append(finding)

    machine = Machine(faulty, rng, look)
    truth, ledger = machine.run(), machine.ledger
    for finding in hard:
        is_dangling = finding.kind is Fault.ABSENT and truth.has_leftover
        assert truth.blocked.issuperset(finding.waits_for) or is_dangling, (
            f"seed {seed}"
        )
    told = ledger.mismatch()
    told = told or (ledger.stuck() if truth.blocked else ledger.unfinished())
    assert (told is None) == truth.is_clean(), f"seed {seed}: {truth}, told {told}"
    if told is None:
        return None
    assert rank in told.ranks, f"seed {seed}: {told.ranks} without rank {rank}"
    assert not ledger.settled(), f"seed {seed}"
    text = report(told, ledger.history(), where=where).text
    assert "Try: " in text
    assert len(text.splitlines()) > 2
    return told


CALLS_DIFFER = {
    "other size": Differs.ELEMENTS,
    "other dtype": Differs.DTYPE,
    "other reduction": Differs.OP,
    "other root": Differs.ROOT,
    "other kind": Differs.KIND,
}


@pytest.mark.parametrize("name", FAULTS)
def test_single_fault_is_told_with_its_rank(name: str) -> None:
    findings = [run_faulty(seed, name) for seed in range(NUM_FAULTY_PROGRAMS)]
    told = [finding for finding in findings if finding is not None]
    assert len(told) > NUM_FAULTY_PROGRAMS // 4, "most faults must do harm"
    if name in CALLS_DIFFER:
        assert {f.kind for f in told} == {Fault.MISMATCH}
        assert {f.differs for f in told} == {CALLS_DIFFER[name]}
    if name == "early end":
        assert {f.kind for f in told} == {Fault.ABSENT, Fault.UNFINISHED}
    if name in ("other peer", "other tag"):
        assert Fault.CYCLIC in {f.kind for f in told}


# By hand.


def where(site: Site) -> str:
    """As the notebook renders a line."""
    return f"cell [5], line {site.line}: {site.function}"


class Ranks:
    """A ledger and the recorders that feed it; all ranks make up the world group."""

    def __init__(self, world_size: int, **options: Any) -> None:
        self.ledger = Ledger(world_size, **options)
        self.recorders = [Recorder() for _ in range(world_size)]
        self.ledger.start(range(world_size))
        self.group("world", range(world_size))

    def group(self, uid: str, ranks: Any) -> None:
        """Make a group."""
        for rank in ranks:
            self.ledger.add(rank, [NewGroup(uid, tuple(ranks))])

    def issue(self, rank: int, kind: Kind, line: int = 1, **call: Any) -> CommStart:
        """A call that nobody waits for yet."""
        call = {"group": "world", "shapes": ((4,),), "dtype": "float32", **call}
        code = call.pop("code", kind)
        comm = self.recorders[rank].comm(kind, site=Site("5", line, code), **call)
        self.ledger.add(rank, self.recorders[rank].drain())
        return comm

    def block(self, rank: int, kind: Kind, line: int = 1, **call: Any) -> CommStart:
        """A call that the rank stands still for."""
        comm = self.issue(rank, kind, line, **call)
        self.ledger.add(rank, [WaitStart(comm.id, 0, 1.0)])
        return comm

    def make(self, rank: int, kind: Kind, line: int = 1, **call: Any) -> CommStart:
        """A call that has ended."""
        comm = self.block(rank, kind, line, **call)
        self.ledger.add(rank, [WaitEnd(comm.id, 2.0, True)])
        return comm

    def text(self, finding: Finding | None, width: int = 88) -> str:
        """The finding in words."""
        assert finding is not None
        history = self.ledger.history()
        return report(finding, history, where=where, width=width).text

    def details(self, finding: Finding | None) -> str:
        """The last calls, in words."""
        assert finding is not None
        return report(finding, self.ledger.history(), where=where).details


def test_rt_31_other_number_of_elements_gives_both_shapes_and_lines() -> None:
    ranks = Ranks(4)
    ranks.block(0, "all_reduce", 3, shapes=((200,),), op="sum", code="all_reduce(x)")
    assert ranks.ledger.mismatch() is None
    for rank in (1, 2, 3):
        ranks.block(
            rank, "all_reduce", 4, shapes=((100,),), op="sum", code="all_reduce(y)"
        )
    finding = ranks.ledger.mismatch()
    assert finding is not None
    assert (finding.kind, finding.differs) == (Fault.MISMATCH, Differs.ELEMENTS)
    assert finding.error is errors.MismatchError
    assert not finding.soft
    assert ranks.text(finding) == (
        "Call #1 on the world group: every rank must hand over the same number of"
        " elements.\n"
        "  rank 0 called all_reduce(float32[200]) at cell [5], line 3: all_reduce(x)\n"
        "  ranks 1-3 called all_reduce(float32[100]) at"
        " cell [5], line 4: all_reduce(y)\n"
        "Try: print x.shape on every rank before the call; pad or trim to a common"
        " size, or look\n"
        "    for a call that one rank alone makes"
    )


def test_rt_32_other_order_names_call_ranks_and_lines() -> None:
    ranks = Ranks(2)
    ranks.block(0, "all_reduce", 3, op="sum")
    ranks.block(1, "broadcast", 6, peer=0)
    finding = ranks.ledger.mismatch()
    assert finding is not None
    assert finding.differs is Differs.KIND
    text = ranks.text(finding, width=70)
    assert "Call #1 on the world group: every rank must make the same call." in text
    assert "rank 0 called all_reduce(float32[4]) at cell [5], line 3" in text
    assert (
        "rank 1 called broadcast(float32[4], root rank 0) at\n"
        "      cell [5], line 6: broadcast"
    ) in text, "a line of code is not broken"


def test_rt_33_details_show_both_sides_with_their_last_ten_calls() -> None:
    ranks = Ranks(2)
    for line in range(1, 15):
        for rank in range(2):
            ranks.make(rank, "all_reduce", line, op="sum")
    ranks.block(0, "barrier", 20, shapes=(), dtype="")
    ranks.block(1, "all_gather", 21)
    details = ranks.details(ranks.ledger.mismatch())
    assert details.count("rank 0: last calls") == details.count("rank 1: last") == 1
    assert details.count("all_reduce(float32[4])") == 18
    assert "call #15 on the world group: barrier() at cell [5], line 20" in details
    assert "line 5: " not in details
    assert "line 6: " in details


def test_rt_35_extra_metric_of_one_rank_is_told_by_its_line() -> None:
    ranks = Ranks(3)
    for rank in range(3):
        ranks.make(rank, "all_reduce", 2, op="sum")
    ranks.issue(1, "all_reduce", 9, op="sum", shapes=((),), code="log(accuracy)")
    for rank in (0, 2):
        ranks.block(rank, "all_reduce", 2, op="sum")
    text = ranks.text(ranks.ledger.mismatch())
    assert "rank 1 called all_reduce(float32[]) at cell [5], line 9: log(accu" in text


def test_rt_35_extra_metric_that_fits_in_is_told_at_the_end() -> None:
    ranks = Ranks(3)
    ranks.make(1, "all_reduce", 9, op="sum", code="log(accuracy)")
    for rank in (0, 2):
        ranks.make(rank, "all_reduce", 2, op="sum")
    ranks.block(1, "all_reduce", 2, op="sum")
    ranks.ledger.finish(0)
    ranks.ledger.finish(2)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.absent) == (Fault.ABSENT, (0, 2))
    text = ranks.text(finding, width=200)
    assert "ranks 0, 2 have returned after 1 call on the world group" in text
    assert (
        "among the last calls, only rank 1 made all_reduce(float32[4]) at "
        "cell [5], line 9: log(accuracy)"
    ) in text


def test_rt_37_collective_called_by_one_rank_only() -> None:
    ranks = Ranks(3)
    ranks.block(0, "broadcast", 7, peer=0, shapes=((10,),))
    finding = ranks.ledger.stuck()
    assert finding is None, "the others may still come"
    ranks.ledger.finish(1)
    ranks.ledger.finish(2)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.soft, "a root may have handed its part to a buffer"
    assert finding.kind is Fault.ABSENT
    assert "ranks 1, 2 have returned after no calls" in ranks.text(finding)


def test_rt_38_rank_that_raised_is_the_headline_elsewhere() -> None:
    ranks = Ranks(2)
    ranks.block(0, "all_reduce", op="sum")
    ranks.ledger.fail(1)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.error is errors.AbsentRankError
    assert finding.failed == (1,)
    assert "rank 1 has raised: that error comes first" in ranks.text(finding)


def test_rank_that_was_not_asked_to_run_is_absent_at_once() -> None:
    ranks = Ranks(3)
    ranks.ledger.start([0, 1])
    for rank in (0, 1):
        ranks.block(rank, "barrier", shapes=(), dtype="")
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.states[2] is State.IDLE
    assert finding.calls[2] is None
    assert finding.waits_for == {0: (2,), 1: (2,)}
    assert not finding.soft
    text = ranks.text(finding)
    assert "rank 2 was not asked to run" in text
    assert "run the function on rank 2 as well" in text


def test_absence_is_seen_where_nobody_is_seen_to_wait() -> None:
    ranks = Ranks(4)
    for rank in (0, 2, 3):
        ranks.issue(rank, "all_reduce", 12, op="sum", code="loss.backward()")
    assert ranks.ledger.stuck() is None
    ranks.ledger.finish(1)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.soft) == (Fault.ABSENT, False)
    assert finding.absent == (1,)
    assert "ranks 0, 2, 3 wait in all_reduce" in ranks.text(finding)


@pytest.mark.parametrize(("kind", "hint"), [
    ("send", "start one side's receive first"),
    ("recv", "let one rank send before it receives"),
])  # fmt: skip
def test_two_ranks_in_a_circle(kind: Kind, hint: str) -> None:
    ranks = Ranks(2, rendezvous=True)
    ranks.block(0, kind, 3, peer=1)
    assert ranks.ledger.stuck() is None
    ranks.block(1, kind, 3, peer=0)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.ranks) == (Fault.CYCLIC, (0, 1))
    assert finding.error is errors.CyclicWaitError
    assert not finding.soft
    text = ranks.text(finding, width=200)
    assert "circle: 0 for 1, 1 for 0." in text
    to = "to" if kind == "send" else "from"
    assert (
        f"rank 0 waits in {kind}(float32[4], {to} rank 1) at cell [5], line 3" in text
    )
    assert hint in text


def test_buffered_sends_in_a_circle_are_soft() -> None:
    ranks = Ranks(2)
    first = ranks.block(0, "send", peer=1)
    ranks.block(1, "send", peer=0)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.soft
    ranks.ledger.add(0, [WaitEnd(first.id, 2.0, True)])
    assert ranks.ledger.stuck() is None


def test_large_ring_is_folded_into_one_line() -> None:
    ranks = Ranks(12)
    for rank in range(12):
        ranks.block(rank, "recv", 3, peer=(rank - 1) % 12)
    text = ranks.text(ranks.ledger.stuck(), width=200)
    assert "0 for 11, 11 for 10," in text
    assert "... (12 ranks), 1 for 0" in text
    assert "ranks 0-11 wait in recv(float32[4]) at cell [5], line 3: recv" in text
    assert len(text.splitlines()) == 3


def test_two_groups_in_different_orders() -> None:
    ranks = Ranks(3)
    ranks.group("a", (0, 1))
    ranks.group("b", (0, 1, 2))
    ranks.block(0, "all_reduce", 2, group="a", op="sum")
    ranks.block(1, "all_reduce", 4, group="b", op="sum")
    ranks.block(2, "all_reduce", 4, group="b", op="sum")
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.ranks) == (Fault.GROUP_ORDER, (0, 1))
    assert finding.error is errors.GroupOrderError
    assert finding.waits_for == {0: (1,), 1: (0,), 2: (0,)}
    text = ranks.text(finding, width=200)
    assert "call #1 on group {0, 1}, at cell [5], line 2" in text
    assert "call #1 on group {0, 1, 2} (b), at cell [5], line 4" in text
    assert "rank 2 also waits in" in text
    assert "same order" in text


def test_collective_against_receive_is_an_order_fault() -> None:
    ranks = Ranks(3)
    ranks.block(0, "all_reduce", op="sum")
    ranks.block(1, "recv", peer=2)
    assert ranks.ledger.stuck() is None
    ranks.block(2, "all_reduce", op="sum")
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.ranks) == (Fault.GROUP_ORDER, (1, 2))


def test_wrong_tag_shows_the_send_that_nobody_receives() -> None:
    ranks = Ranks(2)
    ranks.make(0, "send", 7, peer=1, tag=2)
    ranks.block(1, "recv", 8, peer=0, tag=3)
    ranks.ledger.finish(0)
    finding = ranks.ledger.stuck()
    text = ranks.text(finding, width=200)
    assert "rank 1 waits in recv(float32[4], from rank 0, tag 3)" in text
    assert "nobody answers rank 0's send(float32[4], to rank 1, tag 2) at" in text


def test_nccl_matches_messages_whatever_their_tag() -> None:
    ranks = Ranks(2, ignore_tags=True)
    ranks.make(0, "send", peer=1, tag=2)
    ranks.make(1, "recv", peer=0, tag=3)
    assert ranks.ledger.settled()
    ranks.issue(0, "send", peer=1, tag=2, shapes=((5,),))
    ranks.issue(1, "recv", peer=0, tag=4)
    finding = ranks.ledger.mismatch()
    assert finding is not None
    assert finding.differs is Differs.ELEMENTS
    assert "A send and its receive must agree in number of elements." in ranks.text(
        finding
    )


def test_all_to_all_counts_must_fit_pair_by_pair() -> None:
    ranks = Ranks(3)
    for rank, sends, expects in (
        (0, (1, 2, 3), (1, 1, 1)), (1, (1, 1, 9), (2, 1, 1)), (2, (1, 1, 1), (3, 1, 1)),
    ):  # fmt: skip
        ranks.issue(
            rank, "all_to_all", shapes=((sum(sends),),), send_splits=sends,
            recv_splits=expects,
        )  # fmt: skip
    finding = ranks.ledger.mismatch()
    assert finding is not None
    assert finding.differs is Differs.SPLITS
    assert "rank 1 called all_to_all(float32[11], sends [1, 1, 9]" in ranks.text(
        finding
    )


def test_uneven_all_gather_is_right_where_each_expects_it() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.issue(rank, "all_gather", shapes=((3 + rank,),), recv_splits=(3, 4))
    assert ranks.ledger.mismatch() is None
    for rank in range(2):
        ranks.issue(rank, "all_gather", shapes=((3 + rank,),), recv_splits=(3, 3))
    assert ranks.ledger.mismatch() is not None


def test_shapes_may_differ_where_the_elements_agree() -> None:
    ranks = Ranks(2)
    ranks.issue(0, "all_reduce", op="sum", shapes=((2, 3),))
    ranks.issue(1, "all_reduce", op="sum", shapes=((6,),))
    assert ranks.ledger.mismatch() is None
    assert ranks.ledger.settled()
    ranks.issue(0, "send", peer=1, shapes=((2, 3),))
    ranks.issue(1, "recv", peer=0, shapes=((6,),))
    assert ranks.ledger.mismatch() is None
    ranks.issue(0, "all_reduce", op="sum", shapes=((2,), (4,)))
    ranks.issue(1, "all_reduce", op="sum", shapes=((3,), (3,)))
    assert ranks.ledger.mismatch() is not None


def test_earliest_mismatch_of_a_group_is_told() -> None:
    ranks = Ranks(3)
    for size in (1, 2, 3):
        ranks.issue(0, "all_reduce", op="sum", shapes=((size,),))
    for size in (1, 2, 9):
        ranks.issue(1, "all_reduce", op="sum", shapes=((size,),))
    first = ranks.ledger.mismatch()
    assert first is not None
    assert "Call #3" in ranks.text(first)
    ranks.issue(2, "all_reduce", op="sum", shapes=((8,),))
    assert "Call #1" in ranks.text(ranks.ledger.mismatch())


def test_new_group_must_ask_for_the_same_ranks() -> None:
    ranks = Ranks(2)
    ranks.issue(0, "new_group", shapes=((0, 1),), dtype="")
    ranks.issue(1, "new_group", shapes=((0,),), dtype="")
    finding = ranks.ledger.mismatch()
    assert finding is not None
    assert finding.differs is Differs.RANKS
    assert "rank 0 called new_group([0, 1])" in ranks.text(finding)


def test_groups_of_one_name_with_other_members_are_two_groups() -> None:
    ranks = Ranks(4)
    ranks.group("half", (0, 1))
    ranks.group("half", (2, 3))
    for rank, kind in enumerate(("barrier", "barrier", "all_gather", "all_gather")):
        ranks.make(rank, kind, group="half")  # type: ignore[arg-type]
    assert ranks.ledger.mismatch() is None
    assert ranks.ledger.settled()


# Receives from any source.


def test_receive_from_any_source_waits_while_somebody_may_send() -> None:
    ranks = Ranks(3)
    ranks.block(0, "recv", peer=None)
    ranks.ledger.finish(1)
    assert ranks.ledger.stuck() is None
    ranks.ledger.finish(2)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.kind, finding.soft) == (Fault.ABSENT, False)
    assert "from any rank" in ranks.text(finding)


def test_all_receiving_from_any_source_is_a_circle() -> None:
    ranks = Ranks(3)
    for rank in range(3):
        ranks.block(rank, "recv", peer=None)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.kind is Fault.CYCLIC


def test_send_beyond_what_is_received_from_any_source_is_told() -> None:
    ranks = Ranks(4, rendezvous=True)
    sends = [ranks.block(rank, "send", peer=0) for rank in (1, 2, 3)]
    for _ in range(2):
        ranks.make(0, "recv", peer=None)
    ranks.ledger.finish(0)
    assert ranks.ledger.stuck() is None, "it is not known yet which two were received"
    for rank in (1, 3):
        ranks.ledger.add(rank, [WaitEnd(sends[rank - 1].id, 3.0, True)])
        ranks.ledger.finish(rank)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.ranks == (0, 2)


def test_message_left_over_from_any_source_is_told_at_the_end() -> None:
    ranks = Ranks(3)
    for rank in (1, 2):
        ranks.make(rank, "send", peer=0)
    ranks.make(0, "recv", peer=None)
    assert not ranks.ledger.settled()
    finding = ranks.ledger.unfinished()
    assert finding is not None
    assert finding.kind is Fault.UNFINISHED
    ranks.make(0, "recv", peer=None)
    assert ranks.ledger.unfinished() is None
    assert ranks.ledger.settled()


def test_what_waited_before_the_first_receive_from_any_source_still_counts() -> None:
    ranks = Ranks(3)
    ranks.issue(1, "send", peer=0)
    ranks.block(0, "recv", peer=2)
    ranks.issue(0, "recv", peer=None)
    assert ranks.ledger.stuck() is None
    ranks.ledger.finish(2)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.absent == (2,)


def test_receive_that_had_ended_before_is_counted_as_such() -> None:
    ranks = Ranks(3)
    ranks.make(0, "recv", peer=2)
    ranks.issue(0, "recv", peer=None)
    ranks.block(0, "recv", peer=2)
    ranks.issue(1, "send", peer=0)
    ranks.issue(2, "send", peer=0)
    assert ranks.ledger.stuck() is None
    ranks.ledger.finish(2)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.absent, finding.soft) == ((2,), False)


def test_right_number_of_messages_from_the_wrong_rank_is_told() -> None:
    ranks = Ranks(3)
    for _ in range(2):
        ranks.make(1, "send", peer=0)
    ranks.make(0, "recv", peer=None)
    ranks.issue(0, "recv", peer=2)
    finding = ranks.ledger.unfinished()
    assert finding is not None
    assert not ranks.ledger.settled()


# At the end, and over several runs.


def test_call_of_one_rank_only_is_told_once_all_have_returned() -> None:
    ranks = Ranks(3)
    ranks.make(0, "broadcast", 5, peer=0)
    for rank in range(3):
        ranks.ledger.finish(rank)
    finding = ranks.ledger.unfinished()
    assert finding is not None
    assert finding.error is errors.AbsentRankError
    assert finding.absent == (1, 2)
    assert not ranks.ledger.settled()
    assert "ranks 1, 2 have returned after no calls" in ranks.text(finding)


def test_send_that_nobody_received_is_told_once_all_have_returned() -> None:
    ranks = Ranks(2)
    ranks.make(0, "send", 5, peer=1)
    finding = ranks.ledger.unfinished()
    assert finding is not None
    assert finding.ranks == (0, 1)
    assert "let rank 1 receive it" in ranks.text(finding)


def test_send_to_a_rank_that_has_returned_is_soft_while_nobody_waits() -> None:
    ranks = Ranks(2)
    ranks.issue(0, "send", 5, peer=1)
    ranks.ledger.finish(1)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert (finding.absent, finding.soft) == ((1,), True)


def test_earliest_of_several_uneven_groups_is_told() -> None:
    ranks = Ranks(2)
    for uid in ("a", "b", "c"):
        ranks.group(uid, (0, 1))
    for uid in ("b", "a", "c"):
        ranks.make(0, "broadcast", group=uid, peer=0)
    finding = ranks.ledger.unfinished()
    assert finding is not None
    call = finding.calls[0]
    assert call is not None
    assert call.group == "b"


def test_calls_are_numbered_from_the_start_of_the_run() -> None:
    ranks = Ranks(2)
    for _ in range(3):
        for rank in range(2):
            ranks.make(rank, "all_reduce", op="sum")
    assert ranks.ledger.settled()
    ranks.ledger.start(range(2))
    assert ranks.ledger.last_calls(0) == []
    ranks.block(0, "barrier")
    ranks.ledger.finish(1)
    text = ranks.text(ranks.ledger.stuck())
    assert "Call #1 on the world group" in text
    assert "rank 1 has returned after no calls on the world group" in text


def test_ranks_are_not_kept_after_a_wait_that_raised() -> None:
    ranks = Ranks(2)
    calls = [ranks.block(rank, "barrier") for rank in range(2)]
    assert not ranks.ledger.settled(), "both still stand in it"
    ranks.ledger.add(0, [WaitEnd(calls[0].id, 2.0, True)])
    ranks.ledger.add(1, [WaitEnd(calls[1].id, 2.0, False)])
    assert not ranks.ledger.settled()


def test_matched_transfers_that_nobody_waited_for_are_settled() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.issue(rank, "all_reduce", op="sum")
    assert ranks.ledger.settled()
    assert ranks.ledger.unfinished() is None


# What is not known, and what is forgotten.


def test_lost_events_make_it_silent() -> None:
    ranks = Ranks(2)
    ranks.recorders[1].comm("barrier", "world")
    ranks.recorders[1].drain()
    ranks.block(0, "barrier")
    ranks.ledger.finish(1)
    assert ranks.ledger.stuck() is not None, "nothing tells yet that one was lost"
    ranks.block(1, "all_gather")
    assert ranks.ledger.mismatch() is None
    assert ranks.ledger.stuck() is None
    assert ranks.ledger.unfinished() is None
    assert not ranks.ledger.settled()


def test_numbers_that_threads_swapped_are_not_taken_for_lost() -> None:
    ranks = Ranks(1)
    recorder = ranks.recorders[0]
    first, second = (recorder.comm("barrier", "world") for _ in range(2))
    ranks.ledger.add(0, [second])
    assert not ranks.ledger.settled()
    ranks.ledger.add(0, [first])
    assert ranks.ledger.settled()


def test_free_thread_makes_a_stuck_rank_soft() -> None:
    ranks = Ranks(2)
    ranks.ledger.add(
        0, [ranks.recorders[0].comm("send", "world", peer=1)._replace(lane=1)]
    )
    ranks.recorders[0].drain()
    ranks.make(1, "recv", peer=0, shapes=(), dtype="")
    ranks.block(0, "recv", peer=1)
    ranks.block(1, "recv", peer=0)
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert finding.soft
    ranks.ledger.start(range(2))
    finding = ranks.ledger.stuck()
    assert finding is not None
    assert not finding.soft


def test_wait_within_a_wait_counts_as_the_inner_one() -> None:
    ranks = Ranks(2)
    outer = ranks.block(0, "new_group", shapes=((0, 1),), dtype="")
    inner = ranks.block(0, "barrier")
    assert ranks.ledger.doing(0).call == inner
    ranks.ledger.add(0, [WaitEnd(inner.id, 2.0, True)])
    assert ranks.ledger.doing(0).call == outer
    ranks.ledger.add(0, [WaitEnd(outer.id, 2.0, True)])
    assert ranks.ledger.doing(0).call is None


def test_group_that_was_never_announced_raises_no_alarm() -> None:
    ranks = Ranks(2)
    ranks.block(0, "barrier", group="unknown")
    ranks.ledger.finish(1)
    assert ranks.ledger.stuck() is None
    assert ranks.ledger.doing(0).since_s == 1.0


def test_spans_and_marks_are_passed_over() -> None:
    ranks = Ranks(1)
    events = [SpanStart("step", 0, 0.0), Moment("spoke", 0, 0.5), SpanEnd(0, 1.0)]
    ranks.ledger.add(0, events)
    assert ranks.ledger.settled()


def matcher_of(ledger: Ledger) -> Matcher:
    """The part of a ledger that could grow."""
    return ledger._matcher  # pyright: ignore[reportPrivateUsage]


def test_memory_stays_bounded_over_long_runs() -> None:
    ranks = Ranks(2)
    for step in range(6000):
        for rank in range(2):
            ranks.issue(rank, "all_reduce", op="sum")
        ranks.issue(0, "send", peer=1, tag=step)
        ranks.issue(1, "recv", peer=0, tag=step)
        ranks.issue(1, "send", peer=0, tag=7)
        ranks.issue(0, "recv", peer=None, tag=7)
    matcher = matcher_of(ranks.ledger)
    assert ranks.ledger.settled()
    assert all(len(pending) <= MAX_LETTERS for pending in matcher.pending)
    assert not any(group.rounds for group in matcher.groups.values())
    assert list(matcher.unmet()) == []
    assert [len(heard.live) for heard in ranks.ledger._ranks] == [4096, 4096]
    assert len(ranks.ledger.last_calls(0, 100)) == 10
    assert len(ranks.ledger.last_calls(0, 3)) == 3


# What ranks do, in words.


def test_doing_says_where_each_rank_stands() -> None:
    ranks = Ranks(4)
    ranks.ledger.start([0, 1, 2])
    call = ranks.block(0, "all_reduce", 3, op="max")
    ranks.ledger.finish(1)
    texts = [doing_text(r, ranks.ledger.doing(r), where=where) for r in range(4)]
    assert texts == [
        "rank 0 waits in all_reduce(float32[4], op max), call #1 on the world group, "
        "at cell [5], line 3: all_reduce, for ranks 1-3",
        "rank 1 has returned",
        "rank 2 is computing",
        "rank 3 was not asked to run",
    ]
    assert ranks.ledger.doing(0).since_s == 1.0
    ranks.ledger.add(0, [CommEnd(call.id, 2.0), WaitEnd(call.id, 2.0, True)])
    assert ranks.ledger.doing(0).call is None
    ranks.ledger.fail(2)
    assert doing_text(2, ranks.ledger.doing(2), where=where) == "rank 2 has raised"


def test_wait_for_a_matched_transfer_still_names_it() -> None:
    ranks = Ranks(2)
    call = ranks.block(0, "recv", peer=1)
    for tag in range(1, 40):
        ranks.issue(0, "recv", peer=1, tag=tag)
    ranks.issue(1, "send", peer=0)
    assert ranks.ledger.doing(0).call == call
    assert ranks.ledger.doing(0).waits_for == ()


@pytest.mark.parametrize(("ranks", "text"), [
    ([3], "rank 3"), ([1, 0], "ranks 0, 1"), ([7, 0, 2, 3, 4], "ranks 0, 2-4, 7"),
])  # fmt: skip
def test_rank_list(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text


def test_call_text_counts_many_tensors() -> None:
    shapes = tuple((n,) for n in range(1, 6))
    comm = Recorder().comm(
        "all_reduce", "world", shapes=shapes, dtype="int64", op="sum"
    )
    assert call_text(comm) == "all_reduce(int64[1], int64[2], int64[3], ... 5 tensors)"


def test_finding_without_a_line_is_told_all_the_same() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        comm = ranks.recorders[rank].comm("recv", "world", peer=1 - rank, dtype="int64")
        ranks.ledger.add(
            rank, [*ranks.recorders[rank].drain(), WaitStart(comm.id, 0, 0)]
        )
    assert "at an unknown line" in ranks.text(ranks.ledger.stuck(), width=200)


def test_kinds_of_faults_cover_every_kind_of_error() -> None:
    counts = Counter(
        finding.kind
        for name in ("dropped call", "extra call")
        for seed in range(40)
        if (finding := run_faulty(seed, name)) is not None
    )
    assert set(counts) >= {
        Fault.MISMATCH, Fault.ABSENT, Fault.CYCLIC, Fault.GROUP_ORDER, Fault.UNFINISHED,
    }  # fmt: skip
