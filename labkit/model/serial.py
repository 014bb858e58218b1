"""The training step of one process, which every technique must reproduce.

    gradient = sum over all valid tokens of all micro-batches of d loss / their number

Micro-batches are run one after another, so that only one's activations are alive, and
their gradients add up. Each is divided by the tokens of *all*: a mean of the
micro-batches' means would weigh tokens by the company they are in.

Mixed precision: the parameters stay as they are (float32: the master weights); forward
and backward run on copies in `compute_dtype`, and gradients come back in the
parameters' own type and are added in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from labkit.errors import UsageError
from labkit.model.data import Batch
from labkit.model.decoder import sum_of_token_losses


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a step updates the parameters."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)  # AdamW's
    eps: float = 1e-8  # AdamW's
    momentum: float = 0.0  # SGD's
    weight_decay: float = 0.1
    max_norm: float | None = 1.0  # gradients above it are scaled down to it
    compute_dtype: torch.dtype | None = None  # the parameters' own if None

    def __post_init__(self) -> None:
        if self.max_norm is not None and not self.max_norm > 0:
            raise UsageError(
                "max_norm must be more than 0: gradients are scaled down to it; got "
                f"{self.max_norm!r}. To leave them as they are: max_norm=None"
            )
        if self.compute_dtype is not None and not self.compute_dtype.is_floating_point:
            raise UsageError(
                "a model computes in a floating-point type; compute_dtype is "
                f"{self.compute_dtype}. Use torch.bfloat16, or None"
            )


@dataclass(frozen=True, eq=False)
class Step:
    """What a step says of itself: tensors, since a number would wait for the GPU."""

    loss: Tensor  # mean over all valid tokens, before the update
    num_tokens: int
    grad_norm: Tensor  # before clipping


def make_optimizer(
    params: Iterable[nn.Parameter], recipe: Recipe
) -> torch.optim.Optimizer:
    """The recipe's optimizer of the parameters that train, tied ones once.

    All of them decay alike, so that it does not matter how a technique groups them.

    Raises:
        UsageError: None of them trains.
    """
    given = list(dict.fromkeys(params))
    training = [param for param in given if param.requires_grad]
    if not training:
        raise UsageError(
            f"an optimizer needs parameters that train; of {len(given)} given, 0 do. "
            "Give model.parameters(), and freeze fewer of them"
        )
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            training, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay
        )
    return torch.optim.AdamW(
        training, recipe.lr, recipe.betas, recipe.eps, recipe.weight_decay, fused=True
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Batch],
    recipe: Recipe,
) -> Step:
    """Before: parameters. After: the same, one step on, with their gradients.

    Args:
        model: Called with tokens and documents, gives logits.
        optimizer: Of the model's parameters.
        micro_batches: What the step learns from, in the parts it is computed in.
        recipe: As the optimizer was made with.

    Raises:
        UsageError: There is nothing to learn from in the micro-batches.
    """
    num_tokens = sum(batch.num_tokens for batch in micro_batches)
    _check_tokens(num_tokens, len(micro_batches))
    optimizer.zero_grad()

    losses: list[Tensor] = []
    for batch in micro_batches:
        loss = loss_of(model, batch, recipe) / num_tokens
        loss.backward()
        losses.append(loss.detach())

    grad_norm = clip(model.parameters(), recipe.max_norm)
    optimizer.step()
    return Step(torch.stack(losses).sum(), num_tokens, grad_norm)


def loss_of(model: nn.Module, batch: Batch, recipe: Recipe) -> Tensor:
    """The sum of a batch's token losses, computed in the recipe's type."""
    arguments = batch.tokens_BT, batch.documents_BT
    if recipe.compute_dtype is None:
        logits_BTV = model(*arguments)
    else:
        dtype = recipe.compute_dtype
        copies = {name: p.to(dtype) for name, p in model.named_parameters()}
        logits_BTV = functional_call(model, copies, arguments)
    return sum_of_token_losses(logits_BTV, batch.targets_BT)


def clip(params: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients by one factor, so that their norm is at most `max_norm`.

    Returns:
        The norm before.
    """
    given = list(dict.fromkeys(params))
    grads = [param.grad for param in given if param.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(given, max_norm, norm)
    return norm


def _check_tokens(num_tokens: int, num_micro_batches: int) -> None:
    if not num_tokens:
        raise UsageError(
            "a step divides by the valid tokens of its micro-batches: there must be at "
            f"least 1; {num_micro_batches} micro-batches have 0. Give rows that "
            "have targets other than -100"
        )
