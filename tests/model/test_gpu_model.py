"""On a GPU the same model starts, computes and trains as on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from labkit.model.data import packed_rows, padded_rows
from labkit.model.decoder import Decoder
from labkit.model.initial import initialise
from labkit.model.serial import Recipe, make_optimizer, train_step
from labkit.model.sizes import SMALL, TINY

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("packed", [False, True])
def test_a_model_on_a_gpu_computes_what_it_does_on_a_cpu(packed: bool) -> None:
    with torch.device("meta"):
        on_gpu = Decoder(SMALL)
    initialise(on_gpu, 0, "cuda")
    on_cpu = initialise(Decoder(SMALL), 0)
    for one, other in zip(on_gpu.parameters(), on_cpu.parameters(), strict=True):
        assert torch.equal(one.cpu(), other)
    batch = (packed_rows if packed else padded_rows)(4, 128).batch(range(4))
    right_BTV = on_cpu.double()(batch.tokens_BT, batch.documents_BT)
    moved = batch.to("cuda")
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.03)):
        got_BTV = on_gpu.to(dtype)(moved.tokens_BT, moved.documents_BT).cpu()
        assert (got_BTV - right_BTV).norm() < tolerance * right_BTV.norm()


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
def test_five_steps_on_a_gpu_are_those_on_a_cpu(
    compute_dtype: torch.dtype | None,
) -> None:
    recipe = Recipe(lr=1e-3, compute_dtype=compute_dtype)
    parts = packed_rows(6, 64).batch(range(6)).split(2)
    losses: list[list[float]] = []
    for device in ("cpu", "cuda"):
        model = initialise(Decoder(replace(TINY, tied=True)), 0).to(device)
        assert model.head.weight is model.embed.weight
        optimizer = make_optimizer(model.parameters(), recipe)
        there = [part.to(device) for part in parts]
        steps = [train_step(model, optimizer, there, recipe) for _ in range(5)]
        losses.append([step.loss.item() for step in steps])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if compute_dtype else 1e-4)
    assert losses[0][-1] < losses[0][0]
