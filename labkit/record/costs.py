"""What an operation costs: floating-point operations, bytes of memory, kernels.

FLOPs are those of matrix products, convolutions and attention, by torch's own formulas
(`torch.utils.flop_counter`): a multiply and an add are two. Torch has none for the
attention that a CPU runs; here it gets those of the other flash kernels. Bytes are what
an operation reads and writes, each storage's touched part once: an expanded tensor
counts what is stored of it, and nothing is taken for cached or fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import flop_counter

_aten: Any = torch.ops.aten
# They reserve memory, and launch nothing.
_RESERVE = frozenset({
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty",
    "aten.new_empty_strided", "aten._local_scalar_dense", "aten.set_",
})  # fmt: skip


class Cost(NamedTuple):
    """What one operation costs; `dtype` is that of its result."""

    flops: float
    moved_bytes: float
    kernels: int
    dtype: str


def cost(function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Cost:
    """The cost of one call of an operator (an OpOverload)."""
    if str(function.overloadpacket) in _RESERVE:
        return Cost(0, 0, 0, "")
    outputs = tuple(tensors(result))
    made = outputs[0] if outputs else next(tensors(args), None)
    dtype = str(made.dtype).removeprefix("torch.") if made is not None else ""
    formula = flop_counter.flop_registry.get(function.overloadpacket)
    flops = formula(*args, **kwargs, out_val=result) if formula is not None else 0
    return Cost(float(flops), _moved(args, kwargs, outputs), 1, dtype)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in an argument list, a result, or lists of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))


def _moved(args: Any, kwargs: Any, outputs: tuple[Tensor, ...]) -> float:
    """Bytes read and written: what is both, as in `x.add_(1)`, moves twice."""
    read = {id(tensor): touched_bytes(tensor) for tensor in tensors((args, kwargs))}
    return sum(read.values()) + sum(map(touched_bytes, outputs))


def touched_bytes(tensor: Tensor) -> int:
    """Bytes of storage that a tensor shows: an expanded dimension counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            elements *= size
    return elements * tensor.element_size()


def _register_attention_of_cpu() -> None:
    """Let the CPU's flash attention count what the GPU's counts."""
    twins = {
        "_scaled_dot_product_flash_attention_for_cpu": (
            _aten._scaled_dot_product_flash_attention
        ),
        "_scaled_dot_product_flash_attention_for_cpu_backward": (
            _aten._scaled_dot_product_flash_attention_backward
        ),
    }
    for name, twin in twins.items():
        own = getattr(_aten, name)
        if own not in flop_counter.flop_registry:
            flop_counter.flop_registry[own] = flop_counter.flop_registry[twin]


_register_attention_of_cpu()
