"""What sizes say of a model equals what is built and what torch counts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import labkit.record.costs  # noqa: F401  Gives torch the FLOPs of a CPU's attention.
from labkit.errors import UsageError
from labkit.model import sizes as sizes_module
from labkit.model.decoder import Decoder
from labkit.model.sizes import (
    LLAMA_3_8B,
    LLAMA_3_70B,
    SMALL,
    TINY,
    WIDE_4B,
    Sizes,
)
from tests.model.variants import holds_and_catches

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dataclasses.asdict(TINY),
    "tied": dataclasses.asdict(replace(TINY, tied=True)),
    "one key head": dataclasses.asdict(replace(TINY, kv_heads=1)),
    "every head its keys": dataclasses.asdict(replace(TINY, kv_heads=4, layers=1)),
    "heads of their own size": dataclasses.asdict(replace(TINY, own_head_size=6)),
}


def built(sizes: Sizes) -> Decoder:
    with torch.device("meta"):
        return Decoder(sizes)


def count(module: torch.nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


def parameters_are_those_built(module: ModuleType) -> None:
    for shape in SHAPES.values():
        sizes = module.Sizes(**shape)
        model = built(sizes)
        block: Any = model.blocks[0]
        assert sizes.head_size == (shape["own_head_size"] or 32 // 4)
        assert sizes.embed_params == count(model.embed)
        assert sizes.attention_params == count(block.attn)
        assert sizes.mlp_params == count(block.mlp)
        assert sizes.block_params == count(block)
        assert sizes.head_params == (0 if sizes.tied else count(model.head))
        assert sizes.num_params == count(model)


def test_parameters_are_those_of_the_built_model() -> None:
    holds_and_catches(parameters_are_those_built, sizes_module, {
        "a tied head counts again": ("return 0 if self.tied else", "return"),
        "no last norm": ("blocks + self.width + self", "blocks + self"),
        "keys as many as queries": (
            "(2 * self.heads + 2 * self.kv_heads)", "4 * self.heads"
        ),
        "two matrices in the MLP": ("return 3 * self.width", "return 2 * self.width"),
        "heads always width / heads": ("return self.own_head_size or", "return"),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "published"),
    [(LLAMA_3_8B, 8_030_261_248), (LLAMA_3_70B, 70_553_706_496)],
    ids=["8B", "70B"],
)
def test_real_shapes_have_the_published_number_of_parameters(
    sizes: Sizes, published: int
) -> None:
    assert sizes.num_params == published == count(built(sizes))


def test_presets_are_as_large_as_said() -> None:
    assert count(built(WIDE_4B)) == WIDE_4B.num_params == pytest.approx(4.3e9, rel=0.01)
    assert SMALL.num_params == pytest.approx(2.3e6, rel=0.02)
    assert (WIDE_4B.width, WIDE_4B.layers) == (8192, 8)


def flops_of(sizes: Any, rows: int, length: int, *, train: bool, packed: bool) -> int:
    """What torch counts of a forward, or of a step."""
    model = Decoder(sizes)
    tokens_BT = torch.zeros(rows, length, dtype=torch.int64)
    documents_BT = tokens_BT if packed else None
    with FlopCounterMode(display=False) as counter:
        logits_BTV = model(tokens_BT, documents_BT)
        if train:
            logits_BTV.sum().backward()
    return counter.get_total_flops()


def flops_are_those_counted(module: ModuleType) -> None:
    rows, length = 2, 24
    for number, shape in enumerate(SHAPES.values()):
        sizes = module.Sizes(**shape)
        packed = number % 2 == 1
        counted = flops_of(sizes, rows, length, train=False, packed=packed)
        assert counted == rows * length * sizes.flops_per_token(length)
    sizes = module.Sizes(**SHAPES["tiny"])
    counted = flops_of(sizes, rows, length, train=True, packed=False)
    # The backward of a fused attention computes the scores again: one product more.
    again = sizes.layers * 2 * length * sizes.heads * sizes.head_size
    assert counted == rows * length * (sizes.training_flops_per_token(length) + again)
    assert sizes.flops_per_token() == sizes.flops_per_token(sizes.seq_len)


def test_flops_are_those_that_torch_counts() -> None:
    holds_and_catches(flops_are_those_counted, sizes_module, {
        "no attention": ("scored * self.heads", "0 * self.heads"),
        "fewer scores by fewer key heads": (
            "scored * self.heads", "scored * self.kv_heads"
        ),
        "a tied head is free": ("2 * self.vocab * self.width", "2 * self.head_params"),
        "an add is none": ("return 2 * (self.att", "return (self.att"),
        "backward as much as forward": ("return 3 * self.fl", "return 2 * self.fl"),
    })  # fmt: skip


def test_causal_flops_are_those_of_the_tokens_that_are_seen() -> None:
    length, each = 24, TINY.layers * TINY.heads * TINY.head_size
    full = TINY.flops_per_token(length)
    causal = TINY.flops_per_token(length, causal=True)
    seen = sum(position + 1 for position in range(length))
    assert length * (full - causal) == 4 * each * (length**2 - seen)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kv_heads": 3}, r"heads \(4\) must divide by kv_heads \(3\).*\[1, 2, 4\]"),
        ({"heads": 5, "kv_heads": 5}, r"width \(32\) must divide by heads \(5\).*35"),
        (
            {"width": 12},
            r"must be even; it is 3 \(width 12, 4 heads\).*own_head_size=4",
        ),
        ({"layers": 0}, "layers must be a whole number of at least 1; got 0"),
        ({"ff": 2.5}, r"ff must be a whole number of at least 1; got 2\.5"),
        ({"vocab": True}, "vocab must be a whole number of at least 1; got True"),
        ({"own_head_size": 0}, "own_head_size must be a whole number"),
        ({"rotary_base": 1.0}, r"rotary_base must be more than 1; got 1\.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        replace(TINY, **change)


def test_a_changed_width_changes_the_heads() -> None:
    assert replace(TINY, width=64).head_size == 2 * TINY.head_size
    with pytest.raises(dataclasses.FrozenInstanceError):
        TINY.width = 64  # pyright: ignore[reportAttributeAccessIssue]


def test_sizes_need_no_torch() -> None:
    code = "import sys, labkit.model.sizes; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
