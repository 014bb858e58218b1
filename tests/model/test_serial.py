"""The step that every technique must reproduce: its gradient, update and memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from labkit.errors import UsageError
from labkit.model import serial
from labkit.model.data import Batch, blank_batch, packed_rows, padded_rows
from labkit.model.decoder import Decoder
from labkit.model.initial import initialise
from labkit.model.serial import Recipe, loss_of, make_optimizer, train_step
from labkit.model.sizes import TINY, WIDE_4B, Sizes
from tests.model.variants import holds_and_catches

T = 24
PLAIN = Recipe(optimizer="sgd", lr=0.1, weight_decay=0.0, max_norm=None)
TIED = replace(TINY, tied=True)
GRAD_NORM = "nn.utils.get_total_norm(grads)"


def build(sizes: Sizes = TINY, *, exact: bool = True) -> Decoder:
    model = initialise(Decoder(sizes), seed=2)
    return model.double() if exact else model


def micro_batches(*num_tokens: int) -> list[Batch]:
    """One a number, each of two rows with so many valid targets."""
    rows = padded_rows(2 * len(num_tokens), T)
    cut = rows.batch(range(len(rows))).split(len(num_tokens))
    return [part.with_tokens(n) for part, n in zip(cut, num_tokens, strict=True)]


def joined(parts: list[Batch]) -> Batch:
    tokens_BT = torch.cat([part.tokens_BT for part in parts])
    return Batch(tokens_BT, torch.cat([part.targets_BT for part in parts]))


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def close(got: list[Tensor], right: list[Tensor], tolerance: float = 1e-9) -> None:
    for one, other in zip(got, right, strict=True):
        assert (one - other).norm() <= tolerance * other.norm()


def stepped(
    module: ModuleType, parts: list[Batch], recipe: Any = PLAIN, steps: int = 1
) -> tuple[Any, list[Any]]:
    """A fresh model after some steps, and what they said."""
    model = build()
    optimizer = module.make_optimizer(model.parameters(), recipe)
    said = [module.train_step(model, optimizer, parts, recipe) for _ in range(steps)]
    return model, said


def micro_batches_are_one_batch(module: ModuleType) -> None:
    """DD-09: 1, 7, 3 and 13 tokens are a batch of 24, whatever they are cut into."""
    parts = micro_batches(1, 7, 3, 13)
    whole = joined(parts)
    plain = build()
    logits_NV = plain(whole.tokens_BT).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits_NV, whole.targets_BT.flatten())
    loss.backward()
    for cut in (parts, [whole], parts[::-1], [*parts, parts[0].with_tokens(0)]):
        model, (said,) = stepped(module, cut)
        close(grads(model), grads(plain))
        close([said.loss], [loss.detach()])
        assert said.num_tokens == 24
        assert not said.loss.requires_grad
    before = [param - 0.1 * param.grad for param in plain.parameters()]
    close(list(model.parameters()), before)


def test_micro_batches_are_one_batch() -> None:
    holds_and_catches(micro_batches_are_one_batch, serial, {
        "mean of means": (" / num_tokens", " / batch.num_tokens / len(micro_batches)"),
        "one token too many": (" / num_tokens", " / (num_tokens + 1)"),
        "last micro-batch only": (
            "        loss.backward()", "        optimizer.zero_grad(); loss.backward()"
        ),
        "loss of the last": ("torch.stack(losses).sum()", "losses[-1]"),
        "divided twice": ("    grad_norm = clip", "    for p in model.parameters(): "
                          "p.grad /= len(micro_batches)\n    grad_norm = clip"),
        "no update": ("    optimizer.step()\n", ""),
    })  # fmt: skip


def test_the_mean_of_means_is_something_else() -> None:
    """DD-09: the naive way is wrong by far more than rounding."""
    parts = micro_batches(1, 7, 3, 13)
    right, _ = stepped(serial, parts)
    naive = build()
    for part in parts:
        (loss_of(naive, part, PLAIN) / part.num_tokens / len(parts)).backward()
    with pytest.raises(AssertionError):
        close(grads(naive), grads(right), 0.1)


def accumulation_keeps_the_norm(module: ModuleType) -> None:
    """DD-11: the same data in 1, 2 and 4 parts."""
    whole = packed_rows(4, T).batch(range(4))
    norms = [stepped(module, whole.split(k))[1][0].grad_norm for k in (1, 2, 4)]
    close(norms, [norms[0]] * 3)


def test_accumulation_keeps_the_gradient_norm() -> None:
    holds_and_catches(accumulation_keeps_the_norm, serial, {
        "divided twice": (" / num_tokens", " / num_tokens / len(micro_batches)"),
        "norm of the last": (
            "        loss.backward()", "        optimizer.zero_grad(); loss.backward()"
        ),
    })  # fmt: skip


def peak_saved_bytes(step: Callable[[], object]) -> int:
    """The most that autograd keeps for the backward at any moment."""
    alive = peak = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    def free(num_bytes: int) -> None:
        nonlocal alive
        alive -= num_bytes

    def pack(tensor: Tensor) -> Kept:
        nonlocal alive, peak
        kept, num_bytes = Kept(tensor.detach()), tensor.nbytes
        alive += num_bytes
        peak = max(peak, alive)
        weakref.finalize(kept, free, num_bytes)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        step()
    return peak


def one_micro_batch_is_alive(module: ModuleType) -> None:
    """DD-10: the activations of eight micro-batches are those of one."""
    parts = packed_rows(8, T).batch(range(8)).split(8)
    one = peak_saved_bytes(lambda: stepped(module, parts[:1]))
    eight = peak_saved_bytes(lambda: stepped(module, parts))
    assert one <= eight <= 1.2 * one


def test_one_micro_batchs_activations_are_alive() -> None:
    holds_and_catches(one_micro_batch_is_alive, serial, {
        "one backward at the end": (
            "        loss.backward()\n        losses.append(loss.detach())\n",
            "        losses.append(loss)\n    torch.stack(losses).sum().backward()\n",
        ),
        "losses keep their graphs": (
            "loss.backward()\n        losses.append(loss.detach())",
            "loss.backward(retain_graph=True)\n        losses.append(loss)",
        ),
    })  # fmt: skip


def gradients_are_scaled_down_to_the_limit(module: ModuleType) -> None:
    parts = micro_batches(9, 20)
    free, (said,) = stepped(module, parts)
    norm = torch.cat([grad.flatten() for grad in grads(free)]).norm()
    close([said.grad_norm], [norm])
    for share in (0.25, 4.0):
        recipe = replace(PLAIN, max_norm=share * norm.item())
        model, (said,) = stepped(module, parts, recipe)
        close([said.grad_norm], [norm])
        factor = min(1.0, share)
        close(grads(model), [factor * grad for grad in grads(free)], 1e-5)


def test_gradients_are_scaled_down_to_the_limit() -> None:
    holds_and_catches(gradients_are_scaled_down_to_the_limit, serial, {
        "not clipped": ("    if max_norm is not None:\n", "    if False:\n"),
        "norms added": (GRAD_NORM, "nn.utils.get_total_norm(grads, 1)"),
        "norm of the first": (GRAD_NORM, "nn.utils.get_total_norm(grads[:1])"),
        "norm after": ("return norm\n", "return nn.utils.get_total_norm(grads)\n"),
    })  # fmt: skip


def test_five_steps_of_adamw_are_the_papers() -> None:
    """Loshchilov and Hutter 2019, algorithm 2, written out."""
    recipe = Recipe(lr=0.01, betas=(0.8, 0.9), weight_decay=0.3, max_norm=0.5)
    parts = micro_batches(5, 19)
    model, _ = stepped(serial, parts, recipe, steps=5)
    plain = build()
    state = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in plain.parameters()}
    for step in range(1, 6):
        plain.zero_grad()
        (sum(loss_of(plain, part, recipe) for part in parts) / 24).backward()
        norm = torch.cat([grad.flatten() for grad in grads(plain)]).norm()
        with torch.no_grad():
            for param, (mean, square) in state.items():
                assert param.grad is not None
                grad = param.grad * min(1.0, 0.5 / (norm.item() + 1e-6))
                mean += 0.2 * (grad - mean)
                square += 0.1 * (grad**2 - square)
                unbiased = (square / (1 - 0.9**step)).sqrt() + 1e-8
                param -= 0.01 * (mean / (1 - 0.8**step) / unbiased + 0.3 * param)
    close(list(model.parameters()), list(plain.parameters()), 1e-8)


def test_momentum_and_decay_are_the_recipes() -> None:
    recipe = Recipe(optimizer="sgd", lr=0.5, momentum=0.25, weight_decay=0.125)
    model = build()
    (group,) = make_optimizer(model.parameters(), recipe).param_groups
    said = group["lr"], group["momentum"], group["weight_decay"]
    assert said == (0.5, 0.25, 0.125)


def compute_is_in_bfloat16_and_weights_are_not(module: ModuleType) -> None:
    recipe = module.Recipe(compute_dtype=torch.bfloat16, lr=1e-5, weight_decay=0.0)
    seen: list[torch.dtype] = []
    model = build(TIED, exact=False)
    model.blocks[1].register_forward_hook(
        lambda *said: seen.extend((said[1][0].dtype, said[2].dtype))
    )
    start = [param.detach().clone() for param in model.parameters()]
    optimizer = module.make_optimizer(model.parameters(), recipe)
    parts = packed_rows(2, T).batch(range(2)).split(2)
    said = module.train_step(model, optimizer, parts, recipe)
    assert set(seen) == {torch.bfloat16}
    assert said.loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {
        torch.float32
    }
    assert model.head.weight is model.embed.weight
    kept = [value for state in optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in kept} == {torch.float32}
    # A step this small is lost where the weight itself is in bfloat16.
    pairs = zip(model.parameters(), start, strict=True)
    moved = [(param - old).abs().mean() for param, old in pairs]
    assert all(0 < by < 2e-5 for by in moved)


def test_compute_is_in_bfloat16_and_weights_are_not() -> None:
    holds_and_catches(compute_is_in_bfloat16_and_weights_are_not, serial, {
        "computed in float32": (".to(dtype) for name", ".to(p.dtype) for name"),
        "weights rounded": ("functional_call(model, copies, arguments)",
                            "model.to(dtype)(*arguments)"),
    })  # fmt: skip


def test_bfloat16_gradients_add_up_in_float32() -> None:
    """One micro-batch many times: a sum in bfloat16 would stand still."""
    recipe = replace(PLAIN, compute_dtype=torch.bfloat16)
    (part,) = micro_batches(20)
    once, many = build(exact=False), build(exact=False)
    train_step(once, make_optimizer(once.parameters(), recipe), [part], recipe)
    train_step(many, make_optimizer(many.parameters(), recipe), [part] * 16, recipe)
    close(grads(many), grads(once), 1e-6 + 2**-9)


def test_packed_rows_train_as_their_documents_apart() -> None:
    batch = packed_rows(4, 64).batch(range(4))
    assert batch.documents_BT is not None
    apart: list[Batch] = []
    for row in range(4):
        for number in batch.documents_BT[row].unique().tolist():
            own_T = batch.documents_BT[row] == number
            tokens_BT = batch.tokens_BT[row, own_T][None]
            apart.append(Batch(tokens_BT, batch.targets_BT[row, own_T][None]))
    assert len(apart) > 4
    close(grads(stepped(serial, apart)[0]), grads(stepped(serial, [batch])[0]))


def test_frozen_parameters_stay_and_tied_ones_move_once() -> None:
    model: Any = build(TIED)
    model.blocks[0].requires_grad_(False)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    recipe = replace(PLAIN, max_norm=1.0, weight_decay=0.1)
    twice = list(model.named_parameters(remove_duplicate=False))
    optimizer = make_optimizer((param for _, param in twice), recipe)
    (group,) = optimizer.param_groups
    assert len(group["params"]) == len(start) - 9
    train_step(model, optimizer, micro_batches(9, 4), recipe)
    for name, param in model.named_parameters():
        frozen = name.startswith("blocks.0.")
        assert torch.equal(param, start[name]) == frozen
        assert (param.grad is None) == frozen
    assert model.head.weight is model.embed.weight


class Switch(nn.Module):
    """Uses one of two layers, by the batch, and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Embedding(258, 258) for _ in range(3))

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Logits of the first layer or the second, as the first row's tokens say."""
        return self.layers[int(tokens_BT[0, 1]) % 2](tokens_BT)


def test_any_model_trains_that_maps_tokens_to_logits() -> None:
    model = Switch()
    tokens_BT = torch.tensor([[1, 2, 3]])
    parts = [Batch(tokens_BT, tokens_BT), Batch(tokens_BT + 1, tokens_BT)]
    said = train_step(model, make_optimizer(model.parameters(), PLAIN), parts, PLAIN)
    has_grad = [layer.weight.grad is not None for layer in model.layers]
    assert has_grad == [True, True, False]
    assert said.num_tokens == 6


def test_losses_fall() -> None:
    model = build(exact=False)
    recipe = Recipe(lr=3e-3)
    optimizer = make_optimizer(model.parameters(), recipe)
    rows = packed_rows(64, 64)
    losses = [
        train_step(model, optimizer, [rows.batch(range(n % 8, 64, 8))], recipe).loss
        for n in range(60)
    ]
    assert losses[0].item() == pytest.approx(5.55, abs=0.1)  # ln 258
    assert losses[-1] < 3.5


def test_a_step_of_billions_of_parameters_runs_on_fake_tensors() -> None:
    recipe = Recipe(compute_dtype=torch.bfloat16)
    with FakeTensorMode():
        model = initialise(Decoder(WIDE_4B), 0)
        optimizer = make_optimizer(model.parameters(), recipe)
        batch = blank_batch(1, WIDE_4B.seq_len)
        said = train_step(model, optimizer, [batch, batch], recipe)
    assert said.num_tokens == 2 * WIDE_4B.seq_len
    assert said.loss.shape == said.grad_norm.shape == ()


def test_nothing_to_learn_from_is_refused_before_anything_moves() -> None:
    model = build()
    optimizer = make_optimizer(model.parameters(), PLAIN)
    train_step(model, optimizer, micro_batches(5), PLAIN)
    before = grads(model)
    with pytest.raises(UsageError, match=r"at least 1; 2 micro-batches have 0\. Give"):
        train_step(model, optimizer, micro_batches(0, 0), PLAIN)
    with pytest.raises(UsageError, match="at least 1; 0 micro-batches have 0"):
        train_step(model, optimizer, [], PLAIN)
    assert all(map(torch.equal, grads(model), before))


def test_recipes_and_models_that_cannot_train_are_refused() -> None:
    with pytest.raises(UsageError, match=r"of 0 given, 0 do\. Give model\.param"):
        make_optimizer(nn.ReLU().parameters(), PLAIN)
    frozen = build().requires_grad_(False)
    with pytest.raises(UsageError, match=r"of 21 given, 0 do.*freeze fewer"):
        make_optimizer(frozen.parameters(), PLAIN)
    with pytest.raises(
        UsageError, match=r"max_norm must be more than 0.*got 0\.0.*None"
    ):
        Recipe(max_norm=0.0)
    with pytest.raises(UsageError, match=r"compute_dtype is torch\.int8\. Use"):
        Recipe(compute_dtype=torch.int8)
