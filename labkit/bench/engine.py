"""How long the replay engine takes, on programs as large as a day's questions get.

Two programs of 64 ranks on 8 nodes, each rank in 4 groups, compute between transfers
that overlap: one on a machine whose links they share, one where none is shared.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

from labkit.bench.figures import Figure
from labkit.record.program import Comm, Event, Header, Program, Span, Wait, Work
from labkit.replay.engine import replay
from labkit.replay.machine import AlphaBeta

NUM_RANKS, RANKS_PER_NODE = 64, 8
NUM_REPEATS = 3
SHARED = AlphaBeta(
    alpha_s=1e-5,
    beta_s_per_byte=1 / 300e9,
    flops_per_s=400e12,
    launch_s=4e-6,
    comm_launch_s=5e-6,
    shares_ports=True,
    ranks_per_node=RANKS_PER_NODE,
    nic_bytes_per_s=50e9,
    name="shared links",
)
ALONE = AlphaBeta(
    alpha_s=1e-5,
    beta_s_per_byte=1 / 300e9,
    flops_per_s=400e12,
    launch_s=4e-6,
    comm_launch_s=5e-6,
    name="links of their own",
)
# What a rank does in a block, about a layer's work: w computes; a capital letter issues
# a transfer on a group, the small one waits for it. Two are under way at a time.
BLOCK = "wwwwwwTwwwwwwDwwwtwwwwwwwEwwwdwwwwwwWwwwwewwwwwwxw"
GROUP_OF = {"T": "tensor", "D": "data", "E": "expert", "W": "world"}
OPENS = {"t": "T", "d": "D", "e": "E", "x": "W"}


def groups(num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Four for each rank: its node, its place in every node, half its node, all."""
    node = RANKS_PER_NODE
    found = {"world": tuple(range(num_ranks))}
    for first in range(0, num_ranks, node):
        found[f"tensor {first // node}"] = tuple(range(first, first + node))
    for place in range(node):
        found[f"data {place}"] = tuple(range(place, num_ranks, node))
    for first in range(0, num_ranks, node // 2):
        found[f"expert {first // (node // 2)}"] = tuple(range(first, first + node // 2))
    return found


def group_of(letter: str, rank: int) -> str:
    """The rank's group for a capital letter of BLOCK."""
    number = {
        "T": rank // RANKS_PER_NODE,
        "D": rank % RANKS_PER_NODE,
        "E": rank // (RANKS_PER_NODE // 2),
    }
    name = GROUP_OF[letter]
    return f"{name} {number[letter]}" if letter in number else name


def program(num_events: int, num_ranks: int = NUM_RANKS) -> Program:
    """A Program of about this many events, as many on each rank."""
    num_blocks = max(1, num_events // (num_ranks * (len(BLOCK) + 1)))
    ranks = tuple(range(num_ranks))
    header = Header(world_size=num_ranks, ranks=ranks, level="work", source="planned")
    events = tuple(tuple(_events(rank, num_blocks)) for rank in ranks)
    return Program(header, groups(num_ranks), events)


def _events(rank: int, num_blocks: int) -> Iterator[Event]:
    seq = number = 0
    open_ids: dict[str, int] = {}
    for block in range(num_blocks):
        last_seq = seq + len(BLOCK)
        yield Span(
            rank, 0, seq, block, None, "step", block, None, None, last_seq, None, None
        )
        for letter in BLOCK:
            seq += 1
            if letter == "w":
                flops = 1e9 * (1 + (rank * 7 + seq * 3) % 13)
                yield _work(rank, seq, flops, block)
            elif letter in OPENS:
                target = open_ids.pop(OPENS[letter])
                yield Wait(rank, 0, 0, seq, target, "host", "wait", None, None, None)
            else:
                open_ids[letter] = number
                yield _comm(rank, seq, number, letter, block)
                number += 1
        seq += 1


def _work(rank: int, seq: int, flops: float, span: int) -> Work:
    return Work(
        rank, 0, 0, seq, "mm", flops, flops / 100, 1, "bfloat16", None, span, None, None
    )


def _comm(rank: int, seq: int, number: int, letter: str, block: int) -> Comm:
    num_bytes = 1_000_000 * (1 + "TDEW".index(letter) + block % 3)
    return Comm(
        rank, 0, 0, seq, number, "all_reduce", group_of(letter, rank), block, None, 0,
        0, num_bytes, "bfloat16", "sum", is_async=True, span=block,
    )  # fmt: skip


def seconds(made: Program, machine: AlphaBeta, repeats: int = NUM_REPEATS) -> float:
    """The shortest of some replays."""
    found: list[float] = []
    for _ in range(repeats):
        gc.collect()
        began_s = time.perf_counter()
        replayed = replay(made, machine)
        found.append(time.perf_counter() - began_s)
        del replayed
    return min(found)


def figures() -> list[Figure]:
    """Both programs."""
    return measure(((100_000, SHARED, "at most 10 s"), (500_000, ALONE, "at most 2 s")))


def measure(cases: Sequence[tuple[int, AlphaBeta, str]]) -> list[Figure]:
    """One figure for each (number of events, machine, bound in words)."""
    found: list[Figure] = []
    for num_events, machine, bound in cases:
        made = program(num_events)
        exact = sum(map(len, made.events))
        name = (
            f"replay of {exact:,} events, {NUM_RANKS} ranks, 4 groups a rank, "
            f"{machine.name} ({bound})"
        )
        found.append(Figure(name, "s", seconds(made, machine)))
    return found
