"""verify judges records alone, so its tests write records by hand, as small scripts."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import verify
from labkit.checks.verify import Place, Record
from labkit.record.recorder import Recorder

WORLD = "world"


def record(*scripts: str) -> Record:
    """A record from one script a rank: words as in `send1 isend1=a wait=a speak`.

    `send1` and `recv0` issue and wait; `isend1=a` and `irecv0=a` only issue, `wait=a`
    waits; `recv?` receives from any; `bcast0`, `barrier`, `gather0` are collectives.
    """
    return [_events(script) for script in scripts]


def _events(script: str) -> list[object]:
    recorder, open_ = Recorder(), {}
    for word in script.split():
        name, _, label = word.partition("=")
        if name == "wait":
            with recorder.waiting(open_.pop(label)):
                pass
        elif name == "speak":
            recorder.mark("spoke")
        else:
            comm_id = _issue(recorder, name.removeprefix("i"))
            if name.startswith("i"):
                open_[label] = comm_id
            else:
                with recorder.waiting(comm_id):
                    pass
    return recorder.drain()


_KINDS = {
    "send": "send",
    "recv": "recv",
    "bcast": "broadcast",
    "gather": "gather",
    "barrier": "barrier",
}


def _issue(recorder: Recorder, name: str) -> int:
    word = name.rstrip("0123456789?")
    peer = name.removeprefix(word)
    return recorder.comm(
        _KINDS[word],
        WORLD,
        peer=int(peer) if peer.isdigit() else None,
        payload_bytes=4,
    ).id


def before(events: Record, first: int, then: int) -> bool:
    """Whether rank `first` spoke before rank `then`, by messages."""
    return verify.happened_before(
        events,
        verify.find_mark(events, first, "spoke"),
        verify.find_mark(events, then, "spoke"),
    )


def test_a_chain_of_messages_orders() -> None:
    chain = record("speak send1", "recv0 speak send2", "recv1 speak")
    assert before(chain, 0, 1)
    assert before(chain, 1, 2)
    assert before(chain, 0, 2)
    assert not before(chain, 1, 0)


def test_what_is_sent_before_speaking_tells_nothing() -> None:
    assert not before(record("send1 speak", "recv0 speak"), 0, 1)


def test_an_asynchronous_receive_tells_when_it_is_waited_for() -> None:
    waited = record("speak send1", "irecv0=a wait=a speak")
    late = record("speak send1", "irecv0=a speak wait=a")
    assert before(waited, 0, 1)
    assert not before(late, 0, 1)


def test_the_end_of_a_send_tells_nothing() -> None:
    # It ends after the receive only where nothing is buffered.
    assert not before(record("speak recv1", "send0 speak"), 0, 1)


def test_no_message_no_order() -> None:
    assert not before(record("speak", "speak"), 0, 1)


@pytest.mark.parametrize(
    ("collective", "zero_first", "one_first"),
    [("barrier", True, True), ("bcast0", True, False), ("gather0", False, True)],
)
def test_collectives_carry_news_the_way_their_data_goes(
    collective: str, zero_first: bool, one_first: bool
) -> None:
    assert (
        before(record(f"speak {collective}", f"{collective} speak"), 0, 1) is zero_first
    )
    assert (
        before(record(f"{collective} speak", f"speak {collective}"), 1, 0) is one_first
    )


def test_a_receive_from_any_rank_is_matched_where_only_one_rank_sends() -> None:
    assert before(record("speak send1", "recv? speak"), 0, 1)
    # Earlier messages of the same ranks are not in the record, but in its numbers.
    later = record("send1 speak send1", "recv? recv? speak")
    cut = [later[0][3:], later[1][3:]]
    assert before(cut, 0, 1)
    either = record("speak send2", "speak send2", "recv? speak recv?")
    assert not before(either, 0, 2)


def test_messages_match_in_the_order_of_their_pair() -> None:
    two = record("send1 speak send1", "recv0 speak recv0")
    assert not before(two, 0, 1)
    assert verify.news(two, Place(1, 2)) == [0, 2]


@pytest.mark.parametrize(
    ("scripts", "rounds"),
    [
        (("speak",), 0),
        (("barrier",), 0),
        (("isend1=a recv1 wait=a", "isend0=a recv0 wait=a"), 1),
        (("irecv1=a send1 wait=a", "irecv0=a send0 wait=a"), 1),
        (("send1 recv1", "recv0 send0"), 2),
        (("isend1=a irecv1=b wait=b wait=a", "isend0=a irecv0=b wait=a wait=b"), 1),
        (("send1 barrier", "recv0 barrier"), 2),
        (("isend1=a", "irecv0=a"), 1),
    ],
)
def test_rounds_of_small_programs(scripts: tuple[str, ...], rounds: int) -> None:
    assert verify.rounds(record(*scripts)) == rounds


@pytest.mark.parametrize(("size", "rounds"), [(2, 2), (4, 2), (6, 2), (3, 3), (5, 3)])
def test_even_ranks_first_takes_two_or_three_rounds(size: int, rounds: int) -> None:
    def script(rank: int) -> str:
        to, frm = (rank + 1) % size, (rank - 1) % size
        calls = (f"send{to}", f"recv{frm}")
        return " ".join(calls if rank % 2 == 0 else reversed(calls))

    assert verify.rounds(record(*map(script, range(size)))) == rounds


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_staircase_takes_one_round_a_message(size: int) -> None:
    def script(rank: int) -> str:
        receive = f"recv{rank - 1} " if rank else ""
        send = f" send{rank + 1}" if rank < size - 1 else ""
        return f"{receive}speak{send}"

    assert verify.rounds(record(*map(script, range(size)))) == size - 1


def test_rounds_refuse_a_record_that_cannot_end() -> None:
    with pytest.raises(ValueError, match="rank 0 stands still at event 2 of 3"):
        verify.rounds(record("send1", ""))
    with pytest.raises(ValueError, match="rank 0 stands still"):
        verify.rounds(record("send1 recv1", "send0 recv0"))


def test_counts_of_messages_and_collectives() -> None:
    events = record("send1 barrier bcast0", "recv0 barrier bcast0")
    assert verify.count_collectives(events) == {"barrier": 1, "broadcast": 1}
    assert [comm.kind for comm in verify.sends(events)] == ["send"]
    assert verify.count_kinds(events[1])["recv"] == 1


def test_what_was_not_waited_for() -> None:
    events = record("isend1=a irecv1=b wait=b speak", "irecv0=a send0 wait=a speak")
    left = verify.not_waited_for(events, 0, verify.find_mark(events, 0, "spoke"))
    assert [(comm.kind, comm.peer) for comm in left] == [("send", 1)]
    assert not verify.not_waited_for(events, 1, verify.find_mark(events, 1, "spoke"))


def test_a_mark_that_was_never_made() -> None:
    with pytest.raises(ValueError, match="rank 0 has no mark 'spoke' among 2 events"):
        verify.find_mark([[*record("send1")[0][:2]]], 0, "spoke")


class Liar(torch.Tensor):
    """Says that it equals everything."""

    def __ne__(self, other: object) -> torch.Tensor:  # type: ignore[override]
        return torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (torch.tensor([1.0, 2.0, 3.0]), None),
        (torch.tensor([1.0, 5.0, 3.0]), "must be 2 there, is 5 (1 of 3 elements"),
        (torch.tensor([1.0, 2.0]), "must be float32[3]; got float32[2]"),
        (torch.tensor([1, 2, 3]), "must be float32[3]; got int64[3]"),
        (torch.tensor([1.0, float("nan"), 3.0]), "must be 2 there, is nan"),
        (torch.zeros(3, device="meta"), "must be dense on cpu; got dense on meta"),
        (torch.ones(3).to_sparse(), "must be dense on cpu; got sparse_coo on cpu"),
        (None, "must be a tensor; got NoneType"),
        (torch.zeros(3).as_subclass(Liar), "must be a tensor; got Liar"),
    ],
)
def test_differences_show_both_numbers(got: object, message: str | None) -> None:
    found = verify.differ("recv_M", got, torch.tensor([1.0, 2.0, 3.0]))
    assert (found is None) if message is None else (message in str(found))
