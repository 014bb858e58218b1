"""What a run is asked: replay by name, what-if, and what both say below the picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit import Cluster, load, span
from labkit.errors import UsageError
from labkit.replay import measured
from labkit.replay.catalog import hardware
from labkit.replay.machine import AlphaBeta
from labkit.runtime.recorded import Recorded, Replay
from tests.replay.test_measured import COMM, COMPUTE

BIG, TOY = (6656, 8, 4096), (256, 8, 64)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, quiet=True) as made:
        yield made


def training_step(dim: int, layers: int, batch: int, *, overlaps: bool) -> None:
    """Data parallelism: gradients go out during backward, or one by one after it."""
    blocks = nn.Sequential(*(
        nn.Sequential(nn.Linear(dim, 6 * dim, bias=False), nn.GELU(),
                      nn.Linear(6 * dim, dim, bias=False))
        for _ in range(layers)
    )).to(torch.bfloat16)  # fmt: skip
    works = []
    if overlaps:
        for parameter in blocks.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
            )
    optimizer = torch.optim.AdamW(blocks.parameters())
    x = torch.randn(batch, dim, dtype=torch.bfloat16)
    with span("step"):
        blocks(x).square().mean().backward()
        for parameter in blocks.parameters():
            if not overlaps:
                dist.all_reduce(parameter.grad)
        for work in works:
            work.wait()
        optimizer.step()


def both(cluster: Cluster, sizes: tuple[int, int, int]) -> tuple[Replay, Replay]:
    """The naive step and the overlapped one on eight ranks of an H100 node."""
    naive, overlapped = (
        cluster.dry(training_step, *sizes, overlaps=overlaps, world_size=8)
        for overlaps in (False, True)
    )
    return naive.replay("dgx-h100"), overlapped.replay("dgx-h100")


@pytest.mark.slow
def test_overlap_gains_ten_percent_of_four_billion_parameters(cluster: Cluster) -> None:
    naive, overlapped = (found.measure() for found in both(cluster, BIG))
    assert naive.exposed_s > 10 * overlapped.exposed_s
    assert overlapped.step_s <= 0.9 * naive.step_s
    # All that is gained is communication that no longer shows.
    gained_s = naive.step_s - overlapped.step_s
    assert gained_s == pytest.approx(naive.exposed_s - overlapped.exposed_s, rel=0.05)


@pytest.mark.slow
def test_a_toy_is_launch_bound_and_says_so(cluster: Cluster) -> None:
    naive, overlapped = both(cluster, TOY)
    for found in (naive, overlapped):
        assert "launch-bound" in found.caption
        assert "launch-bound" in found.timeline().text
        assert "launch-bound" in repr(found)
    gain = 1 - overlapped.measure().step_s / naive.measure().step_s
    assert gain < 0.05


def tiny() -> None:
    """A product, its sum over ranks, a product."""
    x = torch.randn(16, 16)
    with span("step"):
        dist.all_reduce(x @ x)
        _ = x @ x


def test_a_replay_is_asked_as_a_run_is(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.dry(tiny)
    found = run.replay("dgx-a100")
    assert isinstance(found, Recorded)
    assert found.record == run.replay(hardware("dgx-a100")).record
    assert found.record.header.hardware == "dgx-a100"
    assert found.measure().step_s > 0
    assert {row.kind for row in found.rows()} == {"compute", "transfer"}
    assert load(found.save(tmp_path / "replayed.rec")).record == found.record
    # A replay can be replayed: nothing of the machine before is left.
    assert found.replay("dgx-h100").record == run.replay("dgx-h100").record
    assert len(repr(found)) < 1000


def test_the_picture_says_what_the_model_leaves_out(cluster: Cluster) -> None:
    found = cluster.dry(tiny).replay("dgx-h100")
    text = found.timeline("tiny").text
    assert text.startswith("tiny\n2 ranks")
    assert "computed by a model of dgx-h100, not measured" in text
    for note in hardware("dgx-h100").notes:
        assert note in text


def test_the_panel_starts_at_the_machine_and_follows_the_sliders(
    cluster: Cluster,
) -> None:
    run = cluster.dry(tiny)
    panel = run.whatif("dgx-h100")
    try:
        machine = hardware("dgx-h100")
        assert panel.program == run.replay(machine).record
        assert panel.settings.ranks_per_node == 8
        assert "launch-bound" in panel.still(panel.program, "as it is").text
        slower = panel.settings._replace(latency_s=1e-3)
        turned = panel.question.retime(slower)
        assert turned == run.replay(machine.with_(latency_s=1e-3)).record
        assert "Left out" in panel.question.caption(turned)
    finally:
        panel.close()


def test_this_machine_can_be_asked_too(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = cluster.dry(tiny)
    with pytest.raises(UsageError, match="labkit bench compute"):
        run.replay("this machine")
    measured.store("compute", COMPUTE)
    measured.store("comm", COMM)
    assert "more ranks than cores" in run.replay("this machine").caption
    panel = run.whatif("this machine")
    try:
        assert panel.program == run.replay("this machine").record
        assert 8 in panel.question.node_sizes
    finally:
        panel.close()


def test_machines_that_are_not_there_are_refused(cluster: Cluster) -> None:
    run = cluster.dry(tiny)
    for ask in (run.replay, run.whatif):
        with pytest.raises(UsageError, match=r"one of: dgx-v100.*'dgx-h10'"):
            ask("dgx-h10")
    with pytest.raises(UsageError, match="AlphaBeta has none"):
        run.whatif(AlphaBeta())  # pyright: ignore[reportArgumentType]


def test_a_record_without_times_names_the_call(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r'run.replay\("dgx-h100"\)'):
        cluster.dry(tiny).timeline()
