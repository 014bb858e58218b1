"""Ranks as threads: every collective against plain arithmetic, order, deadlock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit.comm.groups import backend
from labkit.comm.groups.recording import Hooks
from labkit.comm.groups.threads import Stalled, ThreadRanks
from labkit.errors import MismatchError, UsageError
from labkit.record.events import CommStart, NewGroup, WaitEnd, WaitStart
from tests.comm.groups.threaded import (
    all_gather_single,
    errors,
    gather_function,
    outcomes,
    recorders,
    reduce_scatter_single,
    results,
)

pytestmark = pytest.mark.timeout(60)

SIZES = [1, 2, 3, 4, 7]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
DTYPES = FLOATS + INTEGERS
LENGTH = 5


def value(rank: int, at: int) -> int:
    """Small numbers whose sums and products are exact in every type."""
    return 2 if (rank + at) % 3 == 0 else 1 if (rank * at) % 4 else 0


def tensor(rank: int, dtype: torch.dtype, length: int = LENGTH) -> torch.Tensor:
    return torch.tensor([value(rank, at) for at in range(length)]).to(dtype)


def numbers(rank: int, dtype: torch.dtype, length: int = LENGTH) -> list[int]:
    """`tensor`, as Python sees it."""
    plain = [value(rank, at) for at in range(length)]
    return [int(bool(each)) for each in plain] if dtype == torch.bool else plain


def fold(op: str, column: list[int]) -> float:
    """One element of a reduction, in Python's own numbers."""
    if op in ("SUM", "AVG"):
        return sum(column) / (len(column) if op == "AVG" else 1)
    if op in ("MIN", "MAX"):
        return min(column) if op == "MIN" else max(column)
    total = column[0]
    for each in column[1:]:
        total = {
            "PRODUCT": total * each,
            "BAND": total & each,
            "BOR": total | each,
            "BXOR": total ^ each,
        }[op]
    return total


def folded(op: str, p: int, dtype: torch.dtype, length: int = LENGTH) -> torch.Tensor:
    columns = zip(*(numbers(rank, dtype, length) for rank in range(p)), strict=True)
    plain = [fold(op, list(column)) for column in columns]
    return torch.tensor(plain, dtype=torch.float64).to(dtype)


def ops_of(dtype: torch.dtype) -> list[str]:
    bitwise = ["BAND", "BOR", "BXOR"]
    return ["SUM", "PRODUCT", "MIN", "MAX"] + (["AVG"] if dtype in FLOATS else bitwise)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


# Values


@pytest.mark.parametrize("p", SIZES)
def test_all_reduce_of_every_type_and_operation(p: int) -> None:
    cases = [(dtype, op) for dtype in DTYPES for op in ops_of(dtype)]

    def body(rank: int) -> list[torch.Tensor]:
        found = []
        for dtype, op in cases:
            mine = tensor(rank, dtype)
            dist.all_reduce(mine, op=getattr(dist.ReduceOp, op))
            found.append(mine)
        return found

    for found in results(p, body):
        for each, (dtype, op) in zip(found, cases, strict=True):
            same(each, folded(op, p, dtype))


@pytest.mark.parametrize("p", SIZES)
def test_reductions_to_one_rank_and_to_a_piece_each(p: int) -> None:
    cases = [(dtype, op) for dtype in (*FLOATS, torch.int64) for op in ops_of(dtype)]
    root = p - 1

    def body(rank: int) -> list[torch.Tensor]:
        found = []
        for dtype, op in cases:
            reduce_op = getattr(dist.ReduceOp, op)
            mine = tensor(rank, dtype)
            dist.reduce(mine, root, op=reduce_op)
            piece, listed = torch.empty(2, dtype=dtype), torch.empty(2, dtype=dtype)
            whole = tensor(rank, dtype, 2 * p)
            reduce_scatter_single(piece, whole, op=reduce_op)
            dist.reduce_scatter(listed, list(whole.chunk(p)), op=reduce_op)
            found += [mine, piece, listed]
        return found

    everything = results(p, body)
    for rank, found in enumerate(everything):
        for at, (dtype, op) in enumerate(cases):
            reduced, piece, listed = found[3 * at : 3 * at + 3]
            share = folded(op, p, dtype, 2 * p)[2 * rank : 2 * rank + 2]
            same(piece, share)
            same(listed, share)
            if rank == root:
                same(reduced, folded(op, p, dtype))


@pytest.mark.parametrize("p", SIZES)
def test_collectives_that_move_without_changing(p: int) -> None:
    root = p // 2

    def body(rank: int) -> list[list[torch.Tensor]]:
        found = []
        for dtype in DTYPES:
            mine = tensor(rank, dtype)
            listed = [torch.empty_like(mine) for _ in range(p)]
            dist.all_gather(listed, mine)
            joined = torch.empty(p * LENGTH, dtype=dtype)
            all_gather_single(joined, mine)
            gathered = [torch.empty_like(mine) for _ in range(p)]
            dist.gather(mine, gathered if rank == root else None, dst=root)
            shared = mine.clone()
            dist.broadcast(shared, root)
            dealt = torch.empty_like(mine)
            pieces = [tensor(10 + to, dtype) for to in range(p)]
            dist.scatter(dealt, pieces if rank == root else None, src=root)
            swapped = [torch.empty_like(mine) for _ in range(p)]
            dist.all_to_all(swapped, [tensor(rank + 20 * to, dtype) for to in range(p)])
            found.append(
                [torch.cat(listed), joined, torch.cat(gathered), shared, dealt]
            )
            found[-1].append(torch.cat(swapped))
        return found

    for rank, found in enumerate(results(p, body)):
        for dtype, moved in zip(DTYPES, found, strict=True):
            listed, joined, gathered, shared, dealt, swapped = moved
            every = torch.cat([tensor(source, dtype) for source in range(p)])
            same(listed, every)
            same(joined, every)
            same(shared, tensor(root, dtype))
            same(dealt, tensor(10 + rank, dtype))
            same(
                swapped,
                torch.cat([tensor(source + 20 * rank, dtype) for source in range(p)]),
            )
            if rank == root:
                same(gathered, every)


@pytest.mark.parametrize("p", SIZES)
def test_uneven_all_to_all_of_rows(p: int) -> None:
    """Rank r sends r + 2 s rows of two numbers to rank s."""

    def body(rank: int) -> list[list[float]]:
        sends = [rank + 2 * to for to in range(p)]
        wants = [source + 2 * rank for source in range(p)]
        rows = [float(100 * rank + to) for to in range(p) for _ in range(sends[to])]
        given = torch.tensor(rows).view(-1, 1).repeat(1, 2)
        got = torch.empty(sum(wants), 2)
        dist.all_to_all_single(got, given, wants, sends)
        return got.tolist()

    for rank, found in enumerate(results(p, body)):
        expected = [
            [float(100 * source + rank)] * 2
            for source in range(p)
            for _ in range(source + 2 * rank)
        ]
        assert found == expected


@pytest.mark.parametrize(
    ("parts", "total"), [([1.0, 1.0, 2048.0], 2050.0), ([2048.0, 1.0, 1.0], 2048.0)]
)
def test_sums_are_made_in_rank_order_and_in_the_type_itself(
    parts: list[float], total: float
) -> None:
    """float16 has no 2049: what is added first decides."""

    def body(rank: int) -> float:
        mine = torch.tensor([parts[rank]], dtype=torch.float16)
        dist.all_reduce(mine)
        return mine.item()

    assert results(3, body) == [total] * 3


def test_several_tensors_at_once() -> None:
    def body(rank: int) -> list[Any]:
        world = dist.group.WORLD
        assert world is not None
        summed = [torch.full((2,), float(rank)), torch.full((3,), 10.0 * rank)]
        world.allreduce_coalesced(summed).wait()
        joined = [torch.empty(4), torch.empty(2)]
        with dist._coalescing_manager():
            for output, given in zip(joined, (2, 1), strict=True):
                all_gather_single(output, torch.full((given,), rank + 0.5))
        dealt = [torch.empty(1), torch.empty(2)]
        with dist._coalescing_manager():
            for output, length in zip(dealt, (2, 4), strict=True):
                reduce_scatter_single(output, torch.arange(float(length)))
        return [each.tolist() for each in (*summed, *joined, *dealt)]

    first, second = results(2, body)
    assert first[:4] == second[:4]
    assert first[:2] == [[1.0] * 2, [10.0] * 3]
    assert first[2:4] == [[0.5, 0.5, 1.5, 1.5], [0.5, 1.5]]
    assert (first[4:], second[4:]) == ([[0.0], [0.0, 2.0]], [[2.0], [4.0, 6.0]])


def test_objects_travel_between_ranks() -> None:
    def body(rank: int) -> tuple[Any, ...]:
        every: list[Any] = [None] * 3
        dist.all_gather_object(every, {"rank": rank})
        shared = [f"from {rank}", rank]
        dist.broadcast_object_list(shared, src=2)
        dealt: list[Any] = [None]
        dist.scatter_object_list(
            dealt, ["a", (1, 2), None] if rank == 1 else None, src=1
        )
        gathered: list[Any] = [None] * 3
        dist.gather_object(rank * rank, gathered if rank == 0 else None, dst=0)
        return every, shared, dealt, gathered

    for rank, (every, shared, dealt, gathered) in enumerate(results(3, body)):
        assert every == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert shared == ["from 2", 2]
        assert dealt == [["a", (1, 2), None][rank]]
        assert gathered == ([0, 1, 4] if rank == 0 else [None] * 3)


def gloo_alone() -> dist.ProcessGroup:
    """The real gloo, with one rank: it refuses what it refuses at any size."""

    class Options:
        store = dist.HashStore()
        group_rank = 0
        group_size = 1

    return backend.gloo(Options())


def refuses(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BXOR"])
def test_refuses_the_reductions_that_gloo_refuses(op: str) -> None:
    dtypes = [*DTYPES, torch.int16, torch.uint16, torch.float8_e4m3fn]
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)

    def refused(group: dist.ProcessGroup) -> dict[torch.dtype, bool]:
        return {
            dtype: refuses(
                lambda dtype=dtype: group.allreduce(
                    [torch.zeros(2).to(dtype)], options
                ).wait()
            )
            for dtype in dtypes
        }

    ours = results(1, lambda rank: refused(dist.group.WORLD.inner))  # type: ignore
    assert ours == [refused(gloo_alone())]
    assert True in ours[0].values()


def test_complex_numbers_add_up_but_have_no_largest() -> None:
    def body(rank: int) -> complex:
        mine = torch.tensor([1 + 2j]) * rank
        dist.all_reduce(mine)
        with pytest.raises(ValueError, match="does not support"):
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return mine.item()

    assert results(3, body) == [3 + 6j] * 3


def test_writes_are_not_seen_by_autograd() -> None:
    """gloo writes through a pointer; a saved tensor may be reduced in place."""

    def body(rank: int) -> float:
        weight = torch.ones(1, requires_grad=True)
        hidden = weight * 3
        loss = (hidden * hidden).sum()
        dist.all_reduce(hidden.detach())
        loss.backward()
        assert weight.grad is not None
        return weight.grad.item()

    assert results(2, body) == [36.0, 36.0]


# Messages


def test_messages_keep_their_order_for_each_source_and_tag() -> None:
    def body(rank: int) -> list[float]:
        if rank > 0:
            for at in range(3):
                for tag in (7, 8):
                    dist.send(torch.tensor([100.0 * rank + 10 * tag + at]), 0, tag=tag)
            return []
        found = []
        for tag, source in ((8, 2), (7, 1), (8, 1), (7, 2)):
            for _ in range(3):
                got = torch.zeros(1)
                dist.recv(got, source, tag=tag)
                found.append(got.item())
        return found

    found = results(3, body)[0]
    assert found == [
        280, 281, 282, 170, 171, 172, 180, 181, 182, 270, 271, 272,
    ]  # fmt: skip


def test_receive_from_any_source_names_the_sender() -> None:
    def body(rank: int) -> list[tuple[int, float]]:
        if rank > 0:
            dist.send(torch.tensor([rank + 0.5]), 0)
            return []
        found = []
        for _ in range(3):
            got = torch.zeros(1)
            found.append((dist.recv(got), got.item()))
        return found

    assert sorted(results(4, body)[0]) == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_a_ring_of_batched_messages() -> None:
    def body(rank: int) -> float:
        got = torch.zeros(1)
        ops = [
            dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank + 1) % 4),
            dist.P2POp(dist.irecv, got, (rank - 1) % 4),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got.item()

    assert results(4, body, rendezvous=True) == [3.0, 0.0, 1.0, 2.0]


def test_what_is_sent_is_what_the_tensor_held_at_the_send() -> None:
    def body(rank: int) -> float:
        mine = torch.tensor([5.0])
        if rank == 0:
            dist.send(mine, 1)
            mine.zero_()
            return mine.item()
        dist.recv(mine, 0)
        return mine.item()

    assert results(2, body) == [0.0, 5.0]


def both_send_first(rank: int) -> None:
    dist.send(torch.ones(1), 1 - rank)
    dist.recv(torch.ones(1), 1 - rank)


def test_buffers_hide_a_deadlock_and_rendezvous_shows_it() -> None:
    assert errors(outcomes(2, both_send_first)) == [None, None]
    found = outcomes(2, both_send_first, rendezvous=True)
    assert errors(found) == [Stalled, Stalled]
    assert all(each.stalled for each in found)


def test_under_rendezvous_isend_ends_once_it_is_received() -> None:
    def body(rank: int) -> bool:
        if rank == 1:
            dist.barrier()
            dist.recv(torch.zeros(1), 0)
            return True
        work = dist.isend(torch.ones(1), 1)
        before = work.is_completed()
        dist.barrier()
        work.wait()
        return not before and work.is_completed()

    assert results(2, body, rendezvous=True) == [True, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.send(torch.ones(4)[::2], 1), "contiguous"),
        (lambda: dist.send(torch.ones(4), 1, tag=-1), "nonnegative"),
        (lambda: dist.group.WORLD.inner.send([torch.ones(1)], 5, 0), "members"),
    ],
)
def test_a_message_that_cannot_be_is_refused_at_once(
    call: Callable[[], Any], words: str
) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            with pytest.raises((RuntimeError, ValueError), match=words):
                call()

    results(2, body)


# Works


def test_an_asynchronous_work_tells_its_state() -> None:
    def body(rank: int) -> list[Any]:
        mine = torch.ones(2)
        work = dist.all_reduce(mine, async_op=True)
        assert work is not None
        states = [work.wait(), work.is_completed(), work.is_success()]
        return [*states, work.exception(), work.result()[0].tolist()]

    assert results(3, body) == [[True, True, True, None, [3.0, 3.0]]] * 3


def test_polling_lets_the_others_do_their_part() -> None:
    def body(rank: int) -> float:
        got = torch.zeros(1)
        if rank == 0:
            work = dist.irecv(got, 1)
            assert work is not None
            while not work.is_completed():
                pass
        else:
            dist.send(torch.ones(1), 0)
        return got.item()

    assert results(2, body) == [1.0, 0.0]


def test_futures_and_what_follows_them() -> None:
    def body(rank: int) -> list[float]:
        mine = torch.ones(2)
        work = dist.all_reduce(mine, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        return doubled.wait().tolist()

    assert results(3, body) == [[6.0, 6.0]] * 3


def test_a_future_taken_early_does_not_block_the_send_that_ends_it() -> None:
    def body(rank: int) -> float:
        got = torch.zeros(1)
        receiving = dist.irecv(got, 1 - rank)
        assert receiving is not None
        future = receiving.get_future()
        dist.send(torch.tensor([rank + 1.0]), 1 - rank)
        return future.wait()[0].item()

    assert results(2, body) == [2.0, 1.0]


# Groups, meshes, and what is built on them


def test_new_groups_number_their_members_from_zero() -> None:
    def body(rank: int) -> tuple[float, int, int]:
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mine, group = torch.tensor([float(rank)]), groups[rank % 2]
        dist.all_reduce(mine, group=group)
        return mine.item(), dist.get_rank(group), dist.get_world_size(group)

    assert results(4, body) == [(2.0, 0, 2), (4.0, 0, 2), (2.0, 1, 2), (4.0, 1, 2)]


@pytest.mark.slow  # Importing DTensor takes seconds.
def test_a_mesh_with_functional_collectives_and_dtensor() -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(16.0).view(4, 4)

    def body(rank: int) -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mine = torch.tensor([float(rank)])
        summed = functional.all_reduce(mine, "sum", mesh["tp"])
        joined = gather_function(mine, 0, mesh["dp"])
        spread = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        product = (spread @ spread).full_tensor()
        return summed.tolist(), joined.tolist(), product.tolist(), mesh.get_coordinate()

    for rank, found in enumerate(results(4, body)):
        row, column = divmod(rank, 2)
        summed, joined, product, coordinate = found
        assert summed == [4.0 * row + 1.0]
        assert joined == [float(column), column + 2.0]
        assert product == (whole @ whole).tolist()
        assert tuple(coordinate) == (row, column)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)]
    return torch.nn.Sequential(*layers).double()


def data() -> torch.Tensor:
    return torch.arange(24, dtype=torch.float64).view(8, 3).sin()


def serial_gradients() -> list[torch.Tensor]:
    whole = model()
    whole(data()).square().mean().backward()
    return [weight.grad for weight in whole.parameters() if weight.grad is not None]


def check_gradients(found: list[list[torch.Tensor]]) -> None:
    for gradients in found:
        for ours, expected in zip(gradients, serial_gradients(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_ddp_gives_the_serial_gradients(p: int) -> None:
    def body(rank: int) -> list[torch.Tensor]:
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True
        )
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(data().chunk(p)[rank]).square().mean().backward()
        return [weight.grad.clone() for weight in wrapped.parameters()]

    check_gradients(results(p, body))


def test_fsdp2_gives_the_serial_gradients() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def body(rank: int) -> list[torch.Tensor]:
        mesh, sharded = init_device_mesh("cpu", (2,)), model()
        for layer in (sharded[0], sharded[2], sharded):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
        sharded(data().chunk(2)[rank]).square().mean().backward()
        return [weight.grad.full_tensor() for weight in sharded.parameters()]

    check_gradients(results(2, body))


def test_a_rank_absent_from_ddp_stalls_inside_the_backward_pass() -> None:
    def body(rank: int) -> None:
        wrapped = torch.nn.parallel.DistributedDataParallel(model())
        loss = wrapped(data()).square().mean()
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
        loss.backward()

    found = outcomes(2, body)
    assert [each.stalled for each in found] == [True, True]


# Order


def wander(rank: int, seen: list[tuple[int, int]]) -> list[int]:
    """Random numbers of messages to random ranks, then receives from anybody."""
    sent = torch.zeros(4, dtype=torch.int64)
    for _ in range(int(torch.randint(1, 9, ()))):
        to = int(torch.randint(0, 3, ()))
        to += to >= rank
        sent[to] += 1
        dist.send(torch.tensor([float(rank)]), to)
        seen.append((rank, to))
    dist.all_reduce(sent)
    senders = [dist.recv(torch.zeros(1)) for _ in range(int(sent[rank]))]
    seen.append((rank, -1))
    dist.barrier()
    return senders


def test_the_order_is_the_same_twenty_times_in_twenty() -> None:
    orders = []
    for _ in range(20):
        seen: list[tuple[int, int]] = []
        senders = results(4, lambda rank, seen=seen: wander(rank, seen))
        orders.append((tuple(seen), str(senders)))
    assert len(set(orders)) == 1
    assert len(orders[0][0]) > 8


def test_a_rank_that_only_sends_lets_the_others_receive() -> None:
    """Otherwise all 1000 messages would lie in memory before the first is taken."""
    backlog = []

    def body(rank: int) -> None:
        for _ in range(1000):
            if rank == 0:
                dist.send(torch.zeros(1), 1)
                backlog.append(1)
            else:
                dist.recv(torch.zeros(1), 0)
                backlog.append(-1)

    results(2, body)
    assert max(sum(backlog[:at]) for at in range(len(backlog))) < 200


# Deadlock


def test_a_circle_of_receives_stalls_every_rank() -> None:
    found = outcomes(4, lambda rank: dist.recv(torch.zeros(1), (rank + 1) % 4))
    assert errors(found) == [Stalled] * 4
    assert [each.stalled for each in found] == [True] * 4


def test_a_rank_that_ended_stalls_those_that_wait_for_it() -> None:
    def body(rank: int) -> str:
        if rank != 2:
            dist.barrier()
        return "done"

    found = outcomes(4, body)
    assert errors(found) == [Stalled, Stalled, None, Stalled]
    assert found[2].value == "done"


def test_when_a_rank_raises_the_others_finish_what_they_can() -> None:
    def body(rank: int) -> float:
        if rank == 0:
            raise KeyError("on purpose")
        mine = torch.ones(1)
        pair = dist.group.WORLD
        assert pair is not None
        peer = 3 - rank
        pair.send([mine], peer, 0)
        pair.recv([mine], peer, 0).wait()
        return mine.item()

    found = outcomes(3, body)
    assert errors(found) == [KeyError, None, None]
    assert not any(each.stalled for each in found)
    assert found[0].error is not None
    assert found[0].error.__traceback__ is not None


def test_cleaning_up_after_a_stall_cannot_hang() -> None:
    def body(rank: int) -> str:
        try:
            dist.recv(torch.zeros(1), 1 - rank)
        except Stalled:
            with pytest.raises(Stalled):
                dist.recv(torch.zeros(1), 1 - rank, tag=1)
        return "unwound"

    found = outcomes(2, body)
    assert [each.value for each in found] == ["unwound"] * 2
    assert [each.stalled for each in found] == [True] * 2


def test_a_stalled_rank_is_not_saved_by_another_that_cleans_up() -> None:
    def body(rank: int) -> None:
        try:
            dist.recv(torch.zeros(1), 1 - rank)
        finally:
            dist.send(torch.ones(1), 1 - rank)

    assert errors(outcomes(2, body)) == [Stalled, Stalled]


def test_polling_for_what_nobody_will_send_stalls() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            work = dist.irecv(torch.zeros(1), 1)
            assert work is not None
            while not work.is_completed():
                pass

    assert errors(outcomes(2, body)) == [Stalled, None]


def test_a_group_that_a_member_never_makes_stalls_its_makers() -> None:
    def body(rank: int) -> None:
        if rank < 2:
            dist.new_group([0, 1, 2])

    assert errors(outcomes(3, body)) == [Stalled, Stalled, None]


def test_groups_used_in_different_orders_stall() -> None:
    def body(rank: int) -> None:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups if rank == 0 else groups[::-1]:
            dist.barrier(group=group)

    assert errors(outcomes(2, body)) == [Stalled, Stalled]


# Calls that do not fit


def reduce_one(
    length: int = 4, dtype: torch.dtype = torch.float32, op: str = "SUM"
) -> None:
    dist.all_reduce(torch.ones(length, dtype=dtype), op=getattr(dist.ReduceOp, op))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: reduce_one(5), [r"\(4,\)", r"\(5,\)"]),
        (lambda: reduce_one(dtype=torch.int32), ["float32", "int32"]),
        (lambda: reduce_one(op="MAX"), ["SUM", "MAX"]),
        (lambda: dist.broadcast(torch.ones(4), 0), ["all_reduce", "broadcast"]),
        (lambda: dist.barrier(), ["all_reduce", "barrier"]),
    ],
)
def test_collectives_that_differ_are_told_with_both_calls(
    other: Callable[[], None], words: list[str]
) -> None:
    untouched = torch.arange(4.0)

    def body(rank: int) -> list[float]:
        dist.barrier()
        mine = untouched.clone()
        try:
            other() if rank == 2 else dist.all_reduce(mine)
        except MismatchError as error:
            assert mine.tolist() == untouched.tolist()
            raise error
        return mine.tolist()

    for outcome in outcomes(3, body):
        assert isinstance(outcome.error, MismatchError)
        for word in [*words, "rank 0", "rank 2", "call 2"]:
            assert outcome.error.args[0].find(word.replace("\\", "")) >= 0


def test_different_roots_do_not_fit() -> None:
    found = outcomes(2, lambda rank: dist.broadcast(torch.ones(1), rank))
    assert errors(found) == [MismatchError] * 2


def test_splits_that_do_not_meet_are_told_by_pair() -> None:
    def body(rank: int) -> None:
        sends = [1, 2] if rank == 0 else [2, 2]
        wants = [1, 2]
        dist.all_to_all_single(
            torch.zeros(sum(wants)), torch.ones(sum(sends)), wants, sends
        )

    for outcome in outcomes(2, body):
        assert isinstance(outcome.error, MismatchError)
        assert "rank 0 sends 2 elements to rank 1, which expects 1" in str(
            outcome.error
        )


def test_a_message_of_another_size_is_told_with_both_shapes() -> None:
    def body(rank: int) -> list[float]:
        mine = torch.full((3 + rank,), 7.0)
        if rank == 0:
            dist.send(mine, 1)
        else:
            with pytest.raises(MismatchError, match=r"rank 0 sent .*\(3,\).*\(4,\)"):
                dist.recv(mine, 0)
        return mine.tolist()

    assert results(2, body) == [[7.0] * 3, [7.0] * 4]


def test_pieces_that_cannot_be_are_refused_before_anything_moves() -> None:
    def body(rank: int) -> None:
        ones = torch.ones(2)
        for call in (
            lambda: dist.all_gather([torch.ones(2), torch.ones(3)], ones),
            lambda: all_gather_single(torch.ones(5), ones),
            lambda: reduce_scatter_single(torch.ones(3), torch.ones(4)),
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
            lambda: dist.all_to_all_single(ones, ones, [1, 2], [1, 1]),
            lambda: dist.all_to_all([ones], [ones]),
        ):
            with pytest.raises((RuntimeError, ValueError)):
                call()
        dist.barrier()

    results(2, body)


# Ranks that stay


@pytest.fixture
def ranks() -> Iterator[ThreadRanks]:
    with ThreadRanks(3, recorders=recorders(3)) as kept:
        yield kept


def test_groups_and_random_streams_last_from_run_to_run(ranks: ThreadRanks) -> None:
    kept: dict[int, Any] = {}

    def first(rank: int) -> float:
        kept[rank] = dist.new_group([0, 1, 2])
        return torch.rand(1).item()

    def second(rank: int) -> tuple[float, float]:
        mine = torch.ones(1)
        dist.all_reduce(mine, group=kept[rank])
        return mine.item(), torch.rand(1).item()

    before = [each.value for each in ranks.run(first)]
    after = [each.value for each in ranks.run(second)]
    assert [each[0] for each in after if each] == [3.0] * 3
    in_one = results(3, lambda rank: (torch.rand(1).item(), torch.rand(1).item()))
    assert in_one == [
        (one, each[1]) for one, each in zip(before, after, strict=True) if each
    ]


def test_at_rest_unless_something_is_under_way(ranks: ThreadRanks) -> None:
    ranks.run(lambda rank: dist.barrier())
    assert ranks.at_rest

    def sends(rank: int) -> None:
        if rank == 0:
            dist.send(torch.ones(1), 1)

    ranks.run(sends)
    assert not ranks.at_rest


def test_only_the_ranks_that_are_asked_run(ranks: ThreadRanks) -> None:
    found = ranks.run(lambda rank: dist.get_world_size(), ranks=[2, 0])
    assert [(each.rank, each.value) for each in found] == [(2, 3), (0, 3)]
    found = ranks.run(lambda rank: dist.barrier(), ranks=[0, 1])
    assert errors(found) == [Stalled, Stalled]
    assert not ranks.at_rest


def test_ranks_that_stalled_do_not_run_again(ranks: ThreadRanks) -> None:
    ranks.run(lambda rank: dist.recv(torch.zeros(1), (rank + 1) % 3))
    with pytest.raises(UsageError, match="Make new ones"):
        ranks.run(lambda rank: None)


def test_a_script_that_makes_and_ends_its_world_may_run_twice(
    ranks: ThreadRanks,
) -> None:
    def script(rank: int) -> int:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
        return dist.get_rank()

    for _ in range(2):
        assert [each.value for each in ranks.run(script)] == [0, 1, 2]


@pytest.mark.parametrize("chosen", [[], [3], [0, -1]])
def test_ranks_that_are_not_there_are_refused(
    ranks: ThreadRanks, chosen: list[int]
) -> None:
    with pytest.raises(UsageError, match="0 to 2"):
        ranks.run(lambda rank: None, ranks=chosen)


def test_ranks_that_run_cannot_be_asked_to_run_at_once(ranks: ThreadRanks) -> None:
    found = ranks.run(lambda rank: ranks.run(lambda inner: inner))
    assert errors(found) == [UsageError] * 3


def test_a_world_that_cannot_be_made_is_told_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    make = ThreadRanks._make_group

    def break_on_1(self: ThreadRanks, rank: int, options: Any) -> Any:
        if rank == 1:
            raise OSError("no room")
        return make(self, rank, options)

    monkeypatch.setattr(ThreadRanks, "_make_group", break_on_1)
    with pytest.raises(OSError, match="no room"):
        ThreadRanks(3, recorders=recorders(3))
    assert threading.active_count() == before


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ThreadRanks(0, recorders=[])
    with pytest.raises(UsageError, match="each of the 2"):
        ThreadRanks(2, recorders=recorders(1))


# What is recorded


def test_each_rank_is_recorded_on_lane_0_with_its_waits() -> None:
    kept = recorders(2)
    with ThreadRanks(2, recorders=kept) as both:
        both.run(lambda rank: dist.all_reduce(torch.ones(3)))
    for recorder in kept:
        events = recorder.drain()
        group = next(each for each in events if isinstance(each, NewGroup))
        assert group.ranks == (0, 1)
        (comm,) = [each for each in events if isinstance(each, CommStart)]
        assert (comm.kind, comm.shapes, comm.lane) == ("all_reduce", ((3,),), 0)
        assert comm.site is not None
        assert comm.site.filename == __file__
        waits = [e for e in events if isinstance(e, WaitStart | WaitEnd)]
        assert [each.target for each in waits] == [comm.id, comm.id]


def test_hooks_are_called_for_their_rank() -> None:
    seen: list[tuple[int, str]] = []
    hooks = [
        Hooks(before_issue=lambda kind, rank=rank: seen.append((rank, kind)))
        for rank in range(2)
    ]
    results(2, lambda rank: dist.barrier(), hooks=hooks)
    assert sorted(seen) == [(0, "barrier"), (1, "barrier")]


def test_a_helper_thread_cannot_communicate_for_its_rank() -> None:
    def body(rank: int) -> list[str]:
        world, said = dist.group.WORLD, []
        assert world is not None

        def call() -> None:
            try:
                world.barrier().wait()
            except RuntimeError as error:
                said.append(str(error))

        helper = threading.Thread(target=call)
        helper.start()
        helper.join()
        return said

    (said,) = results(1, body)
    assert "from that thread alone" in said[0]


def test_a_thousand_elements_of_each_kind_of_number_survive() -> None:
    """A larger case than the matrix, in float64, against closed forms."""

    def body(rank: int) -> float:
        mine = torch.arange(1000, dtype=torch.float64) * (rank + 1)
        dist.all_reduce(mine)
        return mine.sum().item()

    assert results(4, body) == [pytest.approx(math.fsum(range(1000)) * 10)] * 4
