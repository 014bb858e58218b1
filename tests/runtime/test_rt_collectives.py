"""Calls that do not fit together are explained, and calls that do are left alone."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import Cluster
from labkit.errors import (
    AbsentRankError,
    CyclicWaitError,
    GroupOrderError,
    LabkitError,
    MismatchError,
    RankFailed,
    StuckError,
)
from tests.runtime.conftest import MakeCluster
from tests.runtime.lines import flat, line_of, number_of


def twice_as_many_on_rank_0() -> list[float]:
    size = 200 if dist.get_rank() == 0 else 100
    data = torch.ones(size)
    dist.all_reduce(data)
    return data.tolist()


def reduce_or_broadcast_first() -> None:
    data = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(data)
        dist.broadcast(data, 0)
    else:
        dist.broadcast(data, 0)
        dist.all_reduce(data)


def test_RT_31_a_size_mismatch_names_both_shapes_and_lines(cluster4: Cluster) -> None:
    with pytest.raises(MismatchError) as caught:
        cluster4.run(twice_as_many_on_rank_0)
    text, line = flat(caught.value), line_of(twice_as_many_on_rank_0, "all_reduce")
    assert "call #1 on the world group" in text.lower()
    assert "every rank must hand over the same number of elements" in text
    assert f"rank 0 called all_reduce(float32[200]) at {line}" in text
    assert f"called all_reduce(float32[100]) at {line}" in text
    assert "Try: print x.shape on every rank" in text


@pytest.mark.parametrize("swap", [False, True])
def test_RT_31_no_wrong_value_is_used(
    cluster4: Cluster, swap: bool, tmp_path: Any
) -> None:
    """Whoever comes last, nobody passes the call: gloo itself would add and return."""

    def reduce_and_use() -> None:
        late = (dist.get_rank() == 0) is swap
        if late:
            time.sleep(0.2)
        twice_as_many_on_rank_0()
        (tmp_path / f"used-{dist.get_rank()}").touch()

    with pytest.raises(MismatchError):
        cluster4.run(reduce_and_use)
    assert list(tmp_path.iterdir()) == []


def test_RT_31_a_dtype_mismatch_is_told_too(cluster4: Cluster) -> None:
    def reduce() -> None:
        dtype = torch.int32 if dist.get_rank() == 2 else torch.float32
        dist.all_reduce(torch.ones(8, dtype=dtype))

    with pytest.raises(MismatchError) as caught:
        cluster4.run(reduce)
    text = flat(caught.value)
    assert "every rank must hand over the same dtype" in text
    assert "rank 2 called all_reduce(int32[8])" in text
    assert "all_reduce(float32[8])" in text


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("root", ["root rank 0", "root rank 1", "every rank must name the same root"]),
        ("op", ["op sum", "op max", "every rank must ask for the same reduction"]),
        ("group", ["new_group([0, 1])", "new_group([0, 2])", "ask for the same ranks"]),
        ("splits", ["sends [1, 1, 1, 1]", "expects [2, 1, 1, 1]", "must expect"]),
    ],
)
def test_RT_32_what_else_must_agree(
    cluster4: Cluster, what: str, words: list[str]
) -> None:
    def call() -> None:
        odd = dist.get_rank() == 1
        if what == "root":
            dist.broadcast(torch.ones(1), 1 if odd else 0)
        elif what == "op":
            op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
            dist.all_reduce(torch.ones(1), op)
        elif what == "group":
            dist.new_group([0, 2] if odd else [0, 1])
        else:
            expected = [2, 1, 1, 1] if odd else [1] * 4
            out = torch.empty(sum(expected))
            dist.all_to_all_single(out, torch.ones(4), expected, [1] * 4)

    with pytest.raises(MismatchError) as caught:
        cluster4.run(call)
    text = flat(caught.value)
    assert [word for word in words if word not in text] == []


def test_RT_32_a_different_order_names_call_ranks_and_lines(cluster4: Cluster) -> None:
    with pytest.raises(MismatchError) as caught:
        cluster4.run(reduce_or_broadcast_first)
    text = flat(caught.value)
    lines = [
        f'File "test_rt_collectives.py", line {number}'
        for number in _lines_of_calls(reduce_or_broadcast_first)
    ]
    assert "Call #1 on the world group" in text
    assert "every rank must make the same call" in text
    assert f"rank 0 called all_reduce(float32[4]) at {lines[0]}" in text
    assert f"called broadcast(float32[4], root rank 0) at {lines[2]}" in text


def _lines_of_calls(function: Any) -> list[int]:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return [
        first + i
        for i, line in enumerate(lines)
        if "dist.all" in line or "dist.br" in line
    ]


def test_RT_33_both_sides_and_the_last_ten_calls_are_told(cluster4: Cluster) -> None:
    def train() -> None:
        for _ in range(15):
            dist.all_reduce(torch.ones(3))
        reduce_or_broadcast_first()

    with pytest.raises(MismatchError) as caught:
        cluster4.run(train)
    assert "Call #16 on the world group" in str(caught.value)
    details = caught.value.details
    head, *calls = details.split("\n  call ")[:11]
    assert head == "rank 0: last calls, oldest first"
    numbers = [int(call.split()[0].removeprefix("#")) for call in calls]
    assert numbers == [*range(7, 17)]
    assert ": all_reduce(float32[4]) at " in calls[-1]
    assert ": broadcast(float32[4], root rank 0) at " in details
    assert line_of(train, "dist.all_reduce") in details
    assert details in "".join(getattr(caught.value, "__notes__", []))


def test_RT_35_a_metric_that_one_rank_alone_logs_is_named(cluster4: Cluster) -> None:
    def log(metrics: dict[str, float]) -> dict[str, float]:
        means = {}
        for name in sorted(metrics):
            value = torch.tensor(metrics[name])
            dist.all_reduce(value)
            means[name] = value.item()
        return means

    def validate() -> None:
        metrics = {"loss": 1.0, "accuracy": 0.5}
        if dist.get_rank() == 1:
            perplexity = torch.tensor(2.7)
            dist.all_reduce(perplexity)
        log(metrics)

    with pytest.raises(AbsentRankError) as caught:
        cluster4.run(validate)
    text = flat(caught.value)
    assert "rank 1" in text
    assert line_of(validate, "dist.all_reduce(perplexity)") in text
    assert (
        f"only rank 1 made all_reduce(float32[]) at {line_of(validate, 'all_reduce')}"
        in text
    )


class WithBuffers(nn.Module):
    """A model whose wrapper broadcasts buffers at each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_RT_37_evaluation_on_rank_0_only_is_told(
    make_cluster: MakeCluster, when: str
) -> None:
    def train_and_evaluate() -> None:
        model = DistributedDataParallel(WithBuffers())
        if when == "after":
            model(torch.randn(8, 4)).sum().backward()
        if dist.get_rank() == 0:
            model(torch.zeros(8, 4))
        dist.barrier()

    with pytest.raises((MismatchError, AbsentRankError)) as caught:
        make_cluster(2).run(train_and_evaluate)
    text = flat(caught.value)
    assert line_of(train_and_evaluate, "model(torch.zeros(8, 4))") in text
    assert line_of(train_and_evaluate, "dist.barrier()") in text


@pytest.mark.slow
def test_RT_37_evaluation_without_the_wrapper_works(make_cluster: MakeCluster) -> None:
    def train_and_evaluate() -> float:
        model = DistributedDataParallel(WithBuffers())
        loss = 0.0
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
            if dist.get_rank() == 0:
                model.eval()
                loss = model.module(torch.ones(8, 4)).sum().item()
                model.train()
        dist.barrier()
        return loss

    losses = make_cluster(2).run(train_and_evaluate).results
    assert math.isfinite(losses[0])
    assert losses[1] == 0.0


def test_an_absent_rank_is_named_and_the_line_that_waits(cluster4: Cluster) -> None:
    def leave_early() -> None:
        if dist.get_rank() == 3:
            return
        dist.barrier()

    with pytest.raises(AbsentRankError) as caught:
        cluster4.run(leave_early)
    text = flat(caught.value)
    assert "every rank of the group must make it" in text
    assert "ranks 0-2 wait in barrier()" in text
    assert f"at {line_of(leave_early, 'dist.barrier()')}, for rank 3" in text
    assert "rank 3 has returned" in text
    assert "let rank 3 make the call too" in text


def test_a_rank_that_was_not_asked_is_told_apart(cluster4: Cluster) -> None:
    with pytest.raises(AbsentRankError) as caught:
        cluster4.run(dist.barrier, ranks=[0, 1])
    text = flat(caught.value)
    assert "ranks 2, 3 were not asked to run" in text
    assert "run the function on ranks 2, 3 as well, or use a group without" in text


def receive_from_the_next() -> None:
    dist.recv(torch.empty(4), (dist.get_rank() + 1) % dist.get_world_size())


def test_a_circle_of_receives_is_told_as_a_circle(cluster4: Cluster) -> None:
    with pytest.raises(CyclicWaitError) as caught:
        cluster4.run(receive_from_the_next)
    text = flat(caught.value)
    assert (
        "wait for each other in a circle: 0 for 1, 1 for 2, 2 for 3, 3 for 0." in text
    )
    for rank in range(4):
        assert (
            f"rank {rank} waits in recv(float32[4], from rank {(rank + 1) % 4})" in text
        )
    assert line_of(receive_from_the_next, "dist.recv") in text
    assert "let one rank send before it receives" in text


@pytest.mark.parametrize("num_bytes", [4, 64 << 20])
def test_PP_12_under_rendezvous_no_buffer_hides_a_deadlock(
    make_cluster: MakeCluster, num_bytes: int
) -> None:
    def exchange(*, ordered: bool) -> float:
        peer, mine = 1 - dist.get_rank(), torch.ones(num_bytes // 4)
        theirs = torch.zeros(num_bytes // 4)
        calls = [lambda: dist.send(mine, peer), lambda: dist.recv(theirs, peer)]
        for call in calls if dist.get_rank() == 0 or not ordered else calls[::-1]:
            call()
        return theirs.mean().item()

    cluster = make_cluster(2, rendezvous=True)
    assert cluster.run(exchange, ordered=True).results == [1.0, 1.0]
    with pytest.raises(CyclicWaitError) as caught:
        cluster.run(exchange, ordered=False)
    assert f"send(float32[{num_bytes // 4}], to rank 1)" in flat(caught.value)


@pytest.mark.parametrize(("sent", "received"), [(1, 2), (7, 0), (0, 7)])
def test_tags_that_differ_are_told_first(
    sent: int, received: int, cluster4: Cluster
) -> None:
    def call() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.zeros(2), 1, tag=sent)
            dist.recv(torch.zeros(2), 1)
        elif dist.get_rank() == 1:
            dist.recv(torch.zeros(2), 0, tag=received)

    with pytest.raises(CyclicWaitError) as caught:
        cluster4.run(call)
    text = flat(caught.value)
    assert text.startswith(
        "A send and its receive must have the same tag: rank 0 sends to rank 1 with "
        f"tag {sent}, which receives with tag {received}."
    )
    assert "give a send and its receive the same tag" in text


def test_two_groups_in_different_orders_are_told_as_such(cluster4: Cluster) -> None:
    def call() -> None:
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        order = (first, second) if dist.get_rank() == 0 else (second, first)
        for group in order if dist.get_rank() < 2 else ():
            dist.barrier(group)

    with pytest.raises(GroupOrderError) as caught:
        cluster4.run(call)
    text = flat(caught.value)
    assert "in a circle: 0 for 1, 1 for 0" in text
    assert "group {0, 1}" in text


def test_a_message_that_nobody_receives_is_told_at_the_end(cluster4: Cluster) -> None:
    def send() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.ones(2), 1, tag=7)

    with pytest.raises(AbsentRankError) as caught:
        cluster4.run(send)
    text = flat(caught.value)
    assert "send(float32[2], to rank 1, tag 7)" in text
    assert line_of(send, "dist.send") in text


def test_an_exception_that_a_mismatch_caused_is_folded(cluster4: Cluster) -> None:
    def gather() -> None:
        rows = 3 if dist.get_rank() == 0 else 2
        parts = [torch.empty(rows) for _ in range(4)]
        dist.all_gather(parts, torch.ones(rows))
        assert parts[3].sum() == rows

    with pytest.raises(StuckError) as caught:
        cluster4.run(gather)
    assert "all_gather(float32[3])" in flat(caught.value)
    assert "all_gather(float32[2])" in flat(caught.value)


def test_a_slow_rank_is_not_a_stuck_rank(cluster4: Cluster) -> None:
    def be_late() -> None:
        if dist.get_rank() == 2:
            time.sleep(1.5)
        dist.barrier()

    assert cluster4.run(be_late).results == [None] * 4


DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool,
    torch.complex64,
)  # fmt: skip


def broadcast(ones: torch.Tensor, out: torch.Tensor) -> Any:
    data = ones if dist.get_rank() == 0 else out
    dist.broadcast(data, 0)
    return data


def all_reduce(ones: torch.Tensor, out: torch.Tensor) -> Any:
    dist.all_reduce(ones)
    return ones


def reduce(ones: torch.Tensor, out: torch.Tensor) -> Any:
    dist.reduce(ones, 0)
    return ones if dist.get_rank() == 0 else None


def all_gather(ones: torch.Tensor, out: torch.Tensor) -> Any:
    parts = [torch.zeros_like(ones) for _ in ones]
    dist.all_gather(parts, ones)
    return torch.cat(parts)


def gather(ones: torch.Tensor, out: torch.Tensor) -> Any:
    is_root = dist.get_rank() == 0
    parts = [torch.zeros_like(ones) for _ in ones] if is_root else None
    dist.gather(ones, parts, 0)
    return torch.cat(parts) if parts else None


def scatter(ones: torch.Tensor, out: torch.Tensor) -> Any:
    rows = list(ones.split(1)) if dist.get_rank() == 0 else None
    dist.scatter(out[:1], rows, 0)
    return out[:1]


def reduce_scatter(ones: torch.Tensor, out: torch.Tensor) -> Any:
    dist.reduce_scatter(out[:1], list(ones.split(1)))
    return out[:1]


def all_to_all_single(ones: torch.Tensor, out: torch.Tensor) -> Any:
    dist.all_to_all_single(out, ones)
    return out


def all_to_all(ones: torch.Tensor, out: torch.Tensor) -> Any:
    parts = list(out.split(1))
    dist.all_to_all(parts, list(ones.split(1)))
    return torch.cat(parts)


def send(ones: torch.Tensor, out: torch.Tensor) -> Any:
    if dist.get_rank() == 0:
        dist.send(ones, 1)
    elif dist.get_rank() == 1:
        dist.recv(out, 0)
        return out
    return None


COLLECT = {
    function.__name__: function
    for function in (
        broadcast, all_reduce, reduce, all_gather, gather, scatter, reduce_scatter,
        all_to_all_single, all_to_all, send,
    )
}  # fmt: skip


def collect(kind: str, dtype: torch.dtype) -> Any:
    """What `kind` leaves on this rank, for inputs of ones; None where nothing."""
    size = dist.get_world_size()
    return COLLECT[kind](torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype))


REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# What gloo cannot move, of what the course uses.
LACKING = {("gather", torch.complex64)}


@pytest.mark.parametrize("kind", COLLECT)
def test_RT_43_every_collective_takes_every_dtype_of_the_course(
    cluster4: Cluster, kind: str
) -> None:
    dtypes = [dtype for dtype in DTYPES if (kind, dtype) not in LACKING]

    def collect_all() -> list[Any]:
        return [collect(kind, dtype) for dtype in dtypes]

    for results in cluster4.run(collect_all).results:
        for dtype, got in zip(dtypes, results, strict=True):
            if got is not None:
                total = 4 if kind in REDUCING and dtype is not torch.bool else 1
                assert got.dtype == dtype
                assert torch.equal(got, torch.full_like(got, total)), (kind, dtype)


@pytest.mark.parametrize(("kind", "dtype"), sorted(LACKING, key=str))
def test_RT_43_what_gloo_lacks_comes_with_the_way_round(
    cluster4: Cluster, kind: str, dtype: torch.dtype
) -> None:
    with pytest.raises(RankFailed) as caught:
        cluster4.run(collect, kind, dtype)
    text = flat(caught.value)
    name = str(dtype).removeprefix("torch.")
    assert f"{kind} on gloo needs a dtype that it can move" in text
    assert f"this rank handed over {name}" in text
    assert "torch.view_as_real(x)" in text
    assert number_of(COLLECT[kind], f"dist.{kind}(ones") in text


def test_RT_44_an_uneven_all_to_all_works(cluster4: Cluster) -> None:
    def exchange() -> list[int]:
        rank, size = dist.get_rank(), dist.get_world_size()
        send, recv = [rank + 1] * size, [peer + 1 for peer in range(size)]
        mine = torch.full((sum(send),), rank)
        theirs = torch.empty(sum(recv), dtype=torch.int64)
        dist.all_to_all_single(theirs, mine, recv, send)
        return theirs.tolist()

    expected = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert cluster4.run(exchange).results == [expected] * 4


@pytest.mark.parametrize("op", ["MAX", "PRODUCT", "MIN"])
def test_RT_45_reductions_that_complex_numbers_lack_raise(
    cluster4: Cluster, op: str
) -> None:
    def reduce() -> Any:
        data = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
        dist.all_reduce(data, getattr(dist.ReduceOp, op))
        return data.tolist()

    with pytest.raises(RankFailed, match=r"(?i)complex"):
        cluster4.run(reduce)


def test_RT_47_time_spent_waiting_for_a_late_rank_is_called_waiting(
    cluster4: Cluster,
) -> None:
    def reduce_late() -> None:
        if dist.get_rank() == 1:
            time.sleep(0.2)
        dist.all_reduce(torch.ones(1))

    rows = cluster4.run(reduce_late).rows()
    total: Counter[tuple[int, str]] = Counter()
    for row in rows:
        total[row.rank, row.kind] += row.end - row.start
    for rank in (0, 2, 3):
        assert total[rank, "waiting"] > 0.1
        assert total[rank, "transfer"] < total[rank, "waiting"] / 2
    assert total[1, "waiting"] < 0.1
    assert total[1, "compute"] > 0.15


def test_RT_34_correct_calls_raise_no_report(cluster4: Cluster) -> None:
    def call_everything() -> int:
        rank = dist.get_rank()
        pair = dist.new_group([0, 2])
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for _ in range(3):
            dist.barrier()
            if rank in (0, 2):
                dist.barrier(pair)
                dist.all_reduce(torch.ones(5), group=pair)
            dist.barrier(halves[rank // 2])
        dist.all_reduce(torch.ones(2, 3) if rank % 2 else torch.ones(6))
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(4)]
        for work in reversed(works):
            work.wait()
        dist.monitored_barrier()
        return rank

    for _ in range(2):
        assert cluster4.run(call_everything).results == [0, 1, 2, 3]


def test_every_report_has_three_parts(cluster4: Cluster) -> None:
    programs = [
        twice_as_many_on_rank_0, reduce_or_broadcast_first, receive_from_the_next,
    ]  # fmt: skip
    for program in programs:
        with pytest.raises(LabkitError) as caught:
            cluster4.run(program)
        first, *seen, _ = str(caught.value).split("\n\n")[0].split("\n")
        assert first[0].isupper()
        assert any(line.startswith("  rank") for line in seen)
        assert "\nTry: " in str(caught.value)
        assert "Fresh ranks have taken their place" in str(caught.value)
