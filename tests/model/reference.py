"""The decoder once more, in numpy and float64, written from the papers' formulas.

Nothing is shared with labkit but the names of the parameters: rows one by one, heads
one by one, positions as complex numbers, attention as a softmax over a list of tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from labkit.model.sizes import Sizes

Array = NDArray[np.float64]
Weights = dict[str, Array]


def weights_of(model: nn.Module) -> Weights:
    """Every parameter under each of its names, in float64."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.detach().double().numpy() for name, p in named}


def rms_norm(x_TD: Array, weight_D: Array) -> Array:
    """Zhang and Sennrich 2019: x over its root mean square, times a gain."""
    mean_square_T = (x_TD**2).sum(-1) / x_TD.shape[-1]
    return x_TD / np.sqrt(mean_square_T + 1e-5)[:, None] * weight_D


def rotated(x_TK: Array, base: float) -> Array:
    """Su et al. 2021: pair i as a complex number, turned by t theta_i."""
    length, size = x_TK.shape
    pairs = x_TK[:, : size // 2] + 1j * x_TK[:, size // 2 :]
    theta = np.array([base ** (-2 * i / size) for i in range(size // 2)])
    turned = pairs * np.exp(1j * np.outer(np.arange(length), theta))
    return np.concatenate((turned.real, turned.imag), axis=-1)


def attention(q_TK: Array, k_TK: Array, v_TK: Array, documents_T: Array) -> Array:
    """One head: each token's mean of the values before it, by exp(q k / sqrt K)."""
    out = np.zeros_like(v_TK)
    for t in range(len(q_TK)):
        seen = [s for s in range(t + 1) if documents_T[s] == documents_T[t]]
        weight = np.exp([q_TK[t] @ k_TK[s] / np.sqrt(len(q_TK[t])) for s in seen])
        out[t] = weight @ v_TK[seen] / weight.sum()
    return out


def logits(
    weights: Weights, sizes: Sizes, tokens_T: Array, documents_T: Array
) -> Array:
    """Scores of every next token of one row."""
    x_TD = weights["embed.weight"][tokens_T]
    for layer in range(sizes.layers):
        w = {
            name.removeprefix(f"blocks.{layer}.").removesuffix(".weight"): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        x_TD = x_TD + _attended(w, sizes, rms_norm(x_TD, w["attn_norm"]), documents_T)
        x_TD = x_TD + _thought(w, rms_norm(x_TD, w["mlp_norm"]))
    return rms_norm(x_TD, weights["norm.weight"]) @ weights["head.weight"].T


def _attended(w: Weights, sizes: Sizes, x_TD: Array, documents_T: Array) -> Array:
    size, share = sizes.head_size, sizes.heads // sizes.kv_heads
    heads: list[Array] = []
    for head in range(sizes.heads):
        own, shared = _rows(head, size), _rows(head // share, size)
        q_TK = rotated(x_TD @ w["attn.q"][own].T, sizes.rotary_base)
        k_TK = rotated(x_TD @ w["attn.k"][shared].T, sizes.rotary_base)
        heads.append(attention(q_TK, k_TK, x_TD @ w["attn.v"][shared].T, documents_T))
    return np.concatenate(heads, axis=-1) @ w["attn.o"].T


def _rows(head: int, size: int) -> slice:
    return slice(head * size, (head + 1) * size)


def _thought(w: Weights, x_TD: Array) -> Array:
    gate_TF = x_TD @ w["mlp.gate"].T
    h_TF = gate_TF / (1 + np.exp(-gate_TF)) * (x_TD @ w["mlp.up"].T)
    return h_TF @ w["mlp.down"].T


def token_losses(logits_TV: Array, targets_T: Array) -> Array:
    """The loss of each token that has a target."""
    valid = targets_T != -100
    log_sum_T = np.log(np.exp(logits_TV).sum(-1))
    return log_sum_T[valid] - logits_TV[valid, targets_T[valid]]
