"""How a record is looked at: memory, holdings, traffic, beside another, in Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit import Cluster, span
from labkit.errors import UsageError
from labkit.replay.machine import AlphaBeta
from labkit.runtime.cluster import Run

WIDTH = 64
PARAMETER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
MACHINE = AlphaBeta(alpha_s=1e-3, is_cpu=True, name="slow links")


def train(steps: int = 2) -> None:
    """Data parallelism by hand: one all_reduce a parameter."""
    model = nn.Linear(WIDTH, WIDTH)
    for _ in range(steps):
        with span("step"):
            with span("backward"):
                model(torch.ones(8, WIDTH)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            model.zero_grad()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, quiet=True) as made:
        yield made


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Run:
    return cluster.run(train, record="work")


def test_holdings_are_what_the_program_made(run: Run) -> None:
    after = run.holdings(after="backward", step=0)
    assert after.columns[:3] == ("holder", "parameters", "gradients")
    for rank, row in enumerate(after.rows):
        texts = [cell.text for cell in row]
        assert texts[:3] == [f"rank {rank}", "16.2 KiB", "16.2 KiB"]
    assert run.holdings().columns[1] == "parameters"
    assert "gradients" not in run.holdings().columns


def test_a_collective_has_let_go_of_its_tensors_when_its_wait_is_over(
    cluster: Cluster,
) -> None:
    many = 20
    run = cluster.run(train, many, record="work")
    for step in range(many):
        assert "gradients" not in run.holdings(after="step", step=step).columns


@pytest.mark.slow
def test_a_dry_run_tells_of_memory_without_a_machine(cluster: Cluster) -> None:
    dry = cluster.dry(train, world_size=4)
    assert [row[1].text for row in dry.holdings().rows] == ["16.2 KiB"] * 4
    assert "Highest peak: rank 0" in dry.memory().text
    assert dry.replay(MACHINE).memory(rank=3).text == dry.replay(MACHINE).memory().text


def test_the_picture_of_memory_is_of_a_real_run(run: Run) -> None:
    still = run.memory(title="Memory")
    assert still.text.startswith("Memory\nHighest peak: rank ")
    assert "parameters 16.2 KiB" in still.text


def test_traffic_is_counted_to_the_byte(run: Run) -> None:
    rows = [[cell.text for cell in row] for row in run.traffic().rows]
    reduces = [row for row in rows if row[1] == "all_reduce"]
    assert [row[0] for row in reduces] == ["rank 0", "rank 1"]
    for row in reduces:
        assert row[4] == "4"
        assert row[5].endswith(f"({2 * PARAMETER_BYTES:,})")


def test_a_run_beside_what_a_machine_would_make_of_it(run: Run) -> None:
    by_machine = run.compare(MACHINE, title="Beside a model")
    assert by_machine.text.startswith("Beside a model\nMeasured and predicted: step")
    replayed = run.replay(MACHINE)
    assert run.compare(replayed).text == run.compare(replayed.record).text
    assert by_machine.text.splitlines()[1:] == run.compare(replayed).text.splitlines()


def test_a_light_record_keeps_its_compute_beside_a_machine(cluster: Cluster) -> None:
    light = cluster.run(train)
    assert "Measured and predicted: step time " in light.compare(MACHINE).text
    with pytest.raises(UsageError, match='record="work"'):
        light.compare(MACHINE, compute="by cost")
    for look in (light.memory, light.holdings):
        with pytest.raises(UsageError, match='record="work"'):
            look()


def test_a_trace_opens_in_perfetto(run: Run, tmp_path: Path) -> None:
    path = run.perfetto(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    assert sum(e.get("cat") == "transfer" for e in events) == 2 * 4
    assert {"backward", "train()"} <= {e["name"] for e in events}
    assert any(event["ph"] == "C" for event in events)
