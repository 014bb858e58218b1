"""Collectives built from send and receive, naive and real side by side.

    operation        naive                  real
    broadcast        broadcast_naive        broadcast_tree
    reduce           reduce_naive           reduce_tree
    all-reduce       all_reduce_naive       all_reduce_ring, _tree, _halving
    reduce-scatter                          reduce_scatter_ring, _direct
    all-gather                              all_gather_ring
    all-to-all                              all_to_all
    gather, scatter  gather, scatter
    barrier          barrier

Read them in this order: `chunks` (who owns what), `exchange` (two messages at once),
`rooted` (stars), `tree`, `ring`, `halving`, `pairwise`.

Legend: `N` elements of the whole array, `n` of this rank's chunk (N / p, rounded), `p`
ranks, `S` bytes of the whole array. Ranks are places in the group. Where values are
added, two ranks' bfloat16 or float16 values are added in float32 and rounded once: that
is what `Tensor.add_` does. Every function is legal where a send ends only when it is
received, takes any dtype that the backend can move, and any number of ranks.
"""

from labkit.comm.collectives.chunks import chunk_sizes, chunks
from labkit.comm.collectives.exchange import exchange
from labkit.comm.collectives.halving import all_reduce_halving
from labkit.comm.collectives.pairwise import all_to_all, barrier, reduce_scatter_direct
from labkit.comm.collectives.ring import (
    all_gather_ring,
    all_reduce_ring,
    reduce_scatter_ring,
)
from labkit.comm.collectives.rooted import (
    all_reduce_naive,
    broadcast_naive,
    gather,
    reduce_naive,
    scatter,
)
from labkit.comm.collectives.tree import (
    all_reduce_tree,
    broadcast_tree,
    reduce_tree,
)

__all__ = [
    "all_gather_ring",
    "all_reduce_halving",
    "all_reduce_naive",
    "all_reduce_ring",
    "all_reduce_tree",
    "all_to_all",
    "barrier",
    "broadcast_naive",
    "broadcast_tree",
    "chunk_sizes",
    "chunks",
    "exchange",
    "gather",
    "reduce_naive",
    "reduce_scatter_direct",
    "reduce_scatter_ring",
    "reduce_tree",
    "scatter",
]
