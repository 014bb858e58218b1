"""The first values of a model: each parameter drawn whole, by its name and the seed.

One generator for all parameters would make each depend on those drawn before it, so a
rank that holds the last layer, or half of each, would have to draw them all. Here each
has its own:

    value = normal(mean 0, std) from a generator seeded by (seed, name)

Any rank draws any parameter, in any order, on any device, and takes its slice.
"""

from __future__ import annotations

from math import sqrt
from typing import TypeVar

import torch
from torch import Tensor, nn

from labkit.errors import UsageError
from labkit.model.seeds import seed_from
from labkit.model.sizes import Sizes

STD = 0.02
# These add to what goes on between blocks: 2 a layer.
_INTO_RESIDUAL = ("attn.o.weight", "mlp.down.weight")
_TIED = ("embed.weight", "head.weight")

Module = TypeVar("Module", bound=nn.Module)
Device = torch.device | str


def draw(
    name: str,
    shape: tuple[int, ...],
    std: float,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: Device = "cpu",
) -> Tensor:
    """A parameter's first values, whole: the same wherever it is drawn.

    They are drawn in float32 on the CPU, then rounded and moved: models of every type
    and on every device start alike.
    """
    generator = torch.Generator().manual_seed(seed_from(seed, name))
    drawn = torch.empty(shape, dtype=torch.float32, device="cpu")
    drawn.normal_(0.0, std, generator=generator)
    # copy_ and not .to: fake tensors go to a GPU that is not there.
    return torch.empty(shape, dtype=dtype, device=device).copy_(drawn)


def first_value(
    name: str,
    shape: tuple[int, ...],
    num_layers: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: Device = "cpu",
) -> Tensor:
    """What a parameter of this name starts from, whole.

    Weights are drawn with STD, those whose products are added to the residual stream
    with STD / sqrt(2 layers), so that it does not grow with depth. Vectors, which norms
    and biases are, start from ones and zeros.

    Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
    section 2.3, for what depth divides by.
    """
    if len(shape) < 2:
        value = 0.0 if name.endswith("bias") else 1.0
        return torch.full(shape, value, dtype=dtype, device=device)
    depth = sqrt(2 * num_layers) if name.endswith(_INTO_RESIDUAL) else 1.0
    return draw(name, shape, STD / depth, seed, dtype, device)


def initialise(model: Module, seed: int, device: Device | None = None) -> Module:
    """Give every parameter its first value; on meta, also its memory.

    Parameters that share memory still do, those that are frozen still are.

    Args:
        model: Any module; `layers` of its `sizes` is how deep it is, if it has them.
        seed: The same on all ranks that shall start alike.
        device: Where parameters go that are on meta, the CPU if None; others stay.

    Returns:
        The model itself.

    Raises:
        UsageError: It has no parameters; or a buffer on meta, of which nothing says the
            value; or its tie is lost.
    """
    sizes = getattr(model, "sizes", None)
    _check(model, isinstance(sizes, Sizes) and sizes.tied)
    num_layers = sizes.layers if isinstance(sizes, Sizes) else 1
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, old in list(model.named_parameters(remove_duplicate=False)):
        if old not in made:
            place = (device or "cpu") if old.is_meta else old.device
            value = first_value(
                name, tuple(old.shape), num_layers, seed, old.dtype, place
            )
            made[old] = _filled(old, value)
        owner, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(owner), own_name, made[old])
    return model


def _filled(old: nn.Parameter, value: Tensor) -> nn.Parameter:
    """The parameter with its value: another one only where it had no memory."""
    if old.is_meta:
        return nn.Parameter(value, requires_grad=old.requires_grad)
    with torch.no_grad():
        old.copy_(value)
    return old


def _check(model: nn.Module, tied: bool) -> None:
    if not any(True for _ in model.parameters()):
        raise UsageError(
            f"a model needs parameters to start from; {type(model).__name__} has 0. "
            "Was a function's result given in place of the model?"
        )
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise UsageError(
                f"a buffer must have its value before the parameters get theirs: "
                f"{name} {tuple(buffer.shape)} is on meta, and no seed says what it "
                "holds. Build the modules that have buffers outside of "
                'torch.device("meta")'
            )
    ends = {name: p for name, p in model.named_parameters() if name in _TIED}
    if tied and len(ends) == 2:
        raise UsageError(
            "sizes.tied says that head and embedding are one parameter; this model has "
            "2, as `to_empty` leaves it. Give `initialise` the model as it is on meta"
        )
