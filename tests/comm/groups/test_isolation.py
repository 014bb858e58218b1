"""What a process has once, each rank has for itself, and the process gets back."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import _functional_collectives as functional

from labkit.comm.groups import backend, isolation
from labkit.comm.groups.threads import Stalled, ThreadRanks
from labkit.record.recorder import Recorder
from tests.comm.groups.threaded import errors, recorders, results

pytestmark = pytest.mark.timeout(60)

Draw = Callable[[], float]
DRAWS: dict[str, Draw] = {
    "torch": lambda: torch.randn(1).item(),
    "python": random.random,
    "python's pairs": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy's pairs": np.random.randn,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_rank_draws_from_a_stream_of_its_own(draw: Draw) -> None:
    """Other ranks draw in between, and more often; the stream does not notice."""

    def alone(rank: int) -> list[float]:
        return [draw() for _ in range(6)]

    def among_others(rank: int) -> list[float]:
        found = []
        for at in range(6):
            found.append(draw())
            dist.barrier()
            if at % 2 == rank % 2:
                dist.barrier(
                    group=dist.new_group([rank], use_local_synchronization=True)
                )
        return found

    streams = results(3, alone)
    assert results(3, among_others) == streams
    assert len({tuple(stream) for stream in streams}) == 3


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_gives_every_rank_the_same_stream(draw: Draw) -> None:
    def body(rank: int) -> list[float]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        found = []
        for _ in range(3):
            found.append(draw())
            dist.barrier()
        return found

    def here() -> list[float]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        return [draw() for _ in range(3)]

    assert results(3, body) == [here()] * 3


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_process_goes_on_where_it_was(draw: Draw) -> None:
    def stream(between: Callable[[], Any]) -> list[float]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        first = draw()
        between()
        return [first, draw(), draw()]

    plain = stream(lambda: None)
    assert stream(lambda: results(2, lambda rank: draw())) == plain


def test_another_kind_of_numpy_generator_stays_with_its_rank() -> None:
    def body(rank: int) -> list[float]:
        if rank == 0:
            np.random.set_bit_generator(np.random.PCG64(7))  # type: ignore[attr-defined]
        found = []
        for _ in range(2):
            found.append(np.random.rand())
            dist.barrier()
        return found

    expected = np.random.RandomState(np.random.PCG64(7))
    first, second = results(2, body)
    assert first == [expected.rand(), expected.rand()]
    assert second == results(2, lambda rank: [np.random.rand(), np.random.rand()])[1]


def test_default_dtype_and_environment_are_the_ranks_own() -> None:
    before = torch.get_default_dtype(), os.environ.get("RANK")

    def body(rank: int) -> tuple[Any, ...]:
        if rank == 1:
            torch.set_default_dtype(torch.float64)
        dist.barrier()
        variables = [os.environ[f"{name}RANK"] for name in ("", "LOCAL_")]
        return torch.ones(1).dtype, *variables, os.environ["WORLD_SIZE"]

    assert results(3, body) == [
        (torch.float32, "0", "0", "3"),
        (torch.float64, "1", "1", "3"),
        (torch.float32, "2", "2", "3"),
    ]
    assert (torch.get_default_dtype(), os.environ.get("RANK")) == before


def test_torch_is_as_it_was_afterwards() -> None:
    def everything() -> tuple[Any, ...]:
        functions = dist.init_process_group, c10d.destroy_process_group
        return c10d._world, sys.excepthook, *functions, dist.is_initialized()

    before = everything()
    results(2, lambda rank: dist.barrier())
    assert everything() == before
    assert before[-1] is False


def test_a_world_of_this_process_lasts_beside_that_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under = backend.Under("gloo", backend.gloo, Recorder())
    monkeypatch.setattr(backend, "_process_under", under)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert results(3, lambda rank: dist.get_world_size()) == [3, 3, 3]
        assert dist.get_world_size() == 1
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == 1
    finally:
        dist.destroy_process_group()


def test_ranks_may_be_made_inside_a_rank() -> None:
    def inner(rank: int) -> float:
        mine = torch.ones(1)
        dist.all_reduce(mine)
        return mine.item()

    def outer(rank: int) -> tuple[int, list[float], list[float]]:
        below = results(3, inner)
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        summed = functional.all_reduce(torch.ones(1), "sum", name)
        return dist.get_rank(), below, summed.tolist()

    assert results(2, outer) == [(0, [3.0] * 3, [2.0]), (1, [3.0] * 3, [2.0])]


def test_a_barrier_in_c_plus_plus_after_init_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    assert results(2, lambda rank: dist.new_group([0, 1]).size()) == [2, 2]
    assert os.environ["TORCH_DIST_INIT_BARRIER"] == "1"


def test_dispatch_modes_of_a_rank_do_not_see_the_transfers_of_others() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def body(rank: int) -> list[str]:
        mine = torch.ones(4)
        with Seen() as seen:
            dist.all_reduce(mine)
        return seen.names

    assert results(3, body) == [[], [], []]


def test_a_rank_in_inference_mode_may_receive_from_one_that_is_not() -> None:
    def body(rank: int) -> float:
        with torch.inference_mode(rank == 0):
            mine = torch.ones(2)
            dist.all_reduce(mine)
            return mine.sum().item()

    assert results(3, body) == [6.0] * 3


def test_an_interrupt_gives_the_process_back_and_spends_the_ranks() -> None:
    stopped = threading.Event()
    state = random.getstate()
    seen: list[type[BaseException]] = []

    def body(rank: int) -> None:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
            stopped.wait()
        try:
            dist.recv(torch.zeros(1), 1 - rank)
        except BaseException as error:
            seen.append(type(error))
            raise

    ranks = ThreadRanks(2, recorders=recorders(2))
    with pytest.raises(KeyboardInterrupt):
        ranks.run(body)
    stopped.set()
    assert random.getstate() == state
    assert not ranks.at_rest
    for thread in threading.enumerate():
        if thread.name == "rank 1":
            thread.join(0.5)
    assert set(seen) <= {Stalled, ValueError}
    ranks.close()


def test_errors_of_a_body_do_not_leave_the_world_changed() -> None:
    world = c10d._world
    with ThreadRanks(2, recorders=recorders(2)) as ranks:
        found = ranks.run(lambda rank: sys.exit(3))
        assert errors(found) == [SystemExit, SystemExit]
        assert ranks.at_rest
    assert c10d._world is world


def test_many_programs_leave_no_threads_behind() -> None:
    before = threading.active_count()
    for _ in range(30):
        results(3, lambda rank: dist.barrier())
    assert threading.active_count() == before


def test_private_names_of_torch_are_where_they_were() -> None:
    for owner, name in (
        (c10d, "_world"),
        (c10d, "_World"),
        (isolation._native, "_set_thread_isolation_mode"),
        (isolation._native, "FakeProcessGroup"),
        (torch._C, "_current_graph_task_id"),
        (torch._C, "_DisableTorchDispatch"),
        (torch._C, "_InferenceMode"),
    ):
        assert hasattr(owner, name), f"torch {torch.__version__} has no {name}"
    assert hasattr(isolation._native.FakeProcessGroup.Options(), "error_on_collective")
