"""The memory ledger beside CUDA's own count: `make test-gpu` runs this."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit import Cluster
from labkit.record.holdings import held, peaks
from labkit.record.recorder import span

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


def train() -> tuple[dict[str, int], int]:
    """Two steps; what CUDA counts after each part, and at most, less what was there."""
    # A matrix product's first call keeps a workspace, which is no tensor of ours.
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    counted: dict[str, int] = {}
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(1024, 1024, device="cuda") for _ in range(8)), nn.ReLU()
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, 1024, device="cuda")
    for _ in range(2):
        with span("forward"):
            loss = model(x).square().mean()
        counted["forward"] = torch.cuda.memory_allocated() - before
        with span("backward"):
            loss.backward()
        counted["backward"] = torch.cuda.memory_allocated() - before
        with span("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        counted["optimizer"] = torch.cuda.memory_allocated() - before
    return counted, torch.cuda.max_memory_allocated() - before


def test_the_ledger_equals_cudas_own_count() -> None:
    with Cluster(1, quiet=True) as cluster:
        run = cluster.run(train, record="work")
    counted, most = run.results[0]
    for name, num_bytes in counted.items():
        (found,) = held(run.record, after=name)
        assert found is not None
        assert found.total_bytes == pytest.approx(num_bytes, rel=0.05), name
    (peak,) = peaks(run.record)
    assert peak.total_bytes == pytest.approx(most, rel=0.05)
    assert most > 100e6
