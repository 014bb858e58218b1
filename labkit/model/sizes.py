"""The sizes of a decoder, and what follows from them: parameters and FLOPs.

One frozen dataclass is all that a model is built from, counted by and planned with, so
no torch is needed here. The counts are held equal to the built model's, and the FLOPs
to what torch counts while it runs.

    part        parameters                             products a token, forward
    embed       V D                                    none: rows are looked up
    attention   D (H + 2 G) K + H K D  in each block   2 x its parameters + the scores
    mlp         3 D F                  in each block   2 x its parameters
    norms       2 D in each block, D at the end        none
    head        V D, or none where tied                2 V D, tied or not

with V vocab, D width, H heads, G kv_heads, K head_size, F ff, T seq_len. A multiply and
an add are two FLOPs. The scores of a token against T others and the sum of their values
take 4 T H K: grouped queries save parameters and the bytes of keys and values, not
these. A causal kernel can leave out what is masked, and needs about half.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a decoder is. Raises UsageError where the sizes do not fit together."""

    vocab: int  # different tokens
    layers: int  # blocks
    width: int  # features of a token between blocks
    heads: int  # query heads
    kv_heads: int  # key and value heads; each serves heads / kv_heads query heads
    ff: int  # features inside the MLP
    seq_len: int  # tokens of a row in training
    tied: bool = False  # whether the head's weight is the embedding's
    own_head_size: int | None = None  # where a head has not width / heads features
    rotary_base: float = 10_000.0  # no pair takes more than 2 pi x this for a turn

    def __post_init__(self) -> None:
        self._check_counts()
        if self.heads % self.kv_heads:
            raise UsageError(
                f"each key head serves equally many query heads: heads ({self.heads}) "
                f"must divide by kv_heads ({self.kv_heads}). Use kv_heads in "
                f"{_divisors(self.heads)}"
            )
        if self.own_head_size is None and self.width % self.heads:
            raise UsageError(
                f"width ({self.width}) must divide by heads ({self.heads}). Use "
                f"width={-(-self.width // self.heads) * self.heads}, or say how large "
                "a head is: own_head_size"
            )
        if self.head_size % 2:
            raise UsageError(
                "rotary positions turn pairs of features: a head's size must be even; "
                f"it is {self.head_size} (width {self.width}, {self.heads} heads). Use "
                f"own_head_size={self.head_size + 1}, or another number of heads"
            )

    def _check_counts(self) -> None:
        names = ["vocab", "layers", "width", "heads", "kv_heads", "ff", "seq_len"]
        names += ["own_head_size"] if self.own_head_size is not None else []
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(
                    f"{name} must be a whole number of at least 1; got {value!r}. "
                    "labkit.model.sizes has some that fit together: TINY, SMALL"
                )
        if not self.rotary_base > 1:
            raise UsageError(
                f"rotary_base must be more than 1; got {self.rotary_base!r}. Use "
                "10_000.0, or 500_000.0 for rows of many thousand tokens"
            )

    @property
    def head_size(self) -> int:
        """Features of one head."""
        return self.own_head_size or self.width // self.heads

    @property
    def embed_params(self) -> int:
        """Parameters of the embedding."""
        return self.vocab * self.width

    @property
    def attention_params(self) -> int:
        """Parameters of one block's attention: q, k, v and o."""
        return self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_params(self) -> int:
        """Parameters of one block's MLP: gate, up and down."""
        return 3 * self.width * self.ff

    @property
    def block_params(self) -> int:
        """Parameters of one block, its two norms included."""
        return self.attention_params + self.mlp_params + 2 * self.width

    @property
    def head_params(self) -> int:
        """Parameters of the head beside the embedding's: none where it is tied."""
        return 0 if self.tied else self.vocab * self.width

    @property
    def num_params(self) -> int:
        """All parameters, a tied one once."""
        blocks = self.layers * self.block_params
        return self.embed_params + blocks + self.width + self.head_params

    def block_flops_per_token(
        self, seq_len: int | None = None, *, causal: bool = False
    ) -> int:
        """FLOPs of one block, forward, for a token in a row of `seq_len`.

        Args:
            seq_len: Tokens of the row; those of the sizes if None.
            causal: Leave out the scores of later tokens, which are masked: a token
                sees (seq_len + 1) / 2 on average. Without it, as torch counts.
        """
        length = self.seq_len if seq_len is None else seq_len
        scored = 2 * (length + 1) if causal else 4 * length
        scores = scored * self.heads * self.head_size
        return 2 * (self.attention_params + self.mlp_params) + scores

    def flops_per_token(
        self, seq_len: int | None = None, *, causal: bool = False
    ) -> int:
        """FLOPs of the whole model, forward; arguments as `block_flops_per_token`."""
        blocks = self.layers * self.block_flops_per_token(seq_len, causal=causal)
        return blocks + 2 * self.vocab * self.width

    def training_flops_per_token(
        self, seq_len: int | None = None, *, causal: bool = False
    ) -> int:
        """FLOPs forward and backward: each product has two in its backward.

        This is what the model needs, and what MFU counts. A kernel that computes its
        scores again in the backward does more, and so does recomputation.
        """
        return 3 * self.flops_per_token(seq_len, causal=causal)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


# For tests and first steps: 258 tokens are the bytes and two of our own.
TINY = Sizes(vocab=258, layers=2, width=32, heads=4, kv_heads=2, ff=88, seq_len=64)
# For pictures and measurements on a CPU: 2.3 M parameters.
SMALL = Sizes(
    vocab=258, layers=4, width=192, heads=6, kv_heads=3, ff=768, seq_len=256, tied=True
)

# Real shapes, for dry runs. Wide and shallow: a block of 70 B's width, in one node.
WIDE_4B = Sizes(
    vocab=32_000, layers=8, width=8192, heads=64, kv_heads=8, ff=14_336, seq_len=4096,
    tied=True,
)  # fmt: skip
# Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3; the vocabulary is that
# of the released weights. `dataclasses.replace(LLAMA_3_70B, layers=1)` is one block.
LLAMA_3_8B = Sizes(
    vocab=128_256, layers=32, width=4096, heads=32, kv_heads=8, ff=14_336,
    seq_len=8192, rotary_base=500_000.0,
)  # fmt: skip
LLAMA_3_70B = Sizes(
    vocab=128_256, layers=80, width=8192, heads=64, kv_heads=8, ff=28_672,
    seq_len=8192, rotary_base=500_000.0,
)  # fmt: skip
