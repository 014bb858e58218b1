"""The level "work": operations, their costs, storages, reads, touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from labkit.record import recorder as recording
from labkit.record.costs import touched_bytes
from labkit.record.events import (
    Caveat,
    Event,
    Operation,
    StorageGone,
    StorageMade,
    ValueRead,
)
from labkit.record.operations import recorded
from labkit.record.recorder import Recorder


def events_of(body: Callable[[], object]) -> list[Event]:
    """What a rank tells while it runs `body`."""
    recorder = Recorder()
    before = recording.current()
    recording.install(recorder)
    try:
        with recorded(recorder):
            kept = body()
        del kept
    finally:
        recording.install(before)
    return recorder.drain()


def flops(events: list[Event]) -> float:
    return sum(event.flops for event in events if isinstance(event, Operation))


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, Operation)]


def alive(events: list[Event]) -> Counter[str]:
    """Bytes by kind that are still there after the last event but the frees."""
    peak: Counter[str] = Counter()
    now: Counter[str] = Counter()
    for event in events:
        if isinstance(event, StorageMade):
            now[event.kind] += event.num_bytes
        elif isinstance(event, StorageGone):
            now[event.kind] -= event.num_bytes
        for kind, num_bytes in now.items():
            peak[kind] = max(peak[kind], num_bytes)
    return peak


class Block(nn.Module):
    """A decoder block: the shapes that the closed form counts."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        shape = (batch, length, 3, self.heads, dim // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.mark.parametrize(
    ("batch", "length", "dim", "heads", "vocabulary"),
    [(2, 16, 32, 4, 64), (1, 33, 48, 3, 101), (3, 8, 64, 8, 16)],
)
def test_flops_of_a_decoder_are_the_closed_form(
    batch: int, length: int, dim: int, heads: int, vocabulary: int
) -> None:
    """Forward 2 N tokens and 4 B T^2 D a layer; backward twice, attention 2.5 times.

    torch's formula of flash attention's backward counts the scores that it computes
    again.
    """
    torch.manual_seed(0)
    layers = 2
    blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
    head = nn.Linear(dim, vocabulary, bias=False)
    x = torch.randn(batch, length, dim, requires_grad=True)
    tokens = batch * length
    weights = layers * 12 * dim**2 + vocabulary * dim
    attention = layers * 4 * batch * length**2 * dim

    def forward() -> torch.Tensor:
        return head(blocks(x)).square().mean()

    assert flops(events_of(forward)) == 2 * weights * tokens + attention

    def step() -> None:
        forward().backward()

    assert flops(events_of(step)) == 6 * weights * tokens + 3.5 * attention


def test_bytes_count_what_is_stored_of_an_expanded_tensor() -> None:
    row = torch.ones(1, 5)
    assert touched_bytes(row.expand(1000, 5)) == 20
    assert touched_bytes(torch.ones(3, 4)) == 48
    assert touched_bytes(torch.ones(0, 4)) == 0
    wide = row.expand(1000, 5)
    (event,) = (e for e in events_of(lambda: wide + 1) if isinstance(e, Operation))
    assert event.moved_bytes == 20 + 20_000


def test_views_are_no_work_and_empty_launches_nothing() -> None:
    def views() -> None:
        torch.empty(4, 4).view(16).reshape(2, 8).t().detach()

    (event,) = (e for e in events_of(views) if isinstance(e, Operation))
    assert (event.name, event.kernels, event.moved_bytes) == ("aten.empty", 0, 0)


def test_the_ledger_knows_what_storages_hold() -> None:
    """Adam in float32 holds two numbers a parameter, and one step counter a tensor."""
    torch.manual_seed(0)

    def train() -> None:
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
        model.register_buffer("scale", torch.ones(10))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()

    parameters = 4 * (32 * 64 + 64 + 64 * 8 + 8)
    peak = alive(events_of(train))
    assert peak["parameters"] == parameters
    assert peak["gradients"] == parameters
    assert peak["optimizer"] == 2 * parameters + 4 * 4
    assert peak["buffers"] == 40
    # Kept for backward: the input, what tanh gave, and what is squared.
    assert peak["activations"] == 4 * 16 * (32 + 64 + 8)


def test_a_resized_storage_is_freed_memory() -> None:
    """FSDP2 frees its parameters by resizing their storage to nothing."""

    def body() -> None:
        x = torch.zeros(1000)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(4000)

    sizes = [
        (type(event), event.num_bytes)
        for event in events_of(body)
        if isinstance(event, StorageMade | StorageGone)
    ]
    assert sizes == [
        (StorageMade, 4000), (StorageGone, 4000), (StorageMade, 0), (StorageGone, 0),
        (StorageMade, 4000), (StorageGone, 4000),
    ]  # fmt: skip


def test_a_storage_lives_as_long_as_any_view_of_it() -> None:
    seen: list[int] = []

    def body() -> None:
        recorder = recording.current()
        view = (torch.ones(10) + 1)[2:]
        seen.append(sum(isinstance(e, StorageGone) for e in recorder.drain()))
        del view
        seen.append(sum(isinstance(e, StorageGone) for e in recorder.drain()))

    events_of(body)
    assert seen == [1, 1], "first the ones, then what the view kept alive"


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: bool(x[0] > 0),
        lambda x: x.tolist(), lambda x: x.numpy(), lambda x: x.nonzero(),
        lambda x: x[x > 0], lambda x: torch.equal(x, x), lambda x: x.unique(),
        lambda x: int(x.argmax()),
    ],
)  # fmt: skip
def test_what_needs_a_value_is_a_read(read: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(4.0)
    assert sum(isinstance(e, ValueRead) for e in events_of(lambda: read(x))) >= 1


@pytest.mark.parametrize(
    "compute",
    [lambda x: x + 1, lambda x: x[torch.tensor([0, 2])], lambda x: x.cpu(), torch.sum],
)
def test_what_needs_none_is_not(compute: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(4.0)
    assert not any(isinstance(e, ValueRead) for e in events_of(lambda: compute(x)))


def test_streams_of_a_cpu_are_a_caveat() -> None:
    found = [e for e in events_of(lambda: torch.cpu.Stream()) if isinstance(e, Caveat)]
    assert [caveat.about for caveat in found] == ["streams"]


def test_nothing_is_left_behind() -> None:
    """After a recording: no mode, no hook, no wrapper that tells."""
    recorder = Recorder()
    recording.install(recorder)
    model = nn.Linear(3, 3)
    with recorded(recorder):
        model(torch.ones(1, 3)).sum().backward()
    recorder.drain()
    assert recorder.observer is None
    model(torch.ones(1, 3)).sum().backward()
    torch.ones(3).untyped_storage().resize_(0)
    assert recorder.drain() == []
    assert not model.weight._post_accumulate_grad_hooks


def test_checkpointing_counts_what_it_computes_again() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(16, 16, bias=False)
    x = torch.randn(4, 16, requires_grad=True)

    def plain() -> None:
        layer(x).tanh().sum().backward()

    def again() -> None:
        checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=False).sum().backward()

    forward = 2 * 4 * 16 * 16
    assert flops(events_of(again)) == flops(events_of(plain)) + forward
