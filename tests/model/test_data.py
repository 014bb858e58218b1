"""Text that is the same on every rank and run; rows of which none is lost or twice."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.errors import UsageError
from labkit.model import data
from labkit.model.data import (
    END,
    PAD,
    VOCAB,
    Batch,
    Rows,
    blank_batch,
    packed_rows,
    padded_rows,
    rows_of,
)
from labkit.model.sizes import SMALL, TINY
from tests.model.variants import holds_and_catches
from tests.mutants import mutants

LENGTH = 64


def text_of(tokens_T: Tensor) -> bytes:
    return bytes(token for token in tokens_T.tolist() if token < 256)


def targets_are_what_comes_next(module: ModuleType) -> None:
    documents = set(module._documents())
    padded = module.padded_rows(64, LENGTH)
    for tokens_T, targets_T in zip(padded.tokens_NT, padded.targets_NT, strict=True):
        valid = targets_T != -100
        length = int(valid.sum())
        assert valid[:length].all()
        assert tokens_T[0] == END
        assert torch.equal(tokens_T[1:length], targets_T[: length - 1])
        assert (tokens_T[length:] == PAD).all()
        text = text_of(tokens_T)
        assert text in documents or any(d.startswith(text) for d in documents)
        assert length == LENGTH or targets_T[length - 1] == END

    packed = module.packed_rows(64, LENGTH)
    tokens, targets = packed.tokens_NT.flatten(), packed.targets_NT.flatten()
    numbers = packed.documents_NT.flatten()
    assert torch.equal(tokens[1:], targets[:-1])
    assert torch.equal(tokens == END, numbers != numbers.roll(1))
    for number in range(int(numbers[-1])):
        assert text_of(tokens[numbers == number]) in documents
    assert text_of(tokens)[:40] == b"".join(module._chosen(None, 0)[:9])[:40]


def test_targets_are_what_comes_next_in_the_same_document() -> None:
    holds_and_catches(targets_are_what_comes_next, data, {
        "targets are the tokens": ("concatenate((letters, ends))",
                                   "concatenate((ends, letters))"),
        "pads are targets": ("np.full((num_rows, seq_len), IGNORED)",
                             "np.full((num_rows, seq_len), PAD)"),
        "one document": ("np.arange(len(inputs)), [", "0 * np.arange(len(inputs)), ["),
    })  # fmt: skip


def test_rows_have_the_models_tokens_and_unequal_counts_or_none_empty() -> None:
    assert TINY.vocab == SMALL.vocab == VOCAB
    padded, packed = padded_rows(64, LENGTH), packed_rows(64, LENGTH)
    for rows in (padded, packed):
        assert len(rows) == 64
        assert rows.tokens_NT.dtype == rows.targets_NT.dtype == torch.int64
        assert 0 <= rows.tokens_NT.min() <= rows.tokens_NT.max() < VOCAB
    counts = [padded.batch([number]).num_tokens for number in range(64)]
    assert min(counts) > 0
    assert len(set(counts)) > 8
    assert packed.batch(range(64)).num_tokens == 64 * LENGTH
    assert packed.documents_NT is not None
    assert all(len(set(row.tolist())) >= 1 for row in packed.documents_NT)
    assert sum(len(set(row.tolist())) > 1 for row in packed.documents_NT) > 8


def test_another_process_has_the_same_rows_and_another_seed_others() -> None:
    code = (
        "from labkit.model.data import packed_rows, padded_rows, rows_of\n"
        "print(padded_rows(9, 64).digest, packed_rows(9, 64).digest, "
        "*rows_of(1, 4, 10, 2, 0).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    here = [padded_rows(9, LENGTH).digest, packed_rows(9, LENGTH).digest]
    here += [str(number) for number in rows_of(1, 4, 10, 2, 0).tolist()]
    assert done.stdout.split() == here
    others = {make(9, LENGTH, seed=1).digest for make in (padded_rows, packed_rows)}
    assert others.isdisjoint(here)


GRID = [(num_rows, size) for num_rows in (0, 1, 3, 10, 37) for size in (1, 2, 4, 5)]


def rows_are_dealt_out(module: ModuleType) -> None:
    """DD-24, DD-25: each row once, on one rank, in another order each epoch."""
    for num_rows, size in GRID:
        orders: list[list[int]] = []
        for epoch in range(3):
            dealt = [
                module.rows_of(rank, size, num_rows, epoch, 7).tolist()
                for rank in range(size)
            ]
            again = module.rows_of(0, size, num_rows, epoch, 7).tolist()
            assert again == dealt[0]
            together = [number for rank in dealt for number in rank]
            assert sorted(together) == list(range(num_rows))
            lengths = [len(rank) for rank in dealt]
            assert max(lengths) - min(lengths) <= 1
            orders.append(together)
        if num_rows >= 10:
            assert len({tuple(order) for order in orders}) == 3
            for epoch, seed in ((0, 8), (1, 6)):
                other = module.rows_of(0, size, num_rows, epoch, seed).tolist()
                assert other != orders[0][: len(other)]


def test_rows_are_dealt_out_once_each_and_anew_each_epoch() -> None:
    holds_and_catches(rows_are_dealt_out, data, {
        "each rank its shuffle": ('seed_from(seed, "epoch", epoch)',
                                  'seed_from(seed, "epoch", epoch, rank)'),
        "epoch unused": ('seed_from(seed, "epoch", epoch)', 'seed_from(seed, "epoch")'),
        "seed and epoch added": ('seed_from(seed, "epoch", epoch)', "seed + epoch"),
        "no tail": ("[rank::size]", "[rank : num_rows - num_rows % size : size]"),
        "slices by floor": ("[rank::size]",
                            "[rank * (num_rows // size):][: num_rows // size]"),
        "not shuffled": ("torch.randperm(num_rows, generator=generator, device",
                         "torch.arange(num_rows, device"),
    })  # fmt: skip


def rank_outside_is_refused(module: ModuleType) -> None:
    for rank in (-1, 4, 5):
        told = rf"ranks 0 to 3; got rank {rank} of 4\."
        with pytest.raises(UsageError, match=told):
            module.rows_of(rank, 4, 10, 0, 0)


def test_every_slip_in_dealing_out_is_caught() -> None:
    missed: list[str] = []
    for mutant in mutants(
        inspect.getsource(rows_of), {"rank": "size", "epoch": "seed"}
    ):
        made: Any = ModuleType("mutant")
        try:
            made.rows_of = mutant.function("rows_of", dict(vars(data)))
            rows_are_dealt_out(made)
            rank_outside_is_refused(made)
        except (Exception, pytest.fail.Exception):
            continue
        missed.append(mutant.change)
    # Whether the rank is looked at first or the generator made makes no difference.
    assert [change.partition(" `")[0] for change in missed] == ["swap lines before"]


def test_ten_rows_on_four_ranks_are_measured_as_on_one() -> None:
    """DD-25: a mean over all rows is exactly that of one process."""
    value_N = torch.arange(10, dtype=torch.float64) ** 2
    sums = [value_N[rows_of(rank, 4, 10, 0, 0)].sum() for rank in range(4)]
    counts = [len(rows_of(rank, 4, 10, 0, 0)) for rank in range(4)]
    assert counts == [3, 3, 2, 2]
    assert sum(sums) / sum(counts) == value_N.mean()


@pytest.mark.parametrize("make", [padded_rows, packed_rows])
def test_parts_of_a_batch_are_the_batch(make: type[Rows]) -> None:
    batch = make(7, LENGTH).batch(torch.tensor([5, 0, 3, 3, 6]))
    assert len(batch) == 5
    for num_parts in range(1, 6):
        parts = batch.split(num_parts)
        assert len(parts) == num_parts
        assert sum(part.num_tokens for part in parts) == batch.num_tokens
        assert torch.equal(torch.cat([p.tokens_BT for p in parts]), batch.tokens_BT)
        assert torch.equal(torch.cat([p.targets_BT for p in parts]), batch.targets_BT)
        documents = [p.documents_BT for p in parts if p.documents_BT is not None]
        if batch.documents_BT is not None:
            assert torch.equal(torch.cat(documents), batch.documents_BT)


def test_a_batch_counts_its_valid_targets_and_can_have_fewer() -> None:
    batch = padded_rows(4, LENGTH).batch(range(4))
    assert batch.num_tokens == int((batch.targets_BT != -100).sum())
    for wanted in (0, 1, 100, batch.num_tokens):
        few = batch.with_tokens(wanted)
        assert few.num_tokens == wanted == int((few.targets_BT != -100).sum())
        assert Batch(few.tokens_BT, few.targets_BT).num_tokens == wanted
        kept = few.targets_BT != -100
        assert torch.equal(few.targets_BT[kept], batch.targets_BT[kept])
        assert torch.equal(few.tokens_BT, batch.tokens_BT)
    moved = batch.to("meta")
    assert moved.tokens_BT.is_meta
    assert moved.num_tokens == batch.num_tokens


def test_a_rank_without_rows_has_a_batch_of_none() -> None:
    none = packed_rows(3, LENGTH).batch(rows_of(3, 4, 3, 0, 0))
    assert (len(none), none.num_tokens) == (0, 0)
    assert len(none.split(1)[0]) == 0
    blank = blank_batch(3, LENGTH)
    assert (len(blank), blank.num_tokens) == (3, 3 * LENGTH)


def test_what_there_is_not_is_refused() -> None:
    rows = padded_rows(4, LENGTH)
    batch = rows.batch(range(4))
    with pytest.raises(UsageError, match=r"numbered from 0 to 3; got -1 to 2"):
        rows.batch([2, -1])
    with pytest.raises(UsageError, match=r"numbered from 0 to 3; got 0 to 4"):
        rows.batch([0, 4])
    with pytest.raises(UsageError, match=r"of 4 rows makes 1 to 4.*5 were asked"):
        batch.split(5)
    with pytest.raises(UsageError, match=rf"has {batch.num_tokens} targets.*9999 were"):
        batch.with_tokens(9999)
    with pytest.raises(UsageError, match=r"one shape; got \(4, 64\) and \(4, 63\)"):
        Batch(batch.tokens_BT, batch.targets_BT[:, 1:])
    rank_outside_is_refused(data)
    with pytest.raises(
        UsageError, match=r"1,000,000; it has .*Ask for fewer or shorter"
    ):
        padded_rows(1_000_000, LENGTH)
    with pytest.raises(UsageError, match=r"tokens that are asked for: 10,000,000"):
        packed_rows(10_000, 1000)
