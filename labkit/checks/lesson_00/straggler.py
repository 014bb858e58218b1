"""Exercise 0.3: from the spans of a record, who was late and what that cost."""

from __future__ import annotations

import random
import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from labkit.checks.exercise import Answer, Exercise, Judged, Stage
from labkit.checks.verdict import Fault, Property
from labkit.record.events import P2P
from labkit.record.intervals import Row

SpanKind = Literal["compute", "collective"]
# Times in the cases are multiples of 1/16 s, so that equal sums are equal floats.
TICKS_PER_S = 16
TOLERANCE_S = 1e-6


class Span(NamedTuple):
    """What a timer around each piece of a rank's program shows, in seconds.

    `name` is for a collective its kind and number, as "all_reduce#3": the same on every
    rank that took part.
    """

    step: int
    rank: int
    kind: SpanKind
    name: str
    start: float
    end: float


class Late(NamedTuple):
    """The answer for one step: the last rank, and what the others lost by waiting."""

    step: int
    rank: int
    lost_s: float


@dataclass(frozen=True)
class Case:
    """The spans of a record; `missing` is the rank that lacks a collective, if any."""

    name: str
    spans: tuple[Span, ...]
    missing: int | None = None


@dataclass(frozen=True)
class Given:
    """What the answer gave: a list of triples, or what went wrong on the way to it."""

    triples: tuple[tuple[int, int, float], ...] = ()
    raised: str = ""
    is_value_error: bool = False
    odd: str = ""


def spans(rows: Iterable[Row]) -> list[Span]:
    """Join what each rank waited and transferred: a span from its call to its end.

    `run.rows()` tells waiting from transfer already. A timer around the call, which is
    all that most tools have, does not: its span is what this function gives back.
    """
    calls: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    found: list[Span] = []
    for row in rows:
        if row.kind == "compute":
            found.append(Span(row.step, row.rank, "compute", *row[3:]))
        elif row.name.partition("#")[0] not in P2P:
            calls[row.step, row.rank, row.name].append(row)
    for (step, rank, name), parts in calls.items():
        start, end = min(p.start for p in parts), max(p.end for p in parts)
        found.append(Span(step, rank, "collective", name, start, end))
    return found


def expected(rows: Iterable[Span]) -> list[Late]:
    """Who waited least at a step's collectives, and how long all waited together."""
    starts: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.kind == "collective":
            starts[row.step, row.name][row.rank] = row.start
    waited: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (step, _), start in starts.items():
        for rank in sorted(start):
            waited[step][rank] += max(start.values()) - start[rank]
    return [
        Late(step, min(of, key=lambda rank: (of[rank], rank)), sum(of.values()))
        for step, of in sorted(waited.items())
    ]


def stragglers_in_cases(
    _: object, stragglers: Answer, cases: Sequence[tuple[Span, ...]]
) -> list[Given]:
    """What one rank runs: call the answer on each case's spans, keep what it gives."""
    return [_call(stragglers, case) for case in cases]


def _call(stragglers: Answer, case: tuple[Span, ...]) -> Given:
    try:
        answer = stragglers(list(case))
    except NotImplementedError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1].lineno
        text = f"{type(error).__name__}: {error} (line {place})"
        return Given(raised=text, is_value_error=isinstance(error, ValueError))
    return _read(answer)


def _read(answer: Any) -> Given:
    """Turn an answer into plain numbers, or say what is odd about it."""
    if not isinstance(answer, list):
        return Given(odd=f"got {type(answer).__name__}")
    triples: list[tuple[int, int, float]] = []
    for item in answer:
        try:
            step, rank, lost_s = item
            triples.append((int(step), int(rank), float(lost_s)))
        except (TypeError, ValueError):
            return Given(odd=f"got a list with {item!r} in it")
    return Given(triples=tuple(triples))


class _Draft:
    """Draws up the spans of a made-up run, step by step, in ticks."""

    def __init__(self, world_size: int, seed: int) -> None:
        self.rows: list[Span] = []
        self._now = [0] * world_size
        self._random = random.Random(seed)
        self._step = -1
        self._collectives = 0

    def step(self, *computes: Sequence[int], ends: Sequence[int] = ()) -> None:
        """A step: for each collective, how long every rank computes before it.

        `ends` are the ticks by which each rank leaves a collective after the first.
        """
        self._step += 1
        for compute in computes:
            start = [now + ticks for now, ticks in zip(self._now, compute, strict=True)]
            first_end = max(start) + 2
            name = f"all_reduce#{self._collectives}"
            self._collectives += 1
            for rank, began in enumerate(start):
                end = first_end + (ends[rank] if ends else 0)
                self._add(rank, "compute", "compute", self._now[rank], began)
                self._add(rank, "collective", name, began, end)
                self._now[rank] = end

    def _add(self, rank: int, kind: SpanKind, name: str, start: int, end: int) -> None:
        times_s = start / TICKS_PER_S, end / TICKS_PER_S
        self.rows.append(Span(self._step, rank, kind, name, *times_s))

    def case(self, name: str, *, without: tuple[int, int] | None = None) -> Case:
        """The case, shuffled, but for the collective of one (rank, step)."""
        rows = [row for row in self.rows if not _is_left_out(row, without)]
        self._random.shuffle(rows)
        return Case(name, tuple(rows), None if without is None else without[0])


def _is_left_out(row: Span, without: tuple[int, int] | None) -> bool:
    return row.kind == "collective" and (row.rank, row.step) == without


def cases(seed: int) -> Iterator[Case]:
    """Named records, then random ones."""
    yield Case("no spans", ())
    for name, world_size, play in _NAMED:
        draft = _Draft(world_size, seed)
        play(draft)
        yield draft.case(name)
    source = random.Random(seed)
    for number in range(4):
        yield _random_case(f"random {number}", source)
    draft = _Draft(7, seed)
    for _ in range(3):
        draft.step([8, 8, 9, 8, 8, 8, 8])
    yield draft.case("rank 5 lacks a collective", without=(5, 2))


def _random_case(name: str, source: random.Random) -> Case:
    world_size = source.randint(2, 8)
    draft = _Draft(world_size, source.randrange(1000))
    for _ in range(source.randint(1, 5)):
        late, number = source.randrange(world_size), source.randint(1, 3)
        computes = [
            [source.randint(4, 9) for _ in range(world_size)] for _ in "_" * number
        ]
        for compute in computes:
            compute[late] += source.randint(20, 60)
        draft.step(*computes, ends=[source.randint(0, 3) for _ in range(world_size)])
    return draft.case(name)


def _alone(draft: _Draft) -> None:
    draft.step([8])
    draft.step([24])


def _one_late(draft: _Draft) -> None:
    for _ in range(3):
        draft.step([8, 10, 20, 9], ends=[0, 1, 0, 0])


def _ties(draft: _Draft) -> None:
    draft.step([8, 20, 20, 8])
    draft.step([8, 8, 8, 8])


def _moving(draft: _Draft) -> None:
    for late in (3, 0, 1, 2):
        draft.step([30 if rank == late else 8 + rank for rank in range(4)])


def _two_a_step(draft: _Draft) -> None:
    for _ in range(2):
        draft.step([4, 4, 16], [4, 4, 20])
        draft.step([4, 4, 4], [4, 20, 4])


def _odd_ends(draft: _Draft) -> None:
    # Rank 1 leaves first, so its span is the shortest, though rank 2 came last; rank 3
    # leaves last, so its total is the longest.
    for _ in range(3):
        draft.step([8, 24, 28, 12], ends=[7, 0, 8, 9])
        draft.step([11, 10, 2, 1], ends=[0, 0, 0, 0])


_NAMED: tuple[tuple[str, int, Callable[[_Draft], None]], ...] = (
    ("one rank alone", 1, _alone),
    ("rank 2 is late in each step", 4, _one_late),
    ("ranks that come together", 4, _ties),
    ("a late rank that moves", 4, _moving),
    ("two collectives a step", 3, _two_a_step),
    ("ranks that leave at different times", 4, _odd_ends),
)


def judge(answer: Answer, stage: Stage, seed: int) -> Judged:
    """Call the answer on every case, on one rank, and compare with who waited."""
    all_cases = list(cases(seed))
    given = [case.spans for case in all_cases]
    played = stage.play("processes", 1, stragglers_in_cases, answer, given)
    names = f"Played: {len(all_cases)} records, 4 of them random (seed {seed})."
    if played.error is not None:
        fault = Fault(Property.VALUES, "on rank 0", str(played.error))
        return Judged((fault,), names)
    faults = (
        Fault(Property.VALUES, case.name, message)
        for case, got in zip(all_cases, played.results[0], strict=True)
        if (message := fault_of(case, got)) is not None
    )
    return Judged(tuple(faults), names)


def fault_of(case: Case, given: Given) -> str | None:
    """What is wrong with an answer, if anything."""
    if given.odd:
        return f"a list of (step, rank, seconds) is wanted; {given.odd}"
    if case.missing is not None:
        return _fault_of_missing(case.missing, given)
    if given.raised:
        return f"these spans are whole, and have an answer; raised {given.raised}"
    wanted = expected(case.spans)
    steps = [step for step, _, _ in given.triples]
    if steps != [late.step for late in wanted]:
        shown = [late.step for late in wanted]
        return f"one triple a step, in order of steps: {shown} expected, got {steps}"
    for late, triple in zip(wanted, given.triples, strict=True):
        got = Late(*triple)
        if got.rank != late.rank:
            return _wrong_rank(case.spans, late, got)
        if not abs(got.lost_s - late.lost_s) <= TOLERANCE_S:
            return _wrong_cost(case.spans, late, got)
    return None


def _fault_of_missing(missing: int, given: Given) -> str | None:
    rule = (
        f"rank {missing} lacks a collective that the others have: a ValueError is due"
    )
    if not given.raised:
        return f"{rule}; got an answer: {list(given.triples)}"
    if not given.is_value_error:
        return f"{rule}; got {given.raised}"
    if re.search(rf"\b{missing}\b", given.raised) is None:
        return f"{rule} that names rank {missing}; got {given.raised}"
    return None


def _waits(rows: Iterable[Span], step: int) -> dict[int, float]:
    """How long each rank waited at the collectives of a step."""
    starts: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.kind == "collective" and row.step == step:
            starts[row.name][row.rank] = row.start
    waited: dict[int, float] = defaultdict(float)
    for start in starts.values():
        for rank, began in start.items():
            waited[rank] += max(start.values()) - began
    return waited


def _inside(rows: Iterable[Span], step: int, *, compute: bool) -> dict[int, float]:
    """How long each rank's collectives of a step took, or all its spans together."""
    total: dict[int, float] = defaultdict(float)
    for row in rows:
        if row.step == step and (compute or row.kind == "collective"):
            total[row.rank] += row.end - row.start
    return total


def _wrong_rank(rows: Sequence[Span], late: Late, got: Late) -> str:
    """Tell a wrong rank by how it was probably chosen."""
    waited, inside = _waits(rows, late.step), _inside(rows, late.step, compute=False)
    head = f"step {late.step}: rank {late.rank} expected, got {got.rank}; "
    if got.rank not in waited:
        return head + f"the ranks there are {sorted(waited)}"
    if waited[got.rank] == waited[late.rank]:
        return head + "both waited equally: the lowest number is wanted"
    if inside[got.rank] == max(inside.values()):
        return head + (
            f"rank {got.rank} waited {waited[got.rank]:.2g} s there: it is a victim; "
            "the late rank spends least"
        )
    total = _inside(rows, late.step, compute=True)
    if total[got.rank] == max(total.values()):
        return head + "all ranks end together (or nearly): totals cannot tell"
    if inside[got.rank] == min(inside.values()):
        return head + (
            f"rank {got.rank} left early, so its span is the shortest, yet it waited "
            f"{waited[got.rank]:.2g} s and rank {late.rank} {waited[late.rank]:.2g} s; "
            "compare starts"
        )
    return head + (
        f"rank {got.rank} waited {waited[got.rank]:.2g} s, rank {late.rank} "
        f"{waited[late.rank]:.2g} s; who waits least came last (lowest rank on a tie)"
    )


def _wrong_cost(rows: Sequence[Span], late: Late, got: Late) -> str:
    waited = _waits(rows, late.step)
    num_waiting = sum(seconds > 0 for seconds in waited.values())
    text = (
        f"step {late.step}: lost {late.lost_s:.4g} s expected for {num_waiting} "
        f"waiting ranks, got {got.lost_s:.4g}"
    )
    if abs(got.lost_s - max(waited.values())) <= TOLERANCE_S:
        return text + "; count it once for every rank that waits"
    return text + "; add (last start - own start) over the step's collectives and ranks"


EXERCISE = Exercise(
    id="0.3",
    title="Who was late",
    signature="stragglers(spans)",
    points={Property.VALUES: 10},
    hints=(
        "Look at the picture above: whose bar in the all-reduce is the shortest, and "
        "why?",
        "A collective cannot end before its last rank has come. What did each other "
        "rank do between its own start and that moment?",
        'Group the spans of kind "collective" by (step, name). In each group, a rank '
        "has waited from its own start to the last start. Add up its waits over the "
        "step: who waited least came last, and the sum over ranks is what was lost.",
    ),
    judge=judge,
)
