"""Real text without a download: the standard library's own source, as bytes.

A document is a piece of a module that empty lines set apart: a function, or a paragraph
of one. A token is a byte, or one of two more:

    inputs    END  d   e   f   ...          of each document: from END to its last byte
    targets   d    e   f   ...   END        what comes next, up to END

    padded    │END d e f : P P P P│         one document a row, cut at seq_len; what
              │END c l a s s   A P│         fills up is no target: unequal token counts
    packed    │END d e f : END c l│         one after another; a token sees its own
              │a s s   A END d e f│         document only (documents_BT)

Everything follows from the seed, and from the Python that runs: ranks whose Pythons
differ have different text, which `Rows.digest` tells.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.errors import UsageError
from labkit.model.decoder import IGNORED
from labkit.model.seeds import seed_from

END, PAD = 256, 257
VOCAB = 258
_MIN_BYTES = 16  # A shorter piece is a lone import or a closing bracket.


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of tokens, the next token of each, and which document each is of.

    `num_tokens` counts the targets that are not IGNORED. Where it is not given it is
    counted, which waits for a GPU and cannot be done on fake tensors.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    documents_BT: Tensor | None = None
    num_tokens: int = -1

    def __post_init__(self) -> None:
        if self.tokens_BT.shape != self.targets_BT.shape:
            raise UsageError(
                "each token has one target: tokens and targets must have one shape; "
                f"got {tuple(self.tokens_BT.shape)} and {tuple(self.targets_BT.shape)}."
                f" Where there is nothing to predict, the target is {IGNORED}"
            )
        if self.num_tokens < 0:
            counted = int((self.targets_BT != IGNORED).sum())
            object.__setattr__(self, "num_tokens", counted)

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        moved = None if self.documents_BT is None else self.documents_BT.to(device)
        tokens_BT, targets_BT = self.tokens_BT.to(device), self.targets_BT.to(device)
        return Batch(tokens_BT, targets_BT, moved, self.num_tokens)

    def split(self, num_parts: int) -> list[Batch]:
        """Micro-batches of whole rows, the first ones a row larger where needed."""
        if not 1 <= num_parts <= max(1, len(self)):
            raise UsageError(
                f"a batch of {len(self)} rows makes 1 to {max(1, len(self))} "
                f"micro-batches; {num_parts} were asked for. Ask for fewer"
            )
        cut = (
            [None] * num_parts if whole is None else whole.tensor_split(num_parts)
            for whole in (self.tokens_BT, self.targets_BT, self.documents_BT)
        )
        return [Batch(*part) for part in zip(*cut, strict=True)]

    def with_tokens(self, num_tokens: int) -> Batch:
        """The same rows, of whose targets only the first `num_tokens` are learnt."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise UsageError(
                f"this batch has {self.num_tokens} targets to keep; {num_tokens} were "
                "asked for. Take more rows"
            )
        valid_N = (self.targets_BT != IGNORED).flatten()
        kept_BT = (valid_N & (valid_N.cumsum(0) <= num_tokens)).view_as(self.targets_BT)
        targets_BT = self.targets_BT.where(kept_BT, IGNORED)
        return Batch(self.tokens_BT, targets_BT, self.documents_BT, num_tokens)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to train on, of which batches are taken by number."""

    tokens_NT: Tensor
    targets_NT: Tensor
    documents_NT: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def batch(self, numbers: Tensor | Sequence[int]) -> Batch:
        """The rows of these numbers, as `rows_of` gives them to a rank."""
        picked = torch.as_tensor(numbers, dtype=torch.int64)
        if len(picked) and not 0 <= int(picked.min()) <= int(picked.max()) < len(self):
            raise UsageError(
                f"rows are numbered from 0 to {len(self) - 1}; got {int(picked.min())} "
                f"to {int(picked.max())}. Ask for more rows when they are made"
            )
        documents = self.documents_NT
        return Batch(
            self.tokens_NT[picked],
            self.targets_NT[picked],
            None if documents is None else documents[picked],
        )

    @property
    def digest(self) -> str:
        """The same on two ranks only if they have the same rows."""
        both = torch.stack((self.tokens_NT, self.targets_NT)).numpy()
        return sha256(both.tobytes()).hexdigest()[:16]


def rows_of(rank: int, size: int, num_rows: int, epoch: int, seed: int) -> Tensor:
    """The numbers of the rows that a rank takes in an epoch.

    One shuffle, the same on all ranks, another in each epoch, dealt out in turn: no row
    is on two ranks or twice on one, all are somewhere, and the ranks' numbers of rows
    differ by at most one. Nothing is repeated to even them out, so where there are
    fewer rows than ranks the last ranks have none.
    """
    if not 0 <= rank < size:
        raise UsageError(
            f"rows are dealt out to ranks 0 to {size - 1}; got rank {rank} of {size}. "
            "Give the rank and the size of one and the same group"
        )
    generator = torch.Generator().manual_seed(seed_from(seed, "epoch", epoch))
    shuffled = torch.randperm(num_rows, generator=generator, device="cpu")
    return shuffled[rank::size]


def padded_rows(num_rows: int, seq_len: int, seed: int = 0) -> Rows:
    """One document a row: unequal numbers of tokens, the rest filled with PAD."""
    chosen = _chosen(num_rows, seed)
    tokens_NT = np.full((num_rows, seq_len), PAD)
    targets_NT = np.full((num_rows, seq_len), IGNORED)
    for row, text in enumerate(chosen):
        inputs, targets = _inputs_and_targets(text)
        length = min(seq_len, len(inputs))
        tokens_NT[row, :length] = inputs[:length]
        targets_NT[row, :length] = targets[:length]
    return Rows(torch.from_numpy(tokens_NT), torch.from_numpy(targets_NT))


def packed_rows(num_rows: int, seq_len: int, seed: int = 0) -> Rows:
    """Documents one after another: each row is full, and says whose each token is."""
    wanted = num_rows * seq_len
    inputs: list[NDArray[np.int64]] = []
    targets: list[NDArray[np.int64]] = []
    filled = 0
    for text in _chosen(None, seed):
        pair = _inputs_and_targets(text)
        inputs.append(pair[0])
        targets.append(pair[1])
        filled += len(pair[0])
        if filled >= wanted:
            break
    _check_enough(filled, wanted, "tokens")
    numbers = np.repeat(np.arange(len(inputs)), [len(part) for part in inputs])
    parts = (np.concatenate(inputs), np.concatenate(targets), numbers)
    cut = [torch.from_numpy(part[:wanted].reshape(num_rows, seq_len)) for part in parts]
    return Rows(*cut)


def blank_batch(
    num_rows: int, seq_len: int, device: torch.device | str = "cpu"
) -> Batch:
    """A batch in shape only, every target valid: for dry runs at real sizes."""
    tokens_BT = torch.zeros(num_rows, seq_len, dtype=torch.int64, device=device)
    return Batch(tokens_BT, tokens_BT, num_tokens=num_rows * seq_len)


@lru_cache(maxsize=1)
def _documents() -> tuple[bytes, ...]:
    """The pieces of the standard library's modules, in order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(n for n in sys.stdlib_module_names if not n.startswith("_"))
    found = [folder / f"{name}.py" for name in names]
    texts = [path.read_bytes() for path in found if path.is_file()]
    pieces = (piece.strip(b"\n") for text in texts for piece in text.split(b"\n\n"))
    return tuple(piece for piece in pieces if len(piece.strip()) >= _MIN_BYTES)


def _chosen(num_documents: int | None, seed: int) -> list[bytes]:
    """The first documents of a shuffle that the seed makes, or all."""
    documents = _documents()
    _check_enough(len(documents), num_documents or 1, "documents")
    generator = torch.Generator().manual_seed(seed_from(seed, "documents"))
    order = torch.randperm(len(documents), generator=generator, device="cpu")
    return [documents[number] for number in order[:num_documents].tolist()]


def _inputs_and_targets(text: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ends = np.array([END])
    letters = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    return np.concatenate((ends, letters)), np.concatenate((letters, ends))


def _check_enough(there: int, wanted: int, what: str) -> None:
    if there < wanted:
        raise UsageError(
            f"the standard library of {sys.prefix} must hold the {what} that are asked "
            f"for: {wanted:,}; it has {there:,}. Ask for fewer or shorter rows, or use "
            "a Python that came with its source files"
        )
