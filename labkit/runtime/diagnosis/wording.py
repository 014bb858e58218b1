"""Calls, ranks and groups in words, as a learner would write them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from labkit.record.events import P2P, CommStart, Site
from labkit.runtime.diagnosis.findings import Differs, Groups

Where = Callable[[Site], str]
Key = TypeVar("Key", bound=Hashable)
MAX_TENSORS = 3
BOUND = "\u00a0"  # a space that is no place to break a line


def rank_list(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0, 2-5`."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [_run_text(run) for run in runs]
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)


def _run_text(run: list[int]) -> str:
    return ", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}"


def plural(count: int, noun: str) -> str:
    """`1 call`, `2 calls`, `no calls`."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def folded(items: Mapping[int, Key]) -> list[tuple[tuple[int, ...], Key]]:
    """Ranks that share a value together, in the order of their first rank."""
    by_value: dict[Key, list[int]] = {}
    for rank, value in sorted(items.items(), key=lambda item: item[0]):
        by_value.setdefault(value, []).append(rank)
    return [(tuple(ranks), value) for value, ranks in by_value.items()]


def tensors_text(comm: CommStart) -> str:
    """`float32[200]`, or the first few of several tensors."""
    texts = [comm.dtype + str(list(shape)) for shape in comm.shapes[:MAX_TENSORS]]
    if len(comm.shapes) > MAX_TENSORS:
        texts.append(f"... {len(comm.shapes)} tensors")
    return ", ".join(texts)


def call_text(
    comm: CommStart, differs: Differs | None = None, *, with_peer: bool = True
) -> str:
    """`all_reduce(float32[200])`, with whatever else tells it from other calls."""
    if comm.kind == "new_group":
        return f"new_group({list(comm.shapes[0]) if comm.shapes else ''})"
    parts = [tensors_text(comm)]
    if comm.kind in P2P:
        parts.append(_peer_text(comm) if with_peer else "")
        parts.append(f"tag {comm.tag}" if comm.tag else "")
    elif comm.peer is not None:
        parts.append(f"root rank {comm.peer}")
    if comm.op is not None and (comm.op != "sum" or differs is Differs.OP):
        parts.append(f"op {comm.op}")
    if differs is Differs.SPLITS:
        parts += _splits_text(comm)
    return f"{comm.kind}({', '.join(part for part in parts if part)})"


def _peer_text(comm: CommStart) -> str:
    peer = "any rank" if comm.peer is None else f"rank {comm.peer}"
    return f"to {peer}" if comm.kind == "send" else f"from {peer}"


def _splits_text(comm: CommStart) -> list[str]:
    sends, expects = comm.send_splits, comm.recv_splits
    return [
        f"{verb} {list(splits)}"
        for verb, splits in (("sends", sends), ("expects", expects))
        if splits is not None
    ]


def place(comm: CommStart, where: Where) -> str:
    """The line that made the call, its spaces bound so that it stays in one piece."""
    line = where(comm.site) if comm.site is not None else "an unknown line"
    return line.replace(" ", BOUND)


def wrapped(line: str, width: int) -> str:
    """The line in lines of at most `width`, where no bound piece is longer."""
    indent = " " * (len(line) - len(line.lstrip(" ")) + 4)
    text = textwrap.fill(
        line, width, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return unbound(text)


def unbound(text: str) -> str:
    """The text with plain spaces again."""
    return text.replace(BOUND, " ")


def numbered(comm: CommStart, groups: Groups) -> str:
    """`call #3 on the world group`: see [Note: call numbers]."""
    return f"call #{groups.number(comm)} on {groups.name(comm.group)}"
