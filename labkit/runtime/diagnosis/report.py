"""A finding in plain words: what must hold, what was seen on each rank, what to try.

Calls are numbered as [Note: call numbers] in findings.py says: from 1, in this run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labkit.record.events import P2P, CommStart
from labkit.runtime.diagnosis.advice import must_hold, to_try
from labkit.runtime.diagnosis.findings import Doing, Fault, Finding, Groups, State
from labkit.runtime.diagnosis.wording import (
    Where,
    call_text,
    folded,
    numbered,
    place,
    plural,
    rank_list,
    unbound,
    wrapped,
)

History = Mapping[int, Sequence[CommStart]]
MAX_RING_LINES = 4


@dataclass(frozen=True)
class Report:
    """A finding in words.

    Attributes:
        text: What must hold; what was seen; what to try.
        details: Each rank's last calls, for the front end to fold away.
    """

    text: str
    details: str

    def __str__(self) -> str:
        return self.text


def report(
    finding: Finding, history: History, *, where: Where, width: int = 88
) -> Report:
    """Put a finding into words.

    Args:
        finding: What was found.
        history: Each rank's last calls: `ledger.history()`.
        where: Renders a line of code: `cell [5], line 3: dist.all_reduce(x)`.
        width: Lines are wrapped at this many characters.
    """
    lines = [must_hold(finding)]
    lines += ["  " + line for line in _seen(finding, history, where)]
    lines.append(f"Try: {to_try(finding)}")
    text = "\n".join(wrapped(line, width) for line in lines)
    return Report(text, _details(finding, history, where))


def doing_text(rank: int, doing: Doing, *, where: Where) -> str:
    """What a rank is doing, in a line: for an interrupt, or a death."""
    name = f"rank {rank}"
    if doing.since_s is None:
        return f"{name} {_STATES[doing.state]}"
    if doing.call is None:
        return f"{name} waits in a call"
    call, groups = doing.call, doing.groups
    line = f"{name} waits in {_on_group(call, groups)} at {place(call, where)}"
    if doing.waits_for:
        line += f", for {rank_list(doing.waits_for)}"
    return unbound(line)


_STATES = {
    State.IDLE: "was not asked to run",
    State.RUNNING: "is computing",
    State.FINISHED: "has returned",
    State.FAILED: "has raised",
}


def _on_group(call: CommStart, groups: Groups, *, with_peer: bool = True) -> str:
    text = call_text(call, with_peer=with_peer)
    if call.kind in P2P:
        group = groups.name(call.group)
        return text if group == "the world group" else f"{text} on {group}"
    return f"{text}, {numbered(call, groups)},"


def _seen(finding: Finding, history: History, where: Where) -> Iterator[str]:
    if finding.kind is Fault.MISMATCH:
        yield from _called(finding, where)
    elif finding.kind is Fault.UNFINISHED:
        yield from _called(finding, where)
        yield from _absent(finding, history, where)
    else:
        yield from _waiting(finding, finding.ranks, where)
        yield from _absent(finding, history, where)
        further = [rank for rank in finding.waits_for if rank not in finding.ranks]
        yield from _waiting(finding, further, where, also="also ")
    yield from _strays(finding, where)
    yield from _lonely_calls(finding, history, where)


def _called(finding: Finding, where: Where) -> Iterator[str]:
    texts = {
        rank: f"called {call_text(call, finding.differs)} at {place(call, where)}"
        for rank, call in finding.calls.items()
        if call is not None
    }
    for ranks, text in folded(texts):
        yield f"{rank_list(ranks)} {text}"


def _waiting(
    finding: Finding, among: Sequence[int], where: Where, also: str = ""
) -> Iterator[str]:
    is_ring = finding.kind is Fault.CYCLIC and len(among) > MAX_RING_LINES
    texts: dict[int, tuple[str, str]] = {}
    for rank in among:
        call = finding.calls[rank]
        if call is not None:
            text = _on_group(call, finding.groups, with_peer=not is_ring)
            peers = "the next one" if is_ring else rank_list(finding.waits_for[rank])
            texts[rank] = f"{text} at {place(call, where)}", peers
    for ranks, (text, peers) in folded(texts):
        verb = "waits" if len(ranks) == 1 else "wait"
        yield f"{rank_list(ranks)} {also}{verb} in {text}, for {peers}"


def _absent(finding: Finding, history: History, where: Where) -> Iterator[str]:
    texts = {rank: _absence(finding, rank, history, where) for rank in finding.absent}
    for ranks, (state, text) in folded(texts):
        verbs = ("was", "were") if state is State.IDLE else ("has", "have")
        yield f"{rank_list(ranks)} {verbs[len(ranks) > 1]} {text}"


def _absence(
    finding: Finding, rank: int, history: History, where: Where
) -> tuple[State, str]:
    state = finding.states[rank]
    if state is State.IDLE:
        return state, "not asked to run"
    if state is State.FAILED:
        return state, "raised: that error comes first"
    past = list(history.get(rank, ()))
    if rank not in finding.made:
        text = "returned without that"
    else:
        group = next(call for call in finding.calls.values() if call is not None).group
        count = plural(finding.made[rank], "call")
        text = f"returned after {count} on {finding.groups.name(group)}"
        past = [call for call in past if call.group == group and call.kind not in P2P]
    if past and not finding.strays:
        text += f", the last {call_text(past[-1])} at {place(past[-1], where)}"
    return state, text


def _strays(finding: Finding, where: Where) -> Iterator[str]:
    for rank, call in finding.strays:
        yield (
            f"nobody answers rank {rank}'s {call_text(call)} at {place(call, where)}: "
            "do rank and tag agree?"
        )


def _lonely_calls(finding: Finding, history: History, where: Where) -> Iterator[str]:
    """Calls from a line that one rank alone has reached, as an extra metric's."""
    call = next((call for call in finding.calls.values() if call is not None), None)
    members = finding.groups.members.get(call.group, ()) if call is not None else ()
    if call is None or call.kind in P2P or len(members) < 2:
        return
    calls = {
        rank: [
            past
            for past in history.get(rank, ())
            if past.group == call.group and past.kind not in P2P
        ]
        for rank in members
    }
    lonely = {rank: _unshared(rank, calls) for rank in members}
    ranks = [rank for rank, found in lonely.items() if found]
    if len(ranks) != 1:
        return
    extra = lonely[ranks[0]][0]
    told = finding.calls.get(ranks[0])
    if told is None or told.site != extra.site:
        yield (
            f"among the last calls, only rank {ranks[0]} made "
            f"{call_text(extra)} at {place(extra, where)}"
        )


def _unshared(rank: int, calls: Mapping[int, Sequence[CommStart]]) -> list[CommStart]:
    """The calls of a rank from lines that no other rank called from."""
    elsewhere = {
        call.site for other, theirs in calls.items() if other != rank for call in theirs
    }
    return [call for call in calls[rank] if call.site not in elsewhere]


def _details(finding: Finding, history: History, where: Where) -> str:
    lists = {
        rank: tuple(_past(call, finding.groups, where) for call in calls)
        for rank, calls in history.items()
    }
    lines: list[str] = []
    for ranks, texts in folded(lists):
        head = f"{rank_list(ranks)}: "
        lines.append(head + ("last calls, oldest first" if texts else "no calls"))
        lines += [f"  {text}" for text in texts]
    return unbound("\n".join(lines))


def _past(call: CommStart, groups: Groups, where: Where) -> str:
    text = f"{call_text(call)} at {place(call, where)}"
    return text if call.kind in P2P else f"{numbered(call, groups)}: {text}"
