"""First values depend on name and seed alone: any rank draws any part of any model."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from labkit.errors import UsageError
from labkit.model import initial, seeds
from labkit.model.decoder import Decoder
from labkit.model.initial import draw, first_value, initialise
from labkit.model.sizes import TINY, WIDE_4B, Sizes
from tests.model.variants import holds_and_catches

TIED = replace(TINY, tied=True)


def on_meta(sizes: Sizes) -> Decoder:
    with torch.device("meta"):
        return Decoder(sizes)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )


def a_start_on_meta_is_a_plain_start(module: ModuleType) -> None:
    """FS-13, FS-14: drawn once, all of it, ties and freezing kept."""
    for sizes in (TINY, TIED):
        plain, meta = Decoder(sizes), on_meta(sizes)
        meta.blocks[0].requires_grad_(False)
        module.initialise(plain, 5)
        assert module.initialise(meta, 5) is meta
        assert same(state(meta), state(plain))
        assert (meta.head.weight is meta.embed.weight) == sizes.tied
        assert list(dict(meta.named_parameters())) == list(
            dict(plain.named_parameters())
        )
        trains = [param.requires_grad for param in meta.blocks.parameters()]
        assert trains == [False] * 9 + [True] * 9
        tokens_BT = torch.arange(20).view(2, 10)
        assert torch.equal(meta(tokens_BT), plain(tokens_BT))
        once = state(plain)
        assert same(state(module.initialise(plain, 5)), once)
        assert not same(state(module.initialise(plain, 6)), once)


def test_a_start_on_meta_is_a_plain_start() -> None:
    holds_and_catches(a_start_on_meta_is_a_plain_start, initial, {
        "ties lost": ("if old not in made:", "if True:"),
        "all train": (", requires_grad=old.requires_grad)", ")"),
        "seed unused": ("seed_from(seed, name)", "seed_from(0, name)"),
        "one stream for all": (
            "torch.Generator().manual_seed(seed_from(seed, name))", "None"
        ),
        "never drawn": ("        old.copy_(value)", "        pass"),
    })  # fmt: skip


def test_fresh_memory_full_of_nan_is_filled_everywhere() -> None:
    """FS-14."""
    model = on_meta(TINY).to_empty(device="cpu")
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(float("nan"))
    initialise(model, 0)
    assert not any(param.isnan().any() for param in model.parameters())
    assert same(state(model), state(initialise(Decoder(TINY), 0)))
    assert model(torch.zeros(1, 8, dtype=torch.int64)).isfinite().all()


def test_a_tie_that_was_lost_on_the_way_is_told() -> None:
    untied = on_meta(TIED).to_empty(device="cpu")
    with pytest.raises(UsageError, match=r"one parameter; this model has 2.*on meta"):
        initialise(untied, 0)


def any_parameter_is_drawn_alone(module: ModuleType) -> None:
    whole = module.initialise(Decoder(TINY), 3)
    for name, param in reversed(list(whole.named_parameters())):
        alone = module.first_value(name, tuple(param.shape), TINY.layers, 3)
        assert torch.equal(alone, param)
        torch.randn(7)
        assert torch.equal(alone.chunk(4)[1], param.chunk(4)[1])
    shorter = module.initialise(Decoder(replace(TINY, layers=2, vocab=300)), 3)
    assert torch.equal(shorter.blocks[1].attn.q.weight, whole.blocks[1].attn.q.weight)


def test_any_parameter_is_drawn_alone_and_in_any_order() -> None:
    holds_and_catches(any_parameter_is_drawn_alone, initial, {
        "one stream for all": ("std, generator=generator)", "std)"),
        "depth forgotten": ("sizes.layers if isinstance(sizes, Sizes) else 1", "1"),
    })  # fmt: skip


def test_no_two_parameters_start_alike() -> None:
    drawn = [draw(name, (64,), 1.0, seed) for name in ("a", "b") for seed in (0, 1)]
    assert len({tuple(values.tolist()) for values in drawn}) == 4


def test_spreads_are_as_said() -> None:
    sizes = replace(TINY, width=128, ff=512, layers=8)
    model: Any = initialise(Decoder(sizes), 0)
    block = model.blocks[3]
    for weight, std in [
        (model.embed.weight, 0.02), (block.attn.q.weight, 0.02),
        (block.mlp.up.weight, 0.02), (model.head.weight, 0.02),
        (block.attn.o.weight, 0.02 / sqrt(16)),
        (block.mlp.down.weight, 0.02 / sqrt(16)),
    ]:  # fmt: skip
        assert weight.std().item() == pytest.approx(std, rel=0.03)
        assert abs(weight.mean().item()) < std / 50
    assert block.attn_norm.weight.eq(1).all()
    assert first_value("blocks.0.attn.q.bias", (4,), 8, 0).eq(0).all()


def every_type_and_device_starts_alike(module: ModuleType) -> None:
    exact = module.draw("w", (33, 5), 0.02, 1)
    for dtype in (torch.float64, torch.bfloat16):
        drawn = module.draw("w", (33, 5), 0.02, 1, dtype)
        assert drawn.dtype == dtype
        assert torch.equal(drawn, exact.to(dtype))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    with torch.device("meta"):
        assert torch.equal(module.draw("w", (33, 5), 0.02, 1), exact)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(module.draw("w", (33, 5), 0.02, 1), exact)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_type_starts_alike_and_no_other_state_moves() -> None:
    holds_and_catches(every_type_and_device_starts_alike, initial, {
        "drawn in its type": ("(shape, dtype=torch.float32", "(shape, dtype=dtype"),
        "drawn in the default type": ("(shape, dtype=torch.float32,", "(shape,"),
        "draws from the global state": ("torch.Generator().manual",
                                        "torch.default_generator.manual"),
    })  # fmt: skip


def test_parameters_of_shapes_without_elements_are_drawn_too() -> None:
    for shape in ((), (0, 4), (1, 1)):
        assert draw("w", shape, 0.02, 0).shape == shape


def test_billions_of_parameters_are_drawn_on_fake_tensors() -> None:
    with FakeTensorMode():
        model = initialise(on_meta(WIDE_4B), 0)
        assert {param.device.type for param in model.parameters()} == {"cpu"}
        assert sum(param.numel() for param in model.parameters()) == WIDE_4B.num_params


def seeds_differ_in_each_part(module: ModuleType) -> None:
    asked = [(0, "epoch", 1), (1, "epoch", 0), (0, "epoch", 11), (0, "epoch1", 1)]
    got = [module.seed_from(*parts) for parts in asked]
    assert len(set(got)) == len(got)
    # Written down: another process, another day, another machine.
    assert module.seed_from(0, "embed.weight") == EMBED_SEED


EMBED_SEED = 51695831146638130


def test_a_seed_depends_on_all_its_parts_and_on_nothing_else() -> None:
    holds_and_catches(seeds_differ_in_each_part, seeds, {
        "joined": ("repr(parts)", '"".join(map(str, parts))'),
        "first only": ("repr(parts)", "repr(parts[:2])"),
        "hash": ("int.from_bytes(sha256(repr(parts).encode()).digest()[:7])",
                 "hash(parts)"),
    })  # fmt: skip


def test_what_cannot_be_started_is_refused() -> None:
    with pytest.raises(UsageError, match=r"ReLU has 0\. Was a function's result"):
        initialise(nn.ReLU(), 0)
    with torch.device("meta"):
        norms = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(UsageError, match=r"1\.running_mean \(3,\) is on meta.*outside"):
        initialise(norms, 0)
    assert all(param.is_meta for param in norms.parameters())
