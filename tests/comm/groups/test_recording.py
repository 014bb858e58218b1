"""The recording group sees all of torch.distributed, changes nothing, alarms nobody."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit import Cluster, Run
from labkit.comm.groups import backend, recording
from labkit.record.events import CommStart, NewGroup, WaitEnd, WaitStart
from labkit.record.program import Comm
from tests.comm.groups import torch_programs
from tests.comm.groups.torch_programs import PROGRAMS, WORLD_SIZE, mine, named
from tests.runtime.lines import line_of

pytestmark = pytest.mark.timeout(120)
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(WORLD_SIZE, quiet=True) as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What every program gives on a gloo world that labkit has no part in."""
    folder = tmp_path_factory.mktemp("plain")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(torch_programs.__file__), str(folder)],
        check=False, timeout=110, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [
        pickle.loads((folder / f"results-{rank}").read_bytes())
        for rank in range(WORLD_SIZE)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_RT_34_a_program_of_torchs_own_is_unchanged_and_unreported(
    cluster: Cluster, plain: Results, name: str
) -> None:
    """Bit by bit what plain gloo gives, and a run that ends without a report."""
    run = cluster.run(PROGRAMS[name])
    assert run.results == [results[name] for results in plain]
    assert any(isinstance(event, CommStart) for event in run.events[0])


@pytest.mark.grid
def test_RT_34_under_rendezvous_they_run_unreported_too(plain: Results) -> None:
    with Cluster(WORLD_SIZE, quiet=True, rendezvous=True) as cluster:
        for name, function in PROGRAMS.items():
            run = cluster.run(function)
            assert run.results == [results[name] for results in plain], name


@pytest.mark.slow
def test_no_program_costs_the_ranks_their_lives(cluster: Cluster) -> None:
    """All programs above left the ranks at rest: a typo now costs nothing."""
    before = cluster.run(os.getpid).results
    with pytest.raises(Exception, match=r"(?s)kept|ZeroDivision"):
        cluster.run_cell("1 / 0")
    assert cluster.run(os.getpid).results == before


def comms(run: Run, rank: int = 0) -> list[CommStart]:
    return [event for event in run.events[rank] if isinstance(event, CommStart)]


def one_of_each() -> None:
    rank = dist.get_rank()
    dist.all_reduce(mine(5), dist.ReduceOp.MAX)
    dist.broadcast(mine(2, 3), 1)
    dist.reduce(mine(4), 2)
    parts = [torch.empty(3) for _ in range(4)]
    dist.all_gather(parts, mine(3))
    dist.gather(mine(3), parts if rank == 3 else None, 3)
    dist.scatter(torch.empty(3), parts if rank == 3 else None, 3)
    dist.reduce_scatter(torch.empty(3), parts)
    dist.all_to_all_single(torch.empty(8), mine(8))
    dist.all_to_all(parts, [mine(3) for _ in range(4)])
    named("all_gather_single", "all_gather_into_tensor")(torch.empty(12), mine(3))
    named("reduce_scatter_single", "reduce_scatter_tensor")(torch.empty(3), mine(12))
    dist.barrier()


EXPECTED = [
    ("all_reduce", None, ((5,),), 20, "max"),
    ("broadcast", 1, ((2, 3),), 24, None),
    ("reduce", 2, ((4,),), 16, "sum"),
    ("all_gather", None, ((3,),), 12, None),
    ("gather", 3, ((3,),), 12, None),
    ("scatter", 3, ((3,),), 12, None),
    ("reduce_scatter", None, ((3,),) * 4, 48, "sum"),
    ("all_to_all", None, ((8,),), 32, None),
    ("all_to_all", None, ((3,),) * 4, 48, None),
    ("all_gather", None, ((3,),), 12, None),
    ("reduce_scatter", None, ((12,),), 48, "sum"),
    ("barrier", None, (), 0, None),
]


def test_every_collective_is_recorded_as_it_was_called(cluster: Cluster) -> None:
    run = cluster.run(one_of_each)
    for rank in range(WORLD_SIZE):
        calls = comms(run, rank)
        told = [(c.kind, c.peer, c.shapes, c.payload_bytes, c.op) for c in calls]
        assert told == EXPECTED
        first = calls[0].group_seq
        assert [c.group_seq for c in calls] == [*range(first, first + len(calls))]
        assert {c.dtype for c in calls} == {"float32", ""}
        assert {c.lane for c in calls} == {0}


def test_the_line_of_each_call_is_recorded(cluster: Cluster) -> None:
    lines, first = inspect.getsourcelines(one_of_each)
    expected = [
        first + i for i, line in enumerate(lines) if "dist." in line or "named" in line
    ]
    calls = comms(cluster.run(one_of_each))
    assert [c.site.line for c in calls if c.site] == expected[1:]
    assert {Path(c.site.filename) for c in calls if c.site} == {Path(__file__)}
    assert {c.site.function for c in calls if c.site} == {"one_of_each"}


def test_messages_are_recorded_with_peer_tag_and_number(cluster: Cluster) -> None:
    def talk() -> None:
        for tag in (0, 7, 7):
            if dist.get_rank() == 0:
                dist.send(mine(3), 2, tag=tag)
            elif dist.get_rank() == 2:
                dist.recv(torch.empty(3), 0, tag=tag)

    run = cluster.run(talk)
    sent, received = comms(run, 0), comms(run, 2)
    assert [(c.kind, c.peer, c.tag) for c in sent] == [
        ("send", 2, t) for t in (0, 7, 7)
    ]
    assert [(c.kind, c.peer, c.tag) for c in received] == [
        ("recv", 0, t) for t in (0, 7, 7)
    ]
    assert sent[2].pair_seq == sent[1].pair_seq + 1
    assert [c.pair_seq for c in sent] == [c.pair_seq for c in received]
    assert comms(run, 1) == []


def test_uneven_splits_are_recorded_in_elements(cluster: Cluster) -> None:
    def exchange() -> None:
        send, recv = [dist.get_rank() + 1] * 4, [1, 2, 3, 4]
        out = torch.empty(10, 2)
        dist.all_to_all_single(out, mine(sum(send), 2), recv, send)

    for rank in range(WORLD_SIZE):
        (call,) = comms(cluster.run(exchange), rank)
        assert call.send_splits == (2 * (rank + 1),) * 4
        assert call.recv_splits == (2, 4, 6, 8)


def test_a_group_is_recorded_with_its_global_ranks(cluster: Cluster) -> None:
    def use_group() -> None:
        group = dist.new_group([1, 3])
        if dist.get_rank() in (1, 3):
            dist.broadcast(mine(2), 3, group=group)

    run = cluster.run(use_group)
    made = {
        rank: [e for e in run.events[rank] if isinstance(e, NewGroup)]
        for rank in (0, 1)
    }
    assert made[0] == []
    assert [event.ranks for event in made[1]] == [(1, 3)]
    makes, call = comms(run, 1)
    assert (makes.kind, makes.shapes) == ("new_group", ((1, 3),))
    assert (call.kind, call.group, call.peer) == ("broadcast", made[1][0].uid, 3)


def test_a_wait_is_recorded_around_the_time_stood_still(cluster: Cluster) -> None:
    def reduce_late() -> None:
        work = dist.all_reduce(mine(2), async_op=True)
        sum(range(1000))
        work.wait()
        work.wait()

    events = cluster.run(reduce_late).events[0]
    call = next(event for event in events if isinstance(event, CommStart))
    waits = [e for e in events if isinstance(e, (WaitStart, WaitEnd))]
    assert [(type(e), e.target) for e in waits] == [
        (WaitStart, call.id),
        (WaitEnd, call.id),
    ]
    assert call.issued_s <= waits[0].at_s <= waits[1].at_s
    assert waits[1].ok  # type: ignore[union-attr]


def blocking_and_not(x: Tensor) -> None:
    """A blocking message and sum, then the same as handles, waited for at once."""
    rank = dist.get_rank()
    call, start = (dist.recv, dist.irecv) if rank % 2 else (dist.send, dist.isend)
    call(x, rank ^ 1)
    dist.all_reduce(x)
    for work in (start(x, rank ^ 1), dist.all_reduce(x, async_op=True)):
        assert work is not None
        work.wait()


def test_a_blocking_call_waits_from_when_it_was_made(cluster: Cluster) -> None:
    """What it does before it stands still is no compute of the rank's."""
    run = cluster.run(blocking_and_not, torch.ones(4))
    for rank in range(WORLD_SIZE):
        told = run.events[rank]
        issued = {e.id: e.issued_s for e in told if isinstance(e, CommStart)}
        late = [e.at_s > issued[e.target] for e in told if isinstance(e, WaitStart)]
        assert late == [False, False, True, True]
        calls = [e for e in run.record.of(rank) if isinstance(e, Comm)]
        assert [call.is_async for call in calls] == late


def test_a_tensor_goes_with_the_call_that_moved_it(cluster: Cluster) -> None:
    """Without the help of the garbage collector: memory is counted by what is held."""

    def is_held() -> bool:
        x = torch.ones(4)
        held = weakref.ref(x)
        gc.disable()
        blocking_and_not(x)
        del x
        gc.enable()
        return held() is not None

    assert cluster.run(is_held).results == [False] * WORLD_SIZE


@pytest.mark.slow
def test_the_reductions_of_ddp_are_seen_at_the_backward_pass(cluster: Cluster) -> None:
    def train() -> None:
        model = DistributedDataParallel(nn.Linear(8, 4))
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()

    reductions = [c for c in comms(cluster.run(train)) if c.kind == "all_reduce"]
    assert sum(c.payload_bytes for c in reductions) >= 4 * (8 * 4 + 4)
    site = reductions[-1].site
    assert site is not None
    place = f'File "{Path(site.filename).name}", line {site.line}: '
    assert line_of(train, "loss.backward()").startswith(place)


@pytest.mark.slow
def test_the_gathers_and_scatters_of_fsdp_are_counted(cluster: Cluster) -> None:
    run = cluster.run(PROGRAMS["fsdp"])
    kinds = Counter(c.kind for c in comms(run))
    # Two layers, three steps: each gathered twice (forward, backward), reduced once;
    # and each of the four parameters gathered at the end. The root holds nothing.
    assert kinds["all_gather"] >= 2 * 3 + 4
    assert kinds["reduce_scatter"] == 2 * 3
    assert kinds["all_reduce"] == 0


def test_learners_read_the_backend_and_the_group_that_they_expect(
    cluster: Cluster,
) -> None:
    def look() -> Any:
        group = dist.new_group([0, 1, 2, 3])
        return (
            dist.get_backend(),
            dist.get_backend(group),
            dist.get_world_size(group),
            dist.get_process_group_ranks(group),
            dist.is_initialized(),
            dist.get_node_local_rank(),
        )

    for rank, told in enumerate(cluster.run(look).results):
        assert told == ("gloo", "gloo", 4, [0, 1, 2, 3], True, rank)


def test_a_script_may_make_and_end_the_world_as_torchrun_scripts_do(
    cluster: Cluster,
) -> None:
    def script() -> float:
        dist.init_process_group("gloo")
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()

    for _ in range(2):
        assert cluster.run(script).results == [6.0] * 4


@pytest.mark.parametrize("name", ["_new_process_group_helper", "_new_group_with_tag"])
def test_the_private_names_of_torch_that_are_wrapped_exist(name: str) -> None:
    """See [Note: private names] in backend.py."""
    assert callable(getattr(c10d, name))
    assert f"c10d.{name}" in inspect.getsource(backend)


def test_the_wrapped_helpers_take_what_backend_hands_on() -> None:
    parameters = list(inspect.signature(c10d._new_process_group_helper).parameters)
    assert parameters[:4] == [
        "group_size",
        "group_rank",
        "global_ranks_in_group",
        "backend",
    ]
    assert next(iter(inspect.signature(c10d._new_group_with_tag).parameters)) == "ranks"


TRANSFERS = (
    "reduce",
    "gather",
    "scatter",
    "broadcast",
    "all",
    "send",
    "recv",
    "barrier",
)


def test_every_transfer_that_a_process_group_has_is_recorded() -> None:
    """A method that torch adds, or renames again, must not slip by unseen."""
    public = [
        name
        for name in dir(dist.ProcessGroup)
        if name.removeprefix("_").startswith(TRANSFERS)
    ]
    assert len(public) > 20
    missing = [name for name in public if name not in vars(recording.RecordingGroup)]
    assert missing == []
