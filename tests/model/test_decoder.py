"""The decoder against the papers' formulas in float64, and what it promises beside."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from labkit.errors import UsageError
from labkit.model import decoder
from labkit.model.decoder import Decoder, sum_of_token_losses
from labkit.model.initial import initialise
from labkit.model.sizes import TINY, WIDE_4B, Sizes
from tests.model import reference
from tests.model.variants import holds_and_catches

B, T = 2, 13
DOCUMENTS_BT = torch.tensor([[0] * 5 + [1] * 8, [3] * 1 + [4] * 6 + [5] * 6])
SHAPES = {
    "tiny": TINY,
    "tied": replace(TINY, tied=True, layers=1),
    "one key head": replace(TINY, kv_heads=1, layers=1),
    "own heads": replace(TINY, own_head_size=6, kv_heads=4, layers=1),
    "another base": replace(TINY, rotary_base=100.0, layers=1),
}


def build(module: ModuleType, sizes: Sizes = TINY, **options: Any) -> Any:
    """A model in float64 whose parameters all matter: norms are not ones."""
    model = initialise(module.Decoder(sizes, **options), seed=1).double()
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(5) if param.ndim > 1 else param.add_(torch.randn_like(param) / 4)
    return model


def tokens(rows: int = B, length: int = T) -> Tensor:
    return torch.randint(TINY.vocab, (rows, length))


def close(got: Any, right: Any, tolerance: float = 1e-11) -> None:
    got, right = torch.as_tensor(got).double(), torch.as_tensor(right).double()
    assert got.shape == right.shape
    assert (got - right).norm() <= tolerance * right.norm()


def logits_are_the_papers(module: ModuleType) -> None:
    for sizes in SHAPES.values():
        model, tokens_BT = build(module, sizes), tokens()
        weights = reference.weights_of(model)
        for documents_BT in (None, DOCUMENTS_BT):
            got_BTV = model(tokens_BT, documents_BT).detach()
            for row in range(B):
                documents_T = np.zeros(T) if documents_BT is None else DOCUMENTS_BT[row]
                close(got_BTV[row], reference.logits(
                    weights, sizes, tokens_BT[row].numpy(), np.asarray(documents_T)
                ))  # fmt: skip


def test_logits_are_those_of_the_papers_formulas() -> None:
    holds_and_catches(logits_are_the_papers, decoder, {
        "keys not turned": (
            "rotate(self._heads(self.k(x_BTD)), places)", "self._heads(self.k(x_BTD))"
        ),
        "turned back": ("torch.cat((-x2_BHTP, x1", "torch.cat((x2_BHTP, -x1"),
        "neighbours are pairs": ("torch.cat((angle_TP, angle_TP), dim=-1)",
                                 "angle_TP.repeat_interleave(2, -1)"),
        "base of all models": ("sizes.rotary_base **", "10_000.0 **"),
        "one frequency too far": ("-pair_P / num", "-(pair_P + 1) / num"),
        "no positions": ("torch.arange(start, start + length", "torch.zeros(length"),
        "not causal": ("is_causal=places.seen_B1TT is None", "is_causal=False"),
        "documents unseen": ("attn_mask=places.seen_B1TT", "attn_mask=None"),
        "documents not causal": ("same_BTT.tril()", "same_BTT"),
        "gate and up change places": ("F.silu(self.gate(x_BTD)) * self.up(x_BTD)",
                                      "F.silu(self.up(x_BTD)) * self.gate(x_BTD)"),
        "no last norm": ("self.head(self.norm(x_BTD))", "self.head(x_BTD)"),
        "norm after": ("self.dropout(self.mlp(self.mlp_norm(x_BTD)))",
                       "self.mlp_norm(self.mlp(x_BTD))"),
        "residual lost": ("return x_BTD + self.dropout", "return self.dropout"),
        "another epsilon": ("_EPS = 1e-5", "_EPS = 1e-4"),
    })  # fmt: skip


def test_each_part_is_the_papers() -> None:
    x_TD = torch.randn(T, TINY.width, dtype=torch.float64)
    norm = nn.RMSNorm(TINY.width, 1e-5, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    weight_D = norm.weight.detach().numpy()
    close(norm(x_TD).detach(), reference.rms_norm(x_TD.numpy(), weight_D))

    places = decoder.places_of(TINY, x_TD[None])
    x_TK = x_TD[:, : TINY.head_size].contiguous()
    turned_TK = reference.rotated(x_TK.numpy(), TINY.rotary_base)
    close(decoder.rotate(x_TK, places), turned_TK)
    close(decoder.rotate(x_TK, places).norm(), x_TK.norm())


def test_a_part_of_the_rows_stands_where_it_stood() -> None:
    x_BTD = torch.randn(B, T, TINY.width, dtype=torch.float64)
    whole = decoder.places_of(TINY, x_BTD)
    part = decoder.places_of(TINY, x_BTD[:, 4:9], start=4)
    assert torch.equal(part.cos_TK, whole.cos_TK[4:9])
    assert torch.equal(part.sin_TK, whole.sin_TK[4:9])


def later_tokens_change_nothing(module: ModuleType) -> None:
    model, tokens_BT = build(module), tokens()
    before_BTV = model(tokens_BT)
    for position in (1, 6, T - 1):
        other_BT = tokens_BT.clone()
        other_BT[:, position:] = tokens(length=T - position)
        after_BTV = model(other_BT)
        close(after_BTV[:, :position], before_BTV[:, :position])
        assert not torch.allclose(after_BTV[:, position:], before_BTV[:, position:])


def test_later_tokens_change_nothing_before_them() -> None:
    holds_and_catches(later_tokens_change_nothing, decoder, {
        "not causal": ("is_causal=places.seen_B1TT is None", "is_causal=False"),
    })  # fmt: skip


def packed_documents_are_as_if_alone(module: ModuleType) -> None:
    model, tokens_BT = build(module), tokens()
    packed_BTV = model(tokens_BT, DOCUMENTS_BT)
    for row, cuts in enumerate([(0, 5, 13), (0, 1, 7, 13)]):
        for start, stop in pairwise(cuts):
            alone_1TV = model(tokens_BT[row : row + 1, start:stop])
            close(packed_BTV[row, start:stop], alone_1TV[0])


def test_packed_documents_do_not_see_each_other() -> None:
    holds_and_catches(packed_documents_are_as_if_alone, decoder, {
        "documents unseen": ("attn_mask=places.seen_B1TT", "attn_mask=None"),
        "not causal": ("same_BTT.tril()", "same_BTT"),
        "earlier documents are seen": ("[:, :, None] ==", "[:, :, None] >="),
    })  # fmt: skip


def test_grouped_queries_are_heads_that_share_their_keys() -> None:
    few, tokens_BT = build(decoder), tokens()
    many = build(decoder, replace(TINY, kv_heads=TINY.heads))
    state = few.state_dict()
    for name in state:
        if name.endswith(("attn.k.weight", "attn.v.weight")):
            heads = state[name].unflatten(0, (TINY.kv_heads, -1))
            shared = TINY.heads // TINY.kv_heads
            state[name] = heads.repeat_interleave(shared, 0).flatten(0, 1)
    many.load_state_dict(state)
    close(few(tokens_BT), many(tokens_BT))


def loss_is_the_sum_over_valid_tokens(module: ModuleType) -> None:
    logits_BTV = torch.randn(B, T, TINY.vocab, dtype=torch.float64)
    targets_BT = tokens()
    targets_BT[0, 3:] = targets_BT[1, 5] = -100
    right = sum(
        reference.token_losses(row.numpy(), targets.numpy()).sum()
        for row, targets in zip(logits_BTV, targets_BT, strict=True)
    )
    close(module.sum_of_token_losses(logits_BTV, targets_BT), right)
    low = module.sum_of_token_losses(logits_BTV.bfloat16(), targets_BT)
    assert low.dtype == torch.float32
    close(
        low,
        module.sum_of_token_losses(logits_BTV.bfloat16().double(), targets_BT),
        1e-6,
    )


def test_the_loss_is_the_sum_over_valid_tokens() -> None:
    holds_and_catches(loss_is_the_sum_over_valid_tokens, decoder, {
        "mean": ('reduction="sum"', 'reduction="mean"'),
        "all targets count": ("targets_BT.flatten(),", "targets_BT.relu().flatten(),"),
        "in the logits' type": (".to(exact),", ","),
    })  # fmt: skip


def test_no_valid_token_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    for rows in (0, 2):
        model, tokens_BT = build(decoder), tokens(rows)
        loss = sum_of_token_losses(model(tokens_BT), torch.full_like(tokens_BT, -100))
        loss.backward()
        assert loss.item() == 0
        assert all(not param.grad.any() for param in model.parameters())


def test_a_tied_head_is_the_embedding_and_both_uses_add_their_gradients() -> None:
    tied = build(decoder, replace(TINY, tied=True))
    assert tied.head.weight is tied.embed.weight
    assert "head.weight" not in dict(tied.named_parameters())
    untied, tokens_BT = build(decoder), tokens()
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        sum_of_token_losses(model(tokens_BT), tokens_BT.roll(-1, 1)).backward()
    close(tied.embed.weight.grad, untied.embed.weight.grad + untied.head.weight.grad)


def test_parameters_have_the_names_that_techniques_cut_by() -> None:
    names = [name for name, _ in Decoder(replace(TINY, layers=1)).named_parameters()]
    assert names == [
        "embed.weight",
        "blocks.0.attn_norm.weight",
        *(f"blocks.0.attn.{part}.weight" for part in "qkvo"),
        "blocks.0.mlp_norm.weight",
        *(f"blocks.0.mlp.{part}.weight" for part in ("gate", "up", "down")),
        "norm.weight",
        "head.weight",
    ]
    assert list(Decoder(TINY).buffers()) == []


def test_dropout_drops_in_training_only() -> None:
    model, tokens_BT = build(decoder, dropout=0.5), tokens()
    same = build(decoder)
    same.load_state_dict(model.state_dict())
    assert not torch.equal(model(tokens_BT), model(tokens_BT))
    torch.manual_seed(3)
    first_BTV = model(tokens_BT)
    torch.manual_seed(3)
    assert torch.equal(model(tokens_BT), first_BTV)
    close(model.eval()(tokens_BT), same(tokens_BT))


def test_without_dropout_no_random_number_is_drawn() -> None:
    model, tokens_BT = build(decoder), tokens()
    before = torch.get_rng_state()
    model(tokens_BT).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def positions_stay_exact(module: ModuleType) -> None:
    like_BTD = torch.zeros(1, 2000, TINY.width, dtype=torch.float64)
    exact = module.places_of(TINY, like_BTD)
    places = module.places_of(TINY, like_BTD.bfloat16())
    assert places.cos_TK.dtype == places.sin_TK.dtype == torch.float32
    close(places.cos_TK, exact.cos_TK, 1e-4)
    close(places.sin_TK, exact.sin_TK, 1e-4)


def test_positions_stay_exact_in_bfloat16() -> None:
    holds_and_catches(positions_stay_exact, decoder, {
        "rounded": ("torch.promote_types(like.dtype, torch.float32)", "like.dtype"),
        "rounded at the end": ("(angle_TK.cos(),", "(angle_TK.cos().to(like.dtype),"),
    })  # fmt: skip


def test_bfloat16_is_close() -> None:
    model, tokens_BT = build(decoder), tokens(length=64)
    right_BTV = model(tokens_BT)
    low_BTV = model.bfloat16()(tokens_BT)
    assert low_BTV.dtype == torch.bfloat16
    close(low_BTV, right_BTV, 0.03)


@pytest.mark.parametrize("tied", [False, True])
def test_copies_are_equal_and_as_tied(tied: bool) -> None:
    model, tokens_BT = build(decoder, replace(TINY, tied=tied)), tokens()
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        cloudpickle.loads(cloudpickle.dumps(model)),
    ):
        assert torch.equal(twin(tokens_BT), model(tokens_BT))
        assert (twin.head.weight is twin.embed.weight) == tied
        assert twin.embed.weight is not model.embed.weight


@pytest.mark.parametrize("packed", [False, True])
def test_billions_of_parameters_run_on_fake_tensors(packed: bool) -> None:
    with FakeTensorMode():
        model = Decoder(WIDE_4B)
        tokens_BT = torch.zeros(1, WIDE_4B.seq_len, dtype=torch.int64)
        logits_BTV = model(tokens_BT, tokens_BT if packed else None)
        sum_of_token_losses(logits_BTV, tokens_BT).backward()
    assert logits_BTV.shape == (1, WIDE_4B.seq_len, WIDE_4B.vocab)
    assert all(param.grad is not None for param in model.parameters())


def test_what_is_no_batch_of_rows_is_refused() -> None:
    model = Decoder(TINY)
    with pytest.raises(
        UsageError, match=r"rows, \[B, T\]; got \(13,\).*tokens\[None\]"
    ):
        model(tokens()[0])
    with pytest.raises(UsageError, match=r"whole numbers.*torch\.float32"):
        model(torch.rand(B, T))
    with pytest.raises(
        UsageError, match=r"\(2, 13\) tokens.*got \(2, 12\)\. Give both"
    ):
        model(tokens(), DOCUMENTS_BT[:, 1:])
