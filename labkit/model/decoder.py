"""The language model that every technique trains: a decoder on one device.

A token becomes D features. Each block adds to them twice: what attention takes from the
tokens before, and what the MLP makes of it. A head scores every token as the next one.

    tokens_BT ── embed ──┬───────────────────(+)──┬─────────────────(+)── ... ── norm
                         └─ attn_norm ── attn ┘   └─ mlp_norm ── mlp ┘            │
                         ╰──────────────── one block ────────────────╯           head
                                                                                  │
                                                                              logits_BTV

Nothing here knows of ranks. A technique that cuts the model replaces parameters, or
whole modules, by their names: the forward stays as it is.

Shapes: B rows, T tokens of a row, D width, H query heads, G key and value heads, K a
head's size, P its pairs (K / 2), F the MLP's features, V vocabulary.

Cost: `labkit.model.sizes` counts parameters and FLOPs.
Paper: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models",
section 2.2; Ainslie et al. 2023, "GQA", for the keys that heads share. Read next:
torchtitan's llama3, the same model ready to be cut.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.errors import UsageError
from labkit.model.sizes import Sizes

IGNORED = -100  # The target of a token whose next is not to be learnt.
_EPS = 1e-5  # Keeps the norm of a row of zeros finite.


class Places(NamedTuple):
    """What attention knows of the rows beside their features.

    `cos` and `sin` say how far each position turns; `seen` which tokens each may look
    at, or None for all up to itself.
    """

    cos_TK: Tensor
    sin_TK: Tensor
    seen_B1TT: Tensor | None


class Decoder(nn.Module):
    """A decoder of the given sizes, its parameters as torch leaves new ones.

    `labkit.model.initial` draws them from a seed. On `torch.device("meta")` none has
    memory until then.
    """

    def __init__(self, sizes: Sizes, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.vocab, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, dropout) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, _EPS)
        self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        if sizes.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Scores of every next token.

        Args:
            tokens_BT: Rows of token numbers.
            documents_BT: Where rows hold several documents, the number of each token's:
                tokens see their own document only. One document a row if None.

        Returns:
            `logits_BTV`, in the type of the parameters.

        Raises:
            UsageError: The tokens are no rows, or the documents not the tokens'.
        """
        _check_rows(tokens_BT, documents_BT)
        x_BTD = self.embed(tokens_BT)
        places = places_of(self.sizes, x_BTD, documents_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, places)
        return self.head(self.norm(x_BTD))


class Block(nn.Module):
    """One layer: tokens look at each other, then each thinks for itself."""

    def __init__(self, sizes: Sizes, dropout: float = 0.0) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(sizes.width, _EPS)
        self.attn = Attention(sizes)
        self.mlp_norm = nn.RMSNorm(sizes.width, _EPS)
        self.mlp = SwiGLU(sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, places: Places) -> Tensor:
        """What goes on to the next layer, of x's shape."""
        x_BTD = x_BTD + self.dropout(self.attn(self.attn_norm(x_BTD), places))
        return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))


class Attention(nn.Module):
    """Each token takes from those before it, by how its query fits their keys.

    The numbers of heads are read off the projections, so that a rank may hold some.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_size = sizes.head_size
        queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        self.q = nn.Linear(sizes.width, queries, bias=False)
        self.k = nn.Linear(sizes.width, keys, bias=False)
        self.v = nn.Linear(sizes.width, keys, bias=False)
        self.o = nn.Linear(queries, sizes.width, bias=False)

    def forward(self, x_BTD: Tensor, places: Places) -> Tensor:
        """What each token takes, of x's shape."""
        q_BHTK = rotate(self._heads(self.q(x_BTD)), places)
        k_BGTK = rotate(self._heads(self.k(x_BTD)), places)
        v_BGTK = self._heads(self.v(x_BTD))
        taken_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            attn_mask=places.seen_B1TT,
            is_causal=places.seen_B1TT is None,
            enable_gqa=q_BHTK.shape[1] != k_BGTK.shape[1],
        )
        return self.o(taken_BHTK.transpose(1, 2).flatten(2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        """Features cut into heads: [B, T, H K] to [B, H, T, K]."""
        return x_BTD.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class SwiGLU(nn.Module):
    """An MLP whose features are let through by a gate: down(silu(gate x) * up x)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.ff, bias=False)
        self.up = nn.Linear(sizes.width, sizes.ff, bias=False)
        self.down = nn.Linear(sizes.ff, sizes.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Each token by itself, of x's shape."""
        h_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        return self.down(h_BTF)


def places_of(
    sizes: Sizes, like: Tensor, documents_BT: Tensor | None = None, *, start: int = 0
) -> Places:
    """How far each position turns, and whom it may see: once for all layers.

    Computed in each forward, not kept as a buffer: a buffer would have to be filled
    again after a start on meta, and `model.to(bfloat16)` would round the positions.

    Args:
        sizes: The model's.
        like: Features [B, T, ...], for their length, device and type.
        documents_BT: As for `Decoder.forward`.
        start: The position of the first token, where a rank has a part of the rows.
    """
    length, device = like.shape[1], like.device
    exact = torch.promote_types(like.dtype, torch.float32)
    num_pairs = sizes.head_size // 2
    pair_P = torch.arange(num_pairs, device=device, dtype=exact)
    position_T = torch.arange(start, start + length, device=device, dtype=exact)
    angle_TP = position_T[:, None] * sizes.rotary_base ** (-pair_P / num_pairs)
    angle_TK = torch.cat((angle_TP, angle_TP), dim=-1)
    seen = None if documents_BT is None else _seen(documents_BT)
    return Places(angle_TK.cos(), angle_TK.sin(), seen)


def rotate(x_BHTK: Tensor, places: Places) -> Tensor:
    """Turn pair (i, i + P) of each head by position x base ** (-i / P).

    The product of two turned heads depends on how far apart they stand, not on where.

    Paper: Su et al. 2021, "RoFormer", section 3.2; which features are pairs is free.
    """
    x1_BHTP, x2_BHTP = x_BHTK.chunk(2, dim=-1)
    across_BHTK = torch.cat((-x2_BHTP, x1_BHTP), dim=-1)
    turned_BHTK = x_BHTK * places.cos_TK + across_BHTK * places.sin_TK
    return turned_BHTK.to(x_BHTK.dtype)


def _seen(documents_BT: Tensor) -> Tensor:
    """Whom each token may see: itself and what came before it in its document."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril()[:, None]


def sum_of_token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The cross-entropy of every token whose target is not IGNORED, added up.

    A sum, so that parts of a batch can be added wherever they were computed, and the
    whole divided once. In float32, or in the logits' type if that is finer.
    """
    exact = torch.promote_types(logits_BTV.dtype, torch.float32)
    return F.cross_entropy(
        logits_BTV.flatten(0, -2).to(exact),
        targets_BT.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def _check_rows(tokens_BT: Tensor, documents_BT: Tensor | None) -> None:
    if tokens_BT.ndim != 2 or tokens_BT.is_floating_point():
        raise UsageError(
            "tokens must be whole numbers in rows, [B, T]; got "
            f"{tuple(tokens_BT.shape)} of {tokens_BT.dtype}. One row alone is "
            "tokens[None]"
        )
    if documents_BT is not None and documents_BT.shape != tokens_BT.shape:
        raise UsageError(
            f"each of the {tuple(tokens_BT.shape)} tokens needs the number of its "
            f"document; got {tuple(documents_BT.shape)}. Give both from one batch"
        )
