"""Dry runs: real sizes, fake tensors, every rank's costs, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit import Cluster, span
from labkit.errors import ClusterClosed, RankFailed, UsageError
from labkit.record.program import Alloc, Comm, Program, Work, without_times
from tests.runtime import recorded_programs as programs
from tests.runtime.lines import bare_number_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, quiet=True) as made:
        yield made


@pytest.mark.parametrize("body", [programs.naive, programs.overlapped])
def test_a_dry_record_is_the_real_one_without_times(
    cluster: Cluster, body: Callable[[], None]
) -> None:
    dry = cluster.dry(body).record
    real = cluster.run(body, record="work").record
    assert dry.header.source == "dry"
    assert dry.header.level == "work"

    assert _work(dry) == _work(real)
    assert _comms(dry) == _comms(real)
    assert [(t.kind, t.payload_bytes) for t in dry.traffic] == [
        (t.kind, t.payload_bytes) for t in real.traffic
    ]


def _work(program: Program) -> list[tuple[object, ...]]:
    return [
        (e.rank, e.name, e.flops, e.moved_bytes, e.dtype, e.span)
        for e in program
        if isinstance(e, Work) and e.kernels
    ]


def _comms(program: Program) -> list[tuple[object, ...]]:
    return [
        (e.rank, e.kind, e.group, e.group_seq, e.logical_bytes, e.is_async, e.site)
        for e in program
        if isinstance(e, Comm)
    ]


def big_step(dim: int, layers: int, batch: int) -> None:
    """Gradients go out while backward still runs: 12 dim^2 parameters a layer."""
    blocks = nn.Sequential(*(
        nn.Sequential(nn.Linear(dim, 6 * dim, bias=False), nn.GELU(),
                      nn.Linear(6 * dim, dim, bias=False))
        for _ in range(layers)
    )).to(torch.bfloat16)  # fmt: skip
    works = []
    for parameter in blocks.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    optimizer = torch.optim.AdamW(blocks.parameters())
    x = torch.randn(batch, dim, dtype=torch.bfloat16)
    with span("step"):
        blocks(x).square().mean().backward()
        for work in works:
            work.wait()
        optimizer.step()


def test_four_billion_parameters_on_eight_ranks(cluster: Cluster) -> None:
    """8 layers of 12 x 6656^2: sizes that this machine could not hold."""
    dim, layers, batch = 6656, 8, 4096
    program = cluster.dry(big_step, dim, layers, batch, world_size=8).record
    parameters = 12 * dim**2 * layers
    assert parameters > 4e9
    assert program.header.ranks == tuple(range(8))
    for rank in range(8):
        events = program.of(rank)
        sums = [e for e in events if isinstance(e, Comm)]
        assert sum(call.logical_bytes for call in sums) == 2 * parameters
        assert all(call.is_async for call in sums[:-1])
        held = [e for e in events if isinstance(e, Alloc) and e.kind == "optimizer"]
        assert sum(e.num_bytes for e in held) == 4 * parameters + 4 * 2 * layers
    work = [e for e in program.of(0) if isinstance(e, Work)]
    # The first layer's input needs no gradient.
    first = 2 * batch * 6 * dim**2
    assert sum(e.flops for e in work) == 6 * batch * parameters - first


def roles() -> None:
    """Ranks pass a tensor along a chain: first, middle and last differ."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(10, 10)
    if rank > 0:
        dist.recv(x, rank - 1)
    x = x @ x
    if rank < size - 1:
        dist.send(x, rank + 1)


def test_ranks_that_differ_all_run(cluster: Cluster) -> None:
    program = cluster.dry(roles, world_size=6).record
    kinds = [[e.kind for e in program.of(r) if isinstance(e, Comm)] for r in range(6)]
    assert kinds == [["send"], *[["recv", "send"]] * 4, ["recv"]]


def turn() -> None:
    """Every rank sends to the next: alike, seen from itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty(4)
    work = dist.isend(torch.ones(4), (rank + 1) % size)
    dist.recv(incoming, (rank - 1) % size)
    if work is not None:
        work.wait()


def test_copies_of_a_rank_name_their_own_peers(cluster: Cluster) -> None:
    program = cluster.dry(turn, world_size=5).record
    peers = [[e.peer for e in program.of(r) if isinstance(e, Comm)] for r in range(5)]
    assert peers == [[(r + 1) % 5, (r - 1) % 5] for r in range(5)]
    assert {(t.rank, t.kind, t.peer) for t in program.traffic} == {
        (r, kind, (r + step) % 5) for r in range(5)
        for kind, step in (("send", 1), ("recv", -1))
    }  # fmt: skip


def one_is_special(special: int) -> None:
    """One rank broadcasts, all others sum."""
    x = torch.ones(4)
    if dist.get_rank() == special:
        dist.broadcast(x, special)
    else:
        dist.all_reduce(x)


@pytest.mark.parametrize(("size", "special"), [(8, 5), (3, 1), (64, 2), (64, 32)])
def test_a_rank_that_differs_from_all_others_is_found(
    cluster: Cluster, size: int, special: int
) -> None:
    program = cluster.dry(one_is_special, special, world_size=size).record
    kinds = [[e.kind for e in program.of(r) if isinstance(e, Comm)]
             for r in range(size)]  # fmt: skip
    expected = [["all_reduce"]] * size
    expected[special] = ["broadcast"]
    assert kinds == expected


def sends_beyond(peer: int) -> None:
    dist.send(torch.ones(2), peer)


@pytest.mark.parametrize("peer", [2, 99])
def test_a_peer_that_is_not_there_is_told(cluster: Cluster, peer: int) -> None:
    for start in (cluster.dry, cluster.run):
        with pytest.raises(RankFailed, match=f"from 0 to 1; rank . named {peer}. "):
            start(sends_beyond, peer)


def test_a_closed_cluster_runs_nothing_dry(nothing_left: None) -> None:
    closed = Cluster(2, quiet=True)
    closed.close()
    with pytest.raises(ClusterClosed, match="was closed"):
        closed.dry(programs.naive, steps=1)


def test_groups_of_some_ranks_only(cluster: Cluster) -> None:
    program = cluster.dry(programs.subgroups, world_size=4).record
    assert program.groups["2,3"] == (2, 3)
    assert [e.group for e in program.of(3) if isinstance(e, Comm)][2] == "2,3"


def test_two_dry_records_are_equal(cluster: Cluster) -> None:
    first, second = (cluster.dry(programs.overlapped).record for _ in range(2))
    assert without_times(first) == without_times(second)


def reads_a_loss() -> None:
    loss = torch.ones(3).sum() + torch.randn(())
    print(loss.item())


def selects() -> None:
    x = torch.randn(10)
    x[x > 0].sum()


def to_numpy() -> None:
    torch.randn(10).numpy()


def sends_objects() -> None:
    dist.all_gather_object([None] * dist.get_world_size(), {"a": 1})


@pytest.mark.parametrize(
    ("body", "line"),
    [(reads_a_loss, "loss.item()"), (selects, "x[x > 0]"), (to_numpy, ".numpy()"),
     (sends_objects, "all_gather_object")],
)  # fmt: skip
def test_what_depends_on_values_is_refused_with_its_line(
    cluster: Cluster, body: Callable[[], None], line: str
) -> None:
    with pytest.raises(
        UsageError, match=r"a dry run has shapes and no values"
    ) as found:
        cluster.dry(body)
    assert f"line {bare_number_of(body, line)} of {body.__name__}" in str(found.value)
    assert cluster.dry(programs.naive, steps=1).record.header.source == "dry"


def test_an_error_of_the_learners_is_an_error(cluster: Cluster) -> None:
    def wrong() -> None:
        torch.ones(3) @ torch.ones(4)

    with pytest.raises(RankFailed, match=r"wrong\(\)|size"):
        cluster.dry(wrong)


def test_an_error_that_speaks_of_fakes_is_the_learners_too(cluster: Cluster) -> None:
    def empty() -> None:
        raise RuntimeError("the fake loader has no batches")

    with pytest.raises(RankFailed, match="the fake loader has no batches"):
        cluster.dry(empty)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8", 10**6])
def test_a_world_has_a_whole_number_of_ranks(cluster: Cluster, size: object) -> None:
    with pytest.raises(UsageError, match="a dry run has from 1 to 16384 ranks; got"):
        cluster.dry(turn, world_size=size)  # type: ignore[arg-type]


def test_a_dry_record_cannot_be_drawn_before_it_has_times(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"this one is dry and has none.*run\.replay"):
        cluster.dry(programs.naive).timeline()


def test_closing_ends_the_dry_ranks_too(nothing_left: None) -> None:
    with Cluster(2, quiet=True) as made:
        made.dry(programs.naive, steps=1)
