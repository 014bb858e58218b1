# %% [markdown]
# # 01 Collectives
#
# *You build the six operations that all distributed training is made of, know what each
# costs before you run it, and see why no all-reduce wins everywhere.*
#
# **You need** lesson 00: ranks, messages, `exchange`. No GPU is needed.
# **You get** 60 points for six exercises, in about two and a half hours (a plan, not
# measured yet). What you build here is what lessons 02 to 09 run on.
#
# Start four ranks. With `rendezvous=True` a send ends only when it is received, so that no
# buffer hides a mistake:

# %%
from labkit import Cluster, check, hint, predict, reveal

cluster = Cluster(4, rendezvous=True)

# %% [markdown]
# ## 1 · Six pictures
#
# A **collective** is one operation that all ranks of a group take part in. Six of them
# carry nearly all of distributed training. Let each rank r begin with four numbers, 10 r,
# 10 r + 1, 10 r + 2, 10 r + 3, and let PyTorch do each in turn.
#
# **Predict.** After a *reduce-scatter*, how many of the four ranks hold the whole sum?

# %% role="predict"
predict("ranks with the whole sum after a reduce-scatter", ...)

# %%
import torch
import torch.distributed as dist


def six():
    rank = dist.get_rank()
    x = 10 * rank + torch.arange(4)
    first, at_0, total, swapped = (x.clone() for _ in range(4))
    chunk, every = torch.empty(1, dtype=x.dtype), [torch.empty_like(x) for _ in "1234"]
    dist.broadcast(first, src=0)
    dist.reduce(at_0, dst=0)
    dist.all_reduce(total)
    dist.reduce_scatter(chunk, list(x.split(1)))
    dist.all_gather(every, x)
    dist.all_to_all_single(swapped, x)
    shown = at_0 if rank == 0 else None
    return [x, first, shown, total, chunk, torch.cat(every), swapped]


results = cluster.run(six).results

# %%
from labkit.view.table import table

NAMES = ["before", "broadcast from 0", "reduce to 0", "all-reduce", "reduce-scatter",
         "all-gather", "all-to-all"]  # fmt: skip


def shown(value):
    return None if value is None else " ".join(str(v) for v in value.tolist())


rows = [[name, *(shown(each[n]) for each in results)] for n, name in enumerate(NAMES)]
reveal("ranks with the whole sum after a reduce-scatter",
       sum(len(each[4]) == 4 for each in results))  # fmt: skip
table(["", *(f"rank {rank}" for rank in range(4))], rows, "Who has what")

# %% [markdown]
# Read the table row by row. *Reduce-scatter* leaves each rank one quarter of the sum, and
# *all-gather* collects quarters on every rank. One after the other they are an
# *all-reduce*: keep that in mind, it is how the fast ones work.
#
# They come in pairs of opposites: broadcast and reduce, reduce-scatter and all-gather;
# an all-to-all undoes itself. When a collective stands in the forward pass of a model,
# its opposite runs in the backward pass.
#
# ## 2 · Naive
#
# You have `send` and `recv` from lesson 00; build an all-reduce of them. The obvious way:
# everybody sends to rank 0, rank 0 adds up, rank 0 sends the sum to everybody. Call the
# bytes of one rank's array S.
#
# **Predict.** How many S cross the network in all, with 4 ranks?

# %% role="predict"
predict("arrays sent by the naive all-reduce, 4 ranks", ...)

# %%
from labkit.comm import collectives

N = 1_000_000


def on_an_array(call, num_elements=N):
    call(torch.ones(num_elements), dist.group.WORLD)


def arrays_sent(run, num_elements=N):
    """How many times its own array each rank has sent."""
    sent = dict.fromkeys(run.record.header.ranks, 0)
    for row in run.record.traffic:
        if row.kind == "send":
            sent[row.rank] += row.payload_bytes / (4 * num_elements)
    return list(sent.values())


cluster.run(on_an_array, collectives.all_reduce_naive, 4)  # The first run imports.
naive = cluster.run(on_an_array, collectives.all_reduce_naive)
reveal("arrays sent by the naive all-reduce, 4 ranks", sum(arrays_sent(naive)))
naive.timeline("All-reduce, everything through rank 0")

# %% [markdown]
# 2 (p - 1) S with p ranks, and all of it passes rank 0: while rank 0 serves one rank, the
# others stand in line. That is the bar to beat.
#
# ## 3 · A tree
#
# Look at the second half first, the broadcast. After rank 0 has told rank 1, *two* ranks
# know; both can tell another one; then four know. Each **round**, a step in which every
# rank sends at most one message, can double the ranks that know.
#
# **Predict.** How many rounds does a broadcast to 9 ranks need?

# %% role="predict"
predict("rounds for 9 ranks", ...)

# %%
reveal("rounds for 9 ranks", (9 - 1).bit_length())

# %% [markdown]
# Two to the power of 3 is 8, which is one too few: the logarithm is rounded **up**.

# %% [markdown] exercise="1.1" role="statement"
# ### Exercise 1.1 · Broadcast by tree
# *Difficulty 2 of 5 · 15 minutes (unmeasured) · 10 points: values 4, traffic 3, schedule 3*
#
# **Before:** rank `root` has x in `x_N`. **After:** every rank has it there. Use
# `dist.send(x_N, group_dst=1, group=group)` and `dist.recv(x_N, group_src=0,
# group=group)`; `root`, and every rank that you name, counts within `group`.
#
# - *values*: every element on every rank, whoever the root is;
# - *traffic*: p - 1 messages in all; no rank sends more than log2 p of them, rounded up;
# - *schedule*: log2 p rounds, rounded up.
#
# <details><summary>Hint 1 of 3</summary>
#
# After the first round two ranks can know x. How many can after the second, if
# everybody who knows it tells somebody? After round k?
# <details><summary>Hint 2 of 3</summary>
#
# Number the ranks from the root: place = (rank - root) % p. The root is then place 0,
# whoever it is; turn a place back into a rank where you send.
# <details><summary>Hint 3 of 3</summary>
#
# In round k, the places below `2**k` know x. Each sends it to place + `2**k`, if there
# is such a place; the places from `2**k` up to `2**(k + 1)` receive.
# </details></details></details>


# %% exercise="1.1" role="hole"
def broadcast_tree(x_N, root, group):
    """Before: rank `root` has x. After: every rank has it. log2 p rounds."""
    # BEGIN SOLUTION
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % p
    step = 1
    while step < p:
        if place < step and place + step < p:
            dist.send(x_N, group_dst=(place + step + root) % p, group=group)
        elif step <= place < 2 * step:
            dist.recv(x_N, group_src=(place - step + root) % p, group=group)
        step *= 2
    # END SOLUTION


# %% exercise="1.1" role="check" points=10
check("1.1", broadcast_tree)

# %% [markdown]
# **Look.** What you see is a **replay**: the run that was just recorded, with the times of
# a model machine, in which a message takes 1 ms however long it is. A fan on top, your
# tree below.

# %% exercise="1.1" role="look"
from IPython.display import display

from labkit.replay.machine import AlphaBeta

latency_only = AlphaBeta(alpha_s=1e-3, beta_s_per_byte=1e-15)


def broadcast(call):
    call(torch.ones(4), 0, dist.group.WORLD)


with Cluster(8, backend="threads", rendezvous=True, live=False) as eight:
    for call, title in ((collectives.broadcast_naive, "fan"), (broadcast_tree, "tree")):
        run = eight.run(broadcast, call, record="work").replay(latency_only)
        display(run.timeline(f"Broadcast to 8 ranks by a {title}, 1 ms a message"))

# %% [markdown]
# ## 4 · A ring
#
# A tree has few rounds, but its messages are whole arrays, and half of the ranks never
# send. To keep *every* link busy, cut the array into p **chunks** and let all of them
# travel at once: each rank sends to its right and receives from its left. Each chunk goes
# once round the ring, and every rank that it passes adds its own part:

# %%
steps = [[f"step {s}", *(f"sends {(r - s - 1) % 4}, receives and adds to {(r - s - 2) % 4}"
                         for r in range(4))] for s in range(3)]  # fmt: skip
ends = ["at the end", *(f"has all of chunk {rank}" for rank in range(4))]
table(["", *(f"rank {rank}" for rank in range(4))], [*steps, ends], "Chunks on a ring")

# %% [markdown]
# **Predict.** How many S does each rank send in this reduce-scatter, with 4 ranks?

# %% role="predict"
predict("arrays a rank sends in a ring reduce-scatter, 4 ranks", ...)

# %% [markdown] exercise="1.2" role="statement"
# ### Exercise 1.2 · Ring reduce-scatter
# *Difficulty 3 of 5 · 25 minutes (unmeasured) · 10 points: values 4, traffic 4, memory 2*
#
# **Before:** each rank has a whole x. **After:** it returns its own chunk of the sum over
# all ranks; x is as it was. Chunks are *balanced*: with N = 5 and p = 4 they have 2, 1, 1
# and 1 elements (`chunk_sizes` below cuts them).
#
# - *values*: rank r returns chunk r of the sum, in x's dtype;
# - *traffic*: p - 1 messages a rank, to one neighbour only, (p - 1) / p of x in all;
# - *memory*: at its peak, no more than 2 chunks beside the result.
#
# <details><summary>Hint 1 of 3</summary>
#
# Follow one chunk once round the ring: every rank that it passes adds its own part.
# After p - 1 steps it is complete. Where is it then?
# <details><summary>Hint 2 of 3</summary>
#
# The sum of chunk r must end on rank r. So it was on rank r - 1 one step before, ...,
# and on rank r + 1 at first. Which chunk does rank r send first?
# <details><summary>Hint 3 of 3</summary>
#
# In step s, rank r sends chunk r - s - 1 to rank r + 1, receives chunk r - s - 2 from
# rank r - 1, and adds its own part of that chunk; all modulo p.
# </details></details></details>

# %% exercise="1.2" role="hole"
from labkit.comm.collectives import chunk_sizes, exchange


def reduce_scatter_ring(x_N, group):
    """Before: each rank has an x. After: rank r returns chunk r of the sum."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    chunks = x_N.split(chunk_sizes(x_N.numel(), p))
    # BEGIN SOLUTION
    partial = chunks[(rank - 1) % p].clone()
    for step in range(p - 1):
        own = chunks[(rank - step - 2) % p]
        arrived = torch.empty_like(own)
        exchange(partial, (rank + 1) % p, arrived, (rank - 1) % p, group)
        partial = arrived.add_(own)
    return partial
    # END SOLUTION


# %% exercise="1.2" role="check" points=10
check("1.2", reduce_scatter_ring)

# %% exercise="1.2" role="look"
run = cluster.run(on_an_array, reduce_scatter_ring)
reveal("arrays a rank sends in a ring reduce-scatter, 4 ranks", arrays_sent(run)[0])
run.timeline("Your ring reduce-scatter, 4 ranks, 4 MB")

# %% [markdown]
# Three quarters of an array: p - 1 chunks of S / p. No rank waits in line, and no rank is
# in the middle. Now the other half of the all-reduce.

# %% [markdown] exercise="1.3" role="statement"
# ### Exercise 1.3 · Ring all-reduce
# *Difficulty 3 of 5 · 20 minutes (unmeasured) · 10 points: values 4, traffic 4, memory 2*
#
# **Before:** each rank has an x. **After:** every rank's `x_N` is the sum of all, written
# in place.
#
# - *values*: the sum, the same bits on every rank;
# - *traffic*: 2 (p - 1) messages a rank, to one neighbour only, 2 (p - 1) / p of x in all;
# - *memory*: at its peak, no more than 2 chunks beside x.
#
# <details><summary>Hint 1 of 3</summary>
#
# You have half of it: after a reduce-scatter every rank holds one chunk of the sum.
# What is left to do?
# <details><summary>Hint 2 of 3</summary>
#
# Passing on needs no adding. Go round the ring once more, and let each rank write what
# it receives straight into x_N.
# <details><summary>Hint 3 of 3</summary>
#
# The all-gather starts from the chunk that you finished: in step s, rank r sends chunk
# r - s and receives chunk r - s - 1; all modulo p.
# </details></details></details>


# %% exercise="1.3" role="hole"
def all_reduce_ring(x_N, group):
    """Before: each rank has an x. After: every rank's x is the sum, in place."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % p, (rank - 1) % p
    chunks = x_N.split(chunk_sizes(x_N.numel(), p))
    # BEGIN SOLUTION
    scratch = torch.empty_like(chunks[0])
    for step in range(p - 1):
        own = chunks[(rank - step - 2) % p]
        arrived = scratch[: own.numel()]
        exchange(chunks[(rank - step - 1) % p], right, arrived, left, group)
        own += arrived
    for step in range(p - 1):
        known, missing = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        exchange(known, right, missing, left, group)
    # END SOLUTION


# %% exercise="1.3" role="check" points=10
check("1.3", all_reduce_ring)

# %% exercise="1.3" role="look"
ring = cluster.run(on_an_array, all_reduce_ring)
ring.timeline("Your ring all-reduce, 4 ranks, 4 MB")

# %% [markdown]
# The bars are flat: all ranks do the same at the same time. And the more ranks there are,
# the closer 2 (p - 1) / p comes to 2: **however many ranks take part, each sends less than
# two arrays.** That is why data parallelism scales at all.
#
# ## 5 · The surprise
#
# Four all-reduces: naive, by a tree, round a ring, and one that you will build next, by
# halving and doubling.
#
# **Predict.** How many S does the ring send *in all*, on 4 ranks? (The naive one sent 6.)

# %% role="predict"
predict("arrays sent in all by a ring, 4 ranks", ...)

# %%
WAYS = {
    "naive": collectives.all_reduce_naive, "tree": collectives.all_reduce_tree,
    "ring": all_reduce_ring, "halving": collectives.all_reduce_halving,
}  # fmt: skip
rows = []
for name, call in WAYS.items():
    with cluster.undrawn():  # One table instead of four pictures.
        run = cluster.run(on_an_array, call, record="work")
    sent = arrays_sent(run)
    rounds = run.replay(latency_only).record.duration_s / latency_only.alpha_s
    rows.append([name, f"{sum(sent):g}", f"{max(sent):g}", round(rounds)])
reveal("arrays sent in all by a ring, 4 ranks", sum(arrays_sent(ring)))
table(["all-reduce", "S sent in all", "by the busiest rank", "rounds"], rows)

# %% [markdown]
# All the same: 2 (p - 1) S. No bytes are saved, they are *spread*. What differs is how
# much the busiest rank has to send, which counts when arrays are large, and how many
# rounds follow each other, which counts when they are small.
#
# ## 6 · Latency
#
# Each message takes some time however short it is, its **latency**: on a fast network
# some microseconds. A ring of p ranks has 2 (p - 1) rounds. 32 ranks do not fit into this
# machine, but `cluster.dry` records what they *would* do, at any size and without data.
# The machine below is a model: 10 us a message, 10 GB/s a link.
#
# **Predict.** How many rounds does a ring of 32 ranks take?

# %% role="predict"
predict("rounds of a ring of 32", ...)

# %%
from labkit.units import format_seconds

network = AlphaBeta(alpha_s=10e-6, beta_s_per_byte=1e-10, flops_per_s=1e15)
rows = []
for name in ("tree", "ring", "halving"):
    times = []
    for num_bytes in (1 << 10, 1 << 30):
        run = cluster.dry(on_an_array, WAYS[name], num_bytes // 4, world_size=32)
        times.append(run.replay(network).record.duration_s)
    rows.append([name, *map(format_seconds, times)])
reveal("rounds of a ring of 32", 2 * (32 - 1))
table(["all-reduce", "1 KiB", "1 GiB"], rows, "32 ranks on a model network (computed)")

# %% [markdown]
# At 1 GiB the ring is five times as fast as the tree; at 1 KiB six times as slow. Is there
# no way to have few rounds *and* small messages? There is. Two partners swap **halves**:
# each then owns the sum of two ranks for one half. Each pairs up with another partner and
# swaps quarters, and so on, until each rank owns a p-th of the sum: a reduce-scatter in
# log2 p rounds. The same way back, **doubling** what each has, is the all-gather.

# %% [markdown] exercise="1.4" role="statement"
# ### Exercise 1.4 · Halving and doubling
# *Difficulty 4 of 5 · 30 minutes (unmeasured) · 10 points: values 4, traffic 4, schedule 2*
#
# **Before:** each rank has an x. **After:** every rank's `x_N` is the sum of all, in place.
#
# - *values*: the sum, for any p (only powers of two: 2 of 4);
# - *traffic*: for a power of two, 2 log2 p messages a rank and 2 (p - 1) / p of x; for any
#   other p, 2 (p - 1) x in all;
# - *schedule*: for a power of two, 2 log2 p rounds; and where the ranks stand in two
#   nodes, the lower half in one and the upper half in the other, no more than one x leaves
#   a node.
#
# <details><summary>Hint 1 of 3</summary>
#
# Two partners have a whole array each. They swap halves, and each adds what came to the
# half it kept. Who owns the sum of what now? With whom to go on?
# <details><summary>Hint 2 of 3</summary>
#
# In round k the partner is rank ^ `2**k`. Both must cut at the same middle, so remember
# which part you kept and which you gave away: the way back is the same list, from its
# end.
# <details><summary>Hint 3 of 3</summary>
#
# Near partners first (`2**k` = 1, 2, 4, ...): the biggest halves then stay inside a
# node. For p that is no power of two, each rank from the largest power P up gives its x
# to rank - P before, and gets the sum from it after.
# </details></details></details>


# %% exercise="1.4" role="hole"
def all_reduce_halving(x_N, group):
    """Before: each rank has an x. After: every rank's x is the sum, in place."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (p.bit_length() - 1)
    # BEGIN SOLUTION
    if rank >= power:
        dist.send(x_N, group_dst=rank - power, group=group)
        dist.recv(x_N, group_src=rank - power, group=group)
        return
    if rank + power < p:
        arrived = torch.empty_like(x_N)
        dist.recv(arrived, group_src=rank + power, group=group)
        x_N += arrived
    swap_halves(x_N, 1, power, rank, group)
    if rank + power < p:
        dist.send(x_N, group_dst=rank + power, group=group)


def swap_halves(x_n, distance, power, rank, group):
    if distance < power:
        mine, theirs = x_n.tensor_split(2)[:: -1 if rank & distance else 1]
        peer, arrived = rank ^ distance, torch.empty_like(mine)
        exchange(theirs, peer, arrived, peer, group)
        mine += arrived
        swap_halves(mine, 2 * distance, power, rank, group)
        exchange(mine, peer, theirs, peer, group)
    # END SOLUTION


# %% exercise="1.4" role="check" points=10
check("1.4", all_reduce_halving)

# %% exercise="1.4" role="look"
run = cluster.run(on_an_array, all_reduce_halving)
run.timeline("Your halving and doubling, 4 ranks, 4 MB")

# %% [markdown]
# ## 7 · Two numbers explain it
#
# Call the latency of a message **alpha**, in seconds, and the time of one byte **beta**,
# in seconds per byte (1 / bandwidth). A message of n bytes takes alpha + n beta. Measure
# both on this machine: time messages of several sizes between two ranks, and put a line
# through the points.

# %%
import time
from statistics import median

import numpy as np

sizes = [1 << power for power in range(10, 25, 2)]


def seconds_of(call, *arguments, repeats=15):
    """The median of some calls that all ranks begin together."""
    taken = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call(*arguments)
        taken.append(time.perf_counter() - start)
    return median(taken)


def message_times():
    """Seconds of a message each way at once, by size."""
    peer, world = 1 - dist.get_rank(), dist.group.WORLD
    pairs = [(torch.zeros(size // 4), torch.zeros(size // 4)) for size in sizes]
    return [seconds_of(exchange, x, peer, y, peer, world) for x, y in pairs]


# %%
with Cluster(2, quiet=True, live=False) as pair:
    taken_s = np.array(pair.run(message_times).results[0])
weights = np.stack([1 / taken_s, sizes / taken_s], axis=1)
(alpha_s, beta), *_ = np.linalg.lstsq(weights, np.ones(len(sizes)), rcond=None)
alpha_s, beta = max(alpha_s, 1e-7), max(beta, 1e-13)
print(f"alpha = {alpha_s * 1e6:.0f} us, 1 / beta = {1e-9 / beta:.2f} GB/s")
line_s = alpha_s + beta * np.array(sizes)

# %%
from labkit.view.by_size import Series, by_size

by_size({"": [Series("a message each way", sizes, taken_s, line_s)]},
        title="Measured on this machine (dots), alpha + n beta (line)")  # fmt: skip

# %% [markdown]
# The line is flat while alpha rules, and rises when beta does. With these two numbers,
# and what you know of rounds and bytes, you can tell the time of an all-reduce that you
# have never run.

# %% [markdown] exercise="1.5" role="statement"
# ### Exercise 1.5 · Where the lines cross
# *Difficulty 2 of 5 · 15 minutes (unmeasured) · 10 points: values 10*
#
# Write two functions. `predict_s` gives the seconds of an all-reduce of S = `num_bytes`
# on p ranks, for `"naive"`, `"tree"`, `"ring"` and `"halving"` (asked for powers of two
# only). `crossover_bytes` gives the S from which the ring is faster than the tree, and 0
# where it always is.
#
# - *values*: within a millionth, for p from 1 to 1024; at p = 1 everything takes 0.
#
# <details><summary>Hint 1 of 3</summary>
#
# Count the rounds that follow each other, then the bytes that one rank sends in each of
# them. A round takes alpha, and beta for each of those bytes.
# <details><summary>Hint 2 of 3</summary>
#
# Where the lines cross, tree and ring take equally long: set the two formulas equal,
# and solve for S.
# <details><summary>Hint 3 of 3</summary>
#
# The difference of rounds goes above, the difference of bytes below. If a ring has no
# more rounds than the tree, it is ahead from the first byte: 0.
# </details></details></details>


# %% exercise="1.5" role="hole"
def predict_s(algorithm, p, num_bytes, alpha_s, beta_s_per_byte):
    """Seconds of an all-reduce of `num_bytes` on p ranks."""
    # BEGIN SOLUTION
    levels = (p - 1).bit_length()
    rounds, arrays = {
        "naive": (2 * (p - 1), 2 * (p - 1)),
        "tree": (2 * levels, 2 * levels),
        "ring": (2 * (p - 1), 2 * (p - 1) / p),
        "halving": (2 * levels, 2 * (p - 1) / p),
    }[algorithm]
    return rounds * alpha_s + arrays * num_bytes * beta_s_per_byte
    # END SOLUTION


def crossover_bytes(p, alpha_s, beta_s_per_byte):
    """Bytes from which a ring is faster than a tree."""
    # BEGIN SOLUTION
    levels = (p - 1).bit_length()
    if p - 1 <= levels:
        return 0.0
    return alpha_s / beta_s_per_byte * (p - 1 - levels) / (levels - (p - 1) / p)
    # END SOLUTION


# %% exercise="1.5" role="check" points=10
check("1.5", predict_s, crossover_bytes)

# %% exercise="1.5" role="look"
from labkit.units import format_bytes

rows = [
    [p, format_bytes(round(crossover_bytes(p, alpha_s, beta)))]
    for p in (2, 3, 4, 8, 64)
]
table(["ranks", "the ring is faster from"], rows, "With this machine's alpha and beta")

# %% [markdown]
# With 2 or 3 ranks the tree never wins: it has no fewer rounds there. And the more ranks,
# the larger an array has to be before a ring pays.
#
# Now hold your formulas against real ranks: time all four on 4 ranks of this machine, and
# draw your prediction over them.


# %%
def all_reduce_times(call):
    """Seconds of an all-reduce on this rank, by size."""
    arrays = [torch.zeros(size // 4) for size in sizes]
    return [seconds_of(call, x, dist.group.WORLD, repeats=7) for x in arrays]


def slowest_s(call):
    """Seconds of an all-reduce on the rank that took longest, by size."""
    return np.max(cluster.run(all_reduce_times, call).results, axis=0)


with cluster.undrawn():
    measured_s = {name: slowest_s(call) for name, call in WAYS.items()}

# %% exercise="1.5" role="look"
lines = [
    Series(name, sizes, took_s, [predict_s(name, 4, n, alpha_s, beta) for n in sizes])
    for name, took_s in measured_s.items()
]
by_size({"": lines}, title="All-reduce on 4 ranks: measured (dots), predicted (lines)")

# %%
import os

print(f"4 ranks on {os.cpu_count()} processor cores")

# %% [markdown]
# Do the dots follow the lines? All of them are flat at first and rise later: alpha, then
# beta. How high they lie is another matter. You took alpha and beta between *two* ranks.
# Four of them on fewer than four cores take turns: whoever waits for a message also waits
# until the system lets its partner run, and ring and halving, where all ranks work in
# every round, suffer most. Nor does the model know that adding up takes time, and that
# all messages here go through one memory.
#
# So the times of this machine say little of another one. The *counts*, rounds and bytes,
# hold everywhere: on a cluster whose alpha and beta are known, they are what you plan with.
#
# ## 8 · Same bytes, other wires
#
# Inside a node, GPUs are joined by fast links; between nodes the network is some ten times
# slower. Which bytes leave a node depends on *who sends to whom*. Take 16 ranks in two
# nodes of 8 and count, in S.
#
# **Predict.** A ring of 16, ranks in order: how many S leave node 0?

# %% role="predict"
predict("S that leave node 0, ring in order", ...)


# %%
def leaving(run, node_of, num_elements):
    """Arrays that node 0 sends to node 1."""
    return sum(
        row.payload_bytes / (4 * num_elements) for row in run.record.traffic
        if row.kind == "send" and node_of(row.rank) == 0 and node_of(row.peer) == 1
    )  # fmt: skip


WAYS = {"ring": collectives.all_reduce_ring, "halving": collectives.all_reduce_halving}
PLACED = {"in order": lambda rank: rank // 8, "alternating": lambda rank: rank % 2}
rows = []
for name, call in WAYS.items():
    run = cluster.dry(on_an_array, call, 1 << 20, world_size=16)
    rows.append([name, *(f"{leaving(run, n, 1 << 20):g}" for n in PLACED.values())])
reveal("S that leave node 0, ring in order", float(rows[0][1]))
table(["all-reduce", *(f"ranks {how}" for how in PLACED)], rows, "S that leave node 0")

# %% [markdown]
# The same bytes in all, and up to sixteen times as many over the slow wire. In a ring in
# order, one rank's link crosses; with alternating ranks, every link does. Halving with near
# partners first keeps its big halves inside the node, if near in *number* is near in the
# *machine*. So the order of ranks and the order of steps are decisions about the network,
# and that is why NCCL looks at the machine's topology before it chooses rings and trees.
#
# ## 9 · Bus bandwidth
#
# How fast was an all-reduce? S / t, the **algorithm bandwidth**, falls with p even on
# perfect links, because each rank must send 2 (p - 1) / p of S. NVIDIA's nccl-tests
# multiply by that factor and call it **bus bandwidth**: what each link carried, *if* the
# sum is made by messages between ranks. Below are published figures for one node of 8
# GPUs, H100 or H200, whose NVLink carries 450 GB/s each way.
#
# **Predict.** Can the bus bandwidth be larger than what a link carries? (1 yes, 0 no)

# %% role="predict"
predict("bus bandwidth above the link's", ...)

# %%
import csv
from importlib.resources import files

path = files("labkit.replay") / "data" / "nccl_tests_all_reduce.csv"
with path.open() as lines:
    found = list(csv.DictReader(line for line in lines if not line.startswith("#")))
rows = [
    [row["system"], row["ranks"], row["busbw_gbps"], row["source"].split(":")[0]]
    for row in found
    if row["ranks"] == "8" and row["system"].startswith("H") and row["busbw_gbps"]
]
reveal("bus bandwidth above the link's", any(float(row[2]) > 450 for row in rows))
table(["machine", "ranks", "bus bandwidth, GB/s", "published in"], rows)

# %% [markdown]
# It can: on these machines the *switch* between the GPUs adds up (NVIDIA calls it NVLS),
# so that a rank sends its array once and receives the sum once. The factor 2 (p - 1) / p
# then counts bytes that nobody sent. A bus bandwidth is a link's speed only if you know
# the algorithm.
#
# ## 10 · All-to-all
#
# The last of the six: every rank has something else for every rank. You will meet it where
# tokens are sent to experts (lesson 09). The trap is in the order. If every rank sends to
# rank 0 first, then to rank 1, and so on, all wait in one line.

# %% [markdown] exercise="1.6" role="statement"
# ### Exercise 1.6 · All-to-all in rotating pairs
# *Difficulty 3 of 5 · 20 minutes (unmeasured) · 10 points: values 4, traffic 3, schedule 3*
#
# **Before:** `send[k]` is for rank k; `recv_sizes[k]` elements come from rank k. **After:**
# returns a list of what came, in the order of ranks.
#
# - *values*: every piece in its place, the rank's own among them;
# - *traffic*: at most p - 1 messages a rank, each of its own size; nothing to oneself;
# - *schedule*: in each round, every rank receives at most one message.
#
# <details><summary>Hint 1 of 3</summary>
#
# If every rank sends to rank 0 first, then to rank 1, and so on: who waits in the first
# round, and which links carry nothing?
# <details><summary>Hint 2 of 3</summary>
#
# Let each rank begin somewhere else: in round s, send to rank r + s, modulo p.
# <details><summary>Hint 3 of 3</summary>
#
# And in the same round receive from rank r - s, into a tensor of recv_sizes[r - s]
# elements; in round 0 that is yourself: copy.
# </details></details></details>


# %% exercise="1.6" role="hole"
def all_to_all(send, recv_sizes, group):
    """Before: a tensor for each rank. After: one from each, in the order of ranks."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    came = [send[rank].new_empty(size) for size in recv_sizes]
    # BEGIN SOLUTION
    for shift in range(p):
        to, frm = (rank + shift) % p, (rank - shift) % p
        exchange(send[to], to, came[frm], frm, group)
    return came
    # END SOLUTION


# %% exercise="1.6" role="check" points=10
check("1.6", all_to_all)


# %% exercise="1.6" role="look"
def swap():
    p = dist.get_world_size()
    all_to_all([torch.ones(250_000)] * p, [250_000] * p, dist.group.WORLD)


cluster.run(swap).timeline("Your all-to-all, 4 ranks, 1 MB for each")

# %% [markdown]
# ## 11 · Break it: many small roundings
#
# Large models send **bfloat16**, numbers of 2 bytes with 8 bits of precision. Round a ring,
# a partial sum is rounded at every hop. Sent straight to its owner, each value arrives as
# it was, and the owner can add all in float32 and round once. Both send the same bytes:


# %%
def error(call):
    """The largest relative error of this rank's chunk, sums of numbers from 1 to 2."""
    rank, p = dist.get_rank(), dist.get_world_size()
    seeds = [torch.Generator().manual_seed(each) for each in range(p)]
    every = torch.stack([1 + torch.rand(4096, generator=s).bfloat16() for s in seeds])
    exact = every.double().sum(0).split(chunk_sizes(4096, p))[rank]
    chunk = call(every[rank].clone(), dist.group.WORLD)
    return float(((chunk.double() - exact) / exact).abs().max())


rows = []
for p in (2, 4, 8, 16):
    with Cluster(p, backend="threads", quiet=True, live=False) as many:
        ring, direct = (
            max(many.run(error, call).results)
            for call in (reduce_scatter_ring, collectives.reduce_scatter_direct)
        )
    rows.append([p, f"{ring:.4f}", f"{direct:.4f}"])
table(["ranks", "ring", "straight to the owner"], rows, "Largest error of a bf16 sum")

# %% [markdown]
# A ring's error grows with p; the direct sum stays within half of bfloat16's last bit,
# 2**-8 = 0.0039. Keep it in mind for lesson 02, when gradients are summed in 16 bits.
#
# ## 12 · PyTorch's own
#
# Your ring beside the backend's own all-reduce, on the same arrays:

# %%
from labkit.units import format_rate


def own(x_N, group):
    dist.all_reduce(x_N, group=group)


rows = []
with cluster.undrawn():
    took_s = [slowest_s(call) for call in (own, all_reduce_ring, all_reduce_halving)]
for n in (2, 5, 7):
    busbw = [format_rate(1.5 * sizes[n] / each[n], "B/s") for each in took_s]
    rows.append([format_bytes(sizes[n]), *busbw])
table(["S", "the backend's own", "your ring", "your halving"], rows, "Bus bandwidth")

# %% [markdown]
# gloo's own is a ring too, in C++. Figures of one run on a busy machine move by some ten
# percent or more; `labkit bench comm` measures with care. **On GPUs** the same cells run
# over NCCL, which chooses between rings and trees (and the switch, where there is one) by
# size and topology, and moves data by kernels that need no processor.
#
# ## When to use which, and common mistakes
#
# | you have | use | because |
# |---|---|---|
# | large arrays, one fast network | ring | every link busy, 2 (p - 1) / p S a rank |
# | small arrays, or very many ranks | tree, or halving | log2 p rounds |
# | sums in 16 bits | straight to the owner | one rounding |
# | several nodes | what keeps bytes inside a node | the wire between is slow |
#
# | mistake | what you see | part |
# |---|---|---|
# | everything through rank 0 | one busy rank, the others idle | 2 |
# | ranks counted from 0 and not from the root | garbage for other roots | 3 |
# | `torch.chunk` for balanced chunks | fewer chunks than ranks | 4 |
# | a send of a view that is changed meanwhile | wrong values, now and then | 4 |
# | thousands of tiny all-reduces | alpha, and nothing else | 6 |
# | all ranks begin with rank 0 | a line at one rank | 10 |

# %% [markdown]
# ## Practice
#
# **1.** 8 GPUs all-reduce 1 GB round a ring. How much does each GPU send?
# (a) 1 GB; (b) 1.75 GB; (c) 7 GB; (d) 14 GB.
# <details><summary>Answer</summary>
#
# <b>(b)</b>. 2 (p - 1) / p S with p = 8: exercise 1.3. (a) Reduce-scatter and all-gather
# cost 7/8 GB each. (c) That would be whole arrays to all others. (d) is the total over all
# GPUs.
# </details>
#
# **2.** Thousands of all-reduces of 10 KB on 256 GPUs are slow. What helps most?
# (a) faster links; (b) smaller messages; (c) bfloat16; (d) merging them into few.
# <details><summary>Answer</summary>
#
# <b>(d)</b>. Alpha is paid for each, in every round: exercise 1.5. (a) and (c) shrink the
# beta term, which is not the bill here; (b) pays alpha more often.
# </details>
#
# **3.** nccl-tests report a bus bandwidth of 480 GB/s on links of 450 GB/s. Why?
# (a) the timer is wrong; (b) both directions are added up; (c) the switch adds up, and the
# factor assumes messages between ranks; (d) the data are compressed.
# <details><summary>Answer</summary>
#
# <b>(c)</b>. Part 9. (b) The definition counts what a rank sends only, and (a), (d) are
# not needed to explain it.
# </details>

# %% [markdown]
# ## What to read
#
# - Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in
#   MPICH*, 2005: trees, halving, and which wins when.
# - Patarasuk, Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*,
#   2009: why no algorithm sends less than a ring.
# - [nccl-tests, PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md):
#   the definitions of algorithm and bus bandwidth.
# - `labkit/comm/collectives`: all of these, and gather, scatter and a barrier.

# %%
cluster.close()
print(
    "🎉 Six collectives, built and priced. Next: 02 Data parallelism, where your ring"
)
print("   adds up gradients.")
