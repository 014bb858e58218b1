"""Which part of an array each rank owns.

    N = 10, p = 4      rank 0   rank 1   rank 2   rank 3
                       0 1 2    3 4 5    6 7      8 9

Balanced: the first N mod p ranks own one element more, so that sizes differ by at most
one. (`torch.chunk` rounds up, and for N = 5, p = 4 gives three chunks.)
"""

from __future__ import annotations

from torch import Tensor

from labkit.errors import UsageError


def chunk_sizes(num_elements: int, num_chunks: int) -> tuple[int, ...]:
    """Elements of each of `num_chunks` balanced chunks of `num_elements`."""
    whole, more = divmod(num_elements, num_chunks)
    return tuple(whole + (number < more) for number in range(num_chunks))


def chunks(x_N: Tensor, num_chunks: int) -> tuple[Tensor, ...]:
    """Balanced chunks of an array, of any shape, as flat views into it.

    Raises:
        UsageError: Its elements do not lie one after another in memory, so that a flat
            view of them cannot be.
    """
    flat_N = flat(x_N)
    return flat_N.split(list(chunk_sizes(flat_N.numel(), num_chunks)))


def flat(x: Tensor) -> Tensor:
    """All elements of a tensor in one dimension: a view, so that writes reach it.

    Raises:
        UsageError: Its elements do not lie one after another in memory.
    """
    if not x.is_contiguous():
        raise UsageError(
            "a collective needs elements that lie one after another in memory; got a "
            f"tensor of shape {tuple(x.shape)} with strides {x.stride()}. Hand over "
            "x.contiguous(), and copy the result back"
        )
    return x.detach().view(-1)
