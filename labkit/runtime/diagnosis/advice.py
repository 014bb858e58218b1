"""For each kind of finding: what must hold, and what to try."""

from __future__ import annotations

from labkit.record.events import P2P, CommStart
from labkit.runtime.diagnosis.findings import Differs, Fault, Finding, State
from labkit.runtime.diagnosis.wording import numbered, rank_list

MAX_CHAIN = 8
_MUST_AGREE = {
    Differs.KIND: "every rank must make the same call",
    Differs.RANKS: "every rank must ask for the same ranks",
    Differs.ROOT: "every rank must name the same root",
    Differs.DTYPE: "every rank must hand over the same dtype",
    Differs.ELEMENTS: "every rank must hand over the same number of elements",
    Differs.SPLITS: "what one rank sends to another, that one must expect",
    Differs.OP: "every rank must ask for the same reduction",
}
_MAKE_AGREE = {
    Differs.KIND: "make these calls in the same order on every rank: look for an "
    "`if rank == ...` around one, or for a call that one rank alone makes",
    Differs.RANKS: "call new_group with the same list on every rank, members or not",
    Differs.ROOT: "give every rank the same src or dst, as a global rank",
    Differs.DTYPE: "convert before the call, as in x.to(torch.float32), or look for "
    "where one rank makes its tensor with another dtype",
    Differs.ELEMENTS: "print x.shape on every rank before the call; pad or trim to a "
    "common size, or look for a call that one rank alone makes",
    Differs.SPLITS: "exchange the counts first, so that rank a's send count for b is "
    "b's receive count for a",
    Differs.OP: "give every rank the same op",
}
_PAIR_AGREE = {
    Differs.DTYPE: "receive into a tensor of the dtype that is sent",
    Differs.ELEMENTS: "receive into a tensor of as many elements as are sent, or send "
    "the size first; with several messages between two ranks, check order and tags",
}


def must_hold(finding: Finding) -> str:
    """The rule that is broken."""
    call = _some_call(finding)
    is_pair = call.kind in P2P
    match finding.kind:
        case Fault.MISMATCH if is_pair:
            what = "dtype" if finding.differs is Differs.DTYPE else "number of elements"
            return f"A send and its receive must agree in {what}."
        case Fault.MISMATCH:
            assert finding.differs is not None
            rule = _MUST_AGREE[finding.differs]
            return f"{_capital(numbered(call, finding.groups))}: {rule}."
        case Fault.ABSENT | Fault.UNFINISHED if is_pair:
            return "Every receive needs a send, and every send a receive."
        case Fault.ABSENT | Fault.UNFINISHED:
            name = numbered(call, finding.groups)
            return f"{_capital(name)}: every rank of the group must make it."
        case Fault.GROUP_ORDER:
            return f"{_circle(finding)} Ranks must use what they share in one order."
        case _:
            return _apart(finding) or (
                f"{_circle(finding)} One of them must be free to go first."
            )


def to_try(finding: Finding) -> str:
    """The next step, for this kind of finding."""
    match finding.kind:
        case Fault.MISMATCH:
            return _try_to_agree(finding)
        case Fault.ABSENT | Fault.UNFINISHED:
            return _try_to_come(finding)
        case Fault.CYCLIC:
            return _try_to_break(finding)
        case Fault.GROUP_ORDER:
            return (
                "on every rank, make the calls above in the same order; or start them "
                "without waiting (async_op=True, isend, irecv) and then wait for all"
            )
        case Fault.STUCK:
            return "on every rank, make the calls above in the same order"


def _try_to_agree(finding: Finding) -> str:
    assert finding.differs is not None
    if _some_call(finding).kind in P2P:
        return _PAIR_AGREE[finding.differs]
    return _MAKE_AGREE[finding.differs]


def _try_to_come(finding: Finding) -> str:
    absent, call = rank_list(finding.absent), _some_call(finding)
    states = {finding.states[rank] for rank in finding.absent}
    if State.FAILED in states:
        return f"see to what {rank_list(finding.failed)} raised: the rest follows"
    if State.IDLE in states:
        return f"run the function on {absent} as well, or use a group without it"
    if call.kind not in P2P:
        return (
            f"let {absent} make the call too, or leave it out on the others: look for "
            "an `if rank == ...` around it, loops of different length, an early return"
        )
    if not finding.absent:
        return "count the messages: one rank sends or receives once too often"
    answer = "receive it" if call.kind == "send" else "send it"
    return (
        f"let {absent} {answer}, with the same tag; or leave out this {call.kind}: "
        "look for loops of different length and for the wrong peer"
    )


def _try_to_break(finding: Finding) -> str:
    if _tags_apart(finding):
        return "give a send and its receive the same tag, or leave both without one"
    kinds = {call.kind for call in _circle_calls(finding)}
    if kinds == {"send"}:
        return (
            "start one side's receive first, or start both (isend, irecv) and then "
            "wait for both. That it ended elsewhere proves nothing: a buffer took it"
        )
    if kinds == {"recv"}:
        return (
            "let one rank send before it receives, or start both (isend, irecv) and "
            "then wait for both"
        )
    return (
        "send and receive in the same order at both ends, with the same tags; or start "
        "all (isend, irecv) and then wait for all"
    )


def _apart(finding: Finding) -> str | None:
    found = _tags_apart(finding)
    if found is None:
        return None
    send, recv = found
    return (
        f"A send and its receive must have the same tag: rank {recv.peer} sends to "
        f"rank {send.peer} with tag {send.tag}, which receives with tag {recv.tag}."
    )


def _tags_apart(finding: Finding) -> tuple[CommStart, CommStart] | None:
    """A send and a receive of the circle that only their tags keep from meeting."""
    calls = {rank: finding.calls[rank] for rank in finding.ranks}
    for rank, send in calls.items():
        recv = calls.get(send.peer) if send and send.peer is not None else None
        if send is None or recv is None or recv.peer != rank:
            continue
        meets = (send.kind, recv.kind, send.group) == ("send", "recv", recv.group)
        if meets and send.tag != recv.tag:
            return send, recv
    return None


def _circle(finding: Finding) -> str:
    ranks = finding.ranks
    chain = [f"{a} for {b}" for a, b in zip(ranks, ranks[1:] + ranks[:1], strict=True)]
    if len(chain) > MAX_CHAIN:
        chain = [*chain[: MAX_CHAIN - 1], f"... ({len(chain)} ranks)", chain[-1]]
    return f"Ranks wait for each other in a circle: {', '.join(chain)}."


def _circle_calls(finding: Finding) -> list[CommStart]:
    return [c for rank in finding.ranks if (c := finding.calls[rank]) is not None]


def _some_call(finding: Finding) -> CommStart:
    """A call at the heart of it: an absence's is one that waits for an absent rank."""
    calls = _circle_calls(finding)
    assert calls, "a finding has a call"
    return calls[0]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
