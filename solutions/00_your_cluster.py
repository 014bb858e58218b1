# %% [markdown]
# # 00 Your cluster
#
# *You run code on four ranks at once, read what they did, make a deadlock impossible, and
# find the one rank that slows the rest.*
#
# **You need** Python and a little PyTorch: tensors, and what a training step is. Nothing
# about many GPUs: every word of it is explained where it first appears. No GPU is needed.
# **You get** 30 points for three exercises, in about an hour (a plan, not measured yet).
#
# Run the cells in order with Shift+Enter. Some **fail on purpose**, because a clear error
# is part of what this lesson shows; the text above such a cell says so. Start here:

# %%
from labkit import Cluster, check, hint, mark, predict, reveal, span

cluster = Cluster(4)

# %% [markdown]
# The line under the cell says what was started here, and why. Four programs now wait for
# work, and go on waiting between cells, so the next one starts in milliseconds. **gloo**
# is a library that carries messages between programs on processors; **NCCL** ("nickel")
# carries them between GPUs.
#
# ## 1 · A rank is a process
#
# A **process** is a running program with memory of its own. A **rank** is one process of a
# job that runs on many, and also that process's number: 0, 1, 2, 3. How many ranks there
# are is the **world size**. All ranks run the same program; what differs is the number,
# and what the program makes of it. On a machine with GPUs each rank drives one of them.
#
# ```
# notebook ──── a function, and copies of what it uses ────> rank 0, 1, 2, 3
# notebook <─── what it returned, printed, did and when ──── rank 0, 1, 2, 3
# ```
#
# **Predict.** In the next cell, `counter` is 0 in the notebook, and four ranks each add 1
# to it. What does the notebook print for `counter` afterwards? Put your number in place
# of `...`. Guesses earn no points; they make the answer stay.

# %% role="predict"
predict("the notebook's counter", ...)

# %%
counter = 0


def add_one():
    global counter
    counter += 1
    return counter


run = cluster.run(add_one)
reveal("the notebook's counter", counter)

# %% [markdown]
# `cluster.run` calls the function once on every rank and waits for all of them. What each
# returned is in `run.results`, by rank. Who has what now?

# %%
from labkit.view.table import table

columns = ["", "notebook", *(f"rank {rank}" for rank in range(4))]
table(columns, [["counter", counter, *run.results]], "One name, five variables")

# %% [markdown]
# Five variables with one name, one in each process. The function took a **copy** of the
# notebook's `counter` along, as it does with everything it uses; each rank added to its
# own copy; only what the function *returned* came back. **Nothing is shared.** Whatever
# one rank should know of another has to be sent, and the rest of this course is about
# what to send, when, and at what cost.
#
# So how does a rank know which one it is? It asks `torch.distributed`, PyTorch's package
# for talking between ranks:

# %%
import os
from pathlib import Path

import torch
import torch.distributed as dist


def who_am_i():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am rank {rank} of {world_size}, in process {os.getpid()}")


run = cluster.run(who_am_i)
print(f"The notebook itself is process {os.getpid()}, and no rank at all.")

# %% [markdown]
# What ranks print appears under the cell, tagged by rank. To look around on some ranks,
# begin a cell with `%%ranks` and their numbers: it runs there, in the cluster that was
# made last. What it finds are the ranks' own variables, which stay from cell to cell; here
# are the copies of `counter` again:

# %%
# %%ranks 0,2
counter += 10 * dist.get_rank()
print("my counter is now", counter)

# %% [markdown]
# ## 2 · What this machine is
#
# What you just ran on, as far as it matters here:

# %%
from labkit.runtime.doctor import report

report()

# %% [markdown]
# The ranks share the processor's **cores**, the parts of it that compute at the same time.
# PyTorch splits a large operation over several **threads**, workers within a process that
# do share its memory.
#
# **Predict.** How many threads should each of your four ranks use on this machine?

# %% role="predict"
predict("threads of each rank", ...)

# %%
from labkit.runtime.devices import look

cores = look().cores
threads = cluster.run(torch.get_num_threads).results
print(f"{cores} cores, 4 ranks: max(1, {cores} // 4) = {max(1, cores // 4)}")
reveal("threads of each rank", threads[0])

# %% [markdown]
# More threads than cores do not help: they take turns, and waiting for one's turn costs
# time. Left alone, though, PyTorch gives *every process* a thread for each core, as if it
# had the machine to itself. See what that does to four ranks. (`span` names a stretch of
# a rank's work, to find it again in a picture.)


# %%
def work(num_steps):
    layer = torch.nn.Linear(512, 512)
    x_BD = torch.randn(128, 512)
    for _ in range(num_steps):
        with span("step"):
            layer(x_BD).relu().sum().backward()


greedy = Cluster(4, threads=cores, live=False)
for each in (cluster, greedy):  # once to warm up, untimed
    each.run(work, 1)
shared, crowded = cluster.run(work, 5), greedy.run(work, 5)
print(f"threads a rank, {threads[0]}: {1e3 * shared.seconds:.0f} ms for 5 steps")
print(f"threads a rank, {cores}: {1e3 * crowded.seconds:.0f} ms for the same work")

# %%
greedy.close()
crowded.timeline("Four ranks, each with a thread for every core")

# %% [markdown]
# This is a **timeline**: a row for each rank, time from left to right, a bar for each
# stretch of work. How much longer the crowded run takes depends on the machine, and on
# what else it is doing (with a single core there is no difference). labkit sets the
# threads for you; in a script of your own you set them, by the environment variable
# `OMP_NUM_THREADS`.
#
# ## 3 · Order is not free
#
# Four ranks say hello, three times over. In which order?


# %%
def say_hello():
    print(f"hello from rank {dist.get_rank()}")


for _ in range(3):
    cluster.run(say_hello)
    print()

# %% [markdown]
# The order is nobody's decision: four processes run at once, and whichever the operating
# system lets go first is first. It may be the same a hundred times and different on the
# day that matters. Ranks that must act in order have to **tell** each other.
#
# They do it with **messages**. A message needs two calls that match: `dist.send` on the
# rank that has the data, `dist.recv` on the rank that wants it. The receiver hands over a
# tensor of the right size and type, which is filled in place; `recv` does not return
# before the data is there. A rank that stands still in a call like that is **blocked**.


# %%
def pass_a_number():
    box = torch.zeros(1)
    if dist.get_rank() == 0:
        box[0] = 42
        dist.send(box, dst=1)
    if dist.get_rank() == 1:
        dist.recv(box, src=0)
    return box.item()


cluster.run(pass_a_number).results

# %% [markdown]
# Rank 1 has the number, ranks 2 and 3 never heard of it.
#
# **Predict.** What is the smallest number of messages that forces four ranks to speak in
# the order 0, 1, 2, 3?

# %% role="predict"
predict("messages that force the order", ...)

# %% [markdown] exercise="0.1" role="statement"
# ### Exercise 0.1 · Speak in order
# *Difficulty 1 of 5 · 10 minutes (unmeasured) · 10 points: values 3, traffic 4, schedule 3*
#
# **Before:** each rank can call `say()` once, which makes it speak. **After:** every rank
# has spoken, in rank order. The order must be held by messages: each rank has *heard*,
# directly or along a chain, that the one before it has spoken. Sleeping does not count.
#
# `group` is the set of ranks that take part, and may be a part of all. Hand it to every
# call: `dist.get_rank(group)` is a rank's **place** in it, counted from 0, and
# `dist.send(x, group_dst=1, group=group)` sends to place 1; `group_src=` is the same for
# `recv`. (Plain `dst=1` names rank 1 of all ranks, even in a group of ranks 1, 3 and 5.
# That mistake hides for as long as the group is everybody, so the check tries both.)
#
# - *values*: each rank speaks once, itself;
# - *traffic*: with p ranks at most p - 1 messages of at most 8 bytes each, and no other
#   kind of communication; a rank alone sends none;
# - *schedule*: rank r has spoken before rank r + 1 does, whichever rank is slow.
#
# Stuck? Unfold a hint below, or run `hint("0.1")` in a cell of your own: each call shows
# one more. Hints cost no points, and you may check as often as you like.
#
# <details><summary>Hint 1 of 3</summary>
#
# Which rank may speak without anybody's permission?
# <details><summary>Hint 2 of 3</summary>
#
# Permission can be a tensor of one element: what it holds does not matter.
# <details><summary>Hint 3 of 3</summary>
#
# Receive from rank - 1 unless rank is 0; speak; send to rank + 1 unless you are the last.
# </details></details></details>


# %% exercise="0.1" role="hole"
def speak_in_order(say, group):
    """Call say() once on every rank of the group, rank 0 first, then 1, 2, ...

    At most p - 1 messages of at most 8 bytes, for p ranks.
    """
    # BEGIN SOLUTION
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    permission = torch.zeros(1)
    if rank > 0:
        dist.recv(permission, group_src=rank - 1, group=group)
    say()
    if rank < world_size - 1:
        dist.send(permission, group_dst=rank + 1, group=group)
    # END SOLUTION


# %% exercise="0.1" role="check" points=10
check("0.1", speak_in_order)

# %% [markdown]
# **Look.** Your function on four ranks, with its messages drawn as arrows: a staircase,
# since each rank waits for the one before. `mark` sets the points at which they spoke.
# Order has a price. Count it in **rounds**, the time of one message: each has to follow
# the one before.

# %% exercise="0.1" role="look"
from labkit.checks.verify import rounds, sends


def speak():
    speak_in_order(lambda: mark("spoke"), dist.group.WORLD)


cluster.run(speak)  # once to connect the ranks: they do so at their first message
run = cluster.run(speak)
reveal("messages that force the order", len(sends(run.events)))
print("rounds:", rounds(run.events))
run.timeline("Exercise 0.1: permission goes from rank to rank")

# %% [markdown]
# `dist.group.WORLD` is the group of all ranks, where a place and a rank are the same
# number; it is what every call uses when you name no group.
#
# ## 4 · A deadlock on purpose
#
# Two ranks swap one number each. Both send first, then receive. For once the ranks are
# two **threads of one process**: the same functions and the same calls, only what carries
# the messages is another.


# %%
def swap_send_first():
    rank = dist.get_rank()
    peer = 1 - rank
    mine, theirs = torch.full((1,), float(rank)), torch.empty(1)
    dist.send(mine, dst=peer)
    dist.recv(theirs, src=peer)
    return theirs.item()


with Cluster(2, backend="threads") as pair:
    print("each rank got the other's number:", pair.run(swap_send_first).results)

# %% [markdown]
# It works. It is also wrong, and what carries the messages hides it. Between these
# threads, a message is put into a **buffer**, a place in memory where it waits for its
# receiver, and `send` returns at once. Nobody promised a buffer. Some networks have one
# for small messages only, some have none.
#
# Without a buffer, a send ends only when its receive has begun: both must be there at the
# same time, a **rendezvous**. `rendezvous=True` makes sure of that, whatever carries the
# messages. The next cell runs the same function on two processes, with the same 4 bytes.
# It **fails on purpose**.
#
# **Predict.** After how many seconds will you be told?

# %% role="predict"
predict("seconds until you are told", ...)

# %% tags=["raises-exception"]
import time

strict = Cluster(2, rendezvous=True)
strict.run(who_am_i)  # once, so that starting up is not counted below
began_s = time.monotonic()
try:
    strict.run(swap_send_first)
finally:
    waited_s = time.monotonic() - began_s

# %%
from torch.distributed.constants import default_pg_timeout

reveal("seconds until you are told", waited_s, "s")
print("PyTorch by itself gives up after (h:m:s)", default_pg_timeout)
strict.close()

# %% [markdown]
# Read the message once more, line by line: for each rank the call that it stands in, your
# own line, and whom it waits for. Rank 0 waits for rank 1, rank 1 waits for rank 0. Ranks
# that wait for each other in a circle are in a **deadlock**: none can go on before
# another has. That the buffered version went well proved nothing.
#
# There is a way out of the circle, in the names `dist.isend` and `dist.irecv`. They
# *start* a transfer and return at once with a handle; `handle.wait()` blocks until that
# transfer has ended. Until then, the tensor belongs to the transfer: do not write into
# what is being sent, do not read what is being received.

# %% [markdown] exercise="0.2" role="statement"
# ### Exercise 0.2 · Exchange without fear
# *Difficulty 2 of 5 · 15 minutes (unmeasured) · 10 points: values 3, traffic 2, schedule 5*
#
# Every rank of a group calls `exchange`, and sends to one rank while it receives from
# another (or from the same); `to` and `frm` are places in the group. You will use this
# function for the rest of the course.
#
# **Before:** `send_N` is full, `recv_M` holds anything. **After:** `recv_M` holds what
# rank `frm` sent, and the caller may overwrite `send_N` at once. The suffixes name the
# shapes: N elements go out, M come in, and either may be 0.
#
# - *values*: every element, right when the function returns;
# - *traffic*: one message out and one in for each rank. Where `to` is the rank itself,
#   copy, and send nothing;
# - *schedule*: it ends without any buffer, for pairs, for rings of every length, for a
#   shuffle in which each rank has one sender; and all messages travel at once, in one
#   round (a slower way that always ends earns 2 of 5).
#
# <details><summary>Hint 1 of 3</summary>
#
# Draw both ranks, each at the first line of your function. What does each need from the
# other to get past it?
# <details><summary>Hint 2 of 3</summary>
#
# Start one of the two transfers without waiting for it: `isend` and `irecv` return at
# once, with something to wait for.
# <details><summary>Hint 3 of 3</summary>
#
# Start both, then wait for both. Who sends to itself has nothing to wait for: it copies.
# </details></details></details>


# %% exercise="0.2" role="hole"
def exchange(send_N, to, recv_M, frm, group):
    """Send `send_N` to rank `to` while `recv_M` is filled by rank `frm`.

    One message out and one in; none where `to` is this rank. One round.
    """
    # BEGIN SOLUTION
    if to == dist.get_rank(group):
        recv_M.copy_(send_N)
        return
    incoming = dist.irecv(recv_M, group_src=frm, group=group)
    outgoing = dist.isend(send_N, group_dst=to, group=group)
    incoming.wait()
    outgoing.wait()
    # END SOLUTION


# %% exercise="0.2" role="check" points=10
check("0.2", exchange)

# %% [markdown]
# **Look.** The ranks in a **ring**, each sending to the next and the last to the first,
# with no buffer anywhere, 16 MB each. Compare with the staircase of 0.1: as many ranks,
# more messages, and all of them travel at once.


# %% exercise="0.2" role="look"
def pass_it_on():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.full((4_000_000,), float(rank)), torch.empty(4_000_000)
    to, frm = (rank + 1) % world_size, (rank - 1) % world_size
    exchange(mine, to, theirs, frm, dist.group.WORLD)
    return theirs[-1].item()


with Cluster(4, rendezvous=True, quiet=True) as ring:
    ring.run(pass_it_on)
    run = ring.run(pass_it_on)
print("each rank now has:", run.results)
print("messages:", len(sends(run.events)), "rounds:", rounds(run.events))
run.timeline("Exercise 0.2: everybody at once")

# %% [markdown]
# ## 5 · Everyone must make the same calls
#
# Messages join two ranks. A **collective** is one operation that every rank of a group
# takes part in. `dist.all_reduce(x)` adds up the ranks' tensors and leaves the sum in
# every rank's `x`; `dist.broadcast(x, src=0)` copies rank 0's `x` to all. Nobody names a
# partner in the call: the first collective of one rank belongs to the first of the
# others, the second to the second. So all ranks must make **the same calls in the same
# order**.


# %%
def sum_of_ranks():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


cluster.run(sum_of_ranks).results

# %% [markdown]
# Here is the same idea gone wrong: rank 0 makes two calls in one order, the others in
# the other. This cell **fails on purpose**.


# %% tags=["raises-exception"]
def out_of_step():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x)
        dist.broadcast(x, src=0)
    else:
        dist.broadcast(x, src=0)
        dist.all_reduce(x)
    return x.tolist()


cluster.run(out_of_step)

# %% [markdown]
# The message puts the two first calls side by side, each with your line. It comes at
# once, because the calls are compared while they are made. Left to itself, PyTorch would
# have mixed up the data without a word, or waited in vain: which, depends on the network
# library. Whenever you see `if rank == 0:` around a collective, stop and look twice.
#
# ## 6 · The slow rank looks fast
#
# In training, ranks compute on their own, then combine what they found in a collective,
# step after step. What if one is slower than the rest? `cluster.slow` arranges it: rank 2
# now takes twice as long for what it computes. (A shared machine, a hot GPU, or a longer
# batch does the same without asking.)
#
# The work in the next cell is a pause, which is what a processor sees while its GPU
# computes. It lasts equally long on a busy laptop and an idle one.
#
# **Predict.** Which rank will spend the *most* time inside its all-reduce calls? Give a
# rank number.

# %% role="predict"
predict("the rank that is longest in all-reduce", ...)


# %%
def train(num_steps=10):
    gradient = torch.ones(1000)
    for _ in range(num_steps):
        with span("step"):
            time.sleep(0.03)  # stands for the forward and backward pass
            dist.all_reduce(gradient)


factor = 2.0
cluster.run(train, 1)  # once to warm up
cluster.slow(rank=2, factor=factor)
slow_run = cluster.run(train)
cluster.heal()
slow_run.timeline("Ten steps; rank 2 computes at half speed")

# %% [markdown]
# Now add up, for each rank, what a simple timer around the call would have shown:

# %%
from labkit.checks.lesson_00 import spans

timed = spans(slow_run.rows())
in_calls = [
    sum(s.end - s.start for s in timed if s.kind == "collective" and s.rank == rank)
    for rank in range(4)
]
for rank, seconds in enumerate(in_calls):
    print(f"rank {rank}: {1e3 * seconds:6.1f} ms in all-reduce")
reveal("the rank that is longest in all-reduce", in_calls.index(max(in_calls)))

# %% [markdown]
# The longest calls are those of the ranks that are **not** slow. Rank 2, the culprit, has
# the shortest. Time inside a collective is mostly *waiting for the last to arrive*: the
# hatched part of each bar. Once rank 2 is there, the transfer itself takes a moment.
#
# A rank that is late and makes the others wait is called a **straggler**. Remember the
# picture when a tool tells you that "communication takes 40 % of the step".

# %% [markdown] exercise="0.3" role="statement"
# ### Exercise 0.3 · Who was late
# *Difficulty 2 of 5 · 15 minutes (unmeasured) · 10 points: values 10*
#
# Find the straggler of every step, and what it cost. No communication here: a plain
# function of what was recorded.
#
# **In:** `spans`, a list in no particular order. Each has `step`, `rank`, `kind`
# (`"compute"` or `"collective"`), `name`, and `start` and `end` in seconds. The spans of
# one collective have the same step and name on every rank.
#
# **Out:** a list of `(step, rank, lost)`, one for each step with a collective, in the
# order of steps. A rank's *wait* at a collective is (last start - own start). `rank` is
# the one whose waits in that step add up to the least: it came last, so it waited least
# (the lowest number on a tie). `lost` is the sum of all ranks' waits in that step, in
# seconds.
#
# Every rank that appears in `spans` must appear in every collective: if one is missing,
# raise a `ValueError` whose message has its number. Ranks may *leave* a collective at
# different times; that must not fool you.
#
# <details><summary>Hint 1 of 3</summary>
#
# Look at the picture above: whose bar in the all-reduce is the shortest, and why?
# <details><summary>Hint 2 of 3</summary>
#
# A collective cannot end before its last rank has come. What did each other rank do
# between its own start and that moment?
# <details><summary>Hint 3 of 3</summary>
#
# Group the spans of kind "collective" by (step, name). In each group, a rank has waited
# from its own start to the last start. Add up its waits over the step: who waited least
# came last, and the sum over ranks is what was lost.
# </details></details></details>

# %% exercise="0.3" role="hole"
from collections import defaultdict


def stragglers(spans):
    """For each step: (step, the rank that came last, seconds that all ranks waited)."""
    # BEGIN SOLUTION
    ranks = sorted({each.rank for each in spans})
    starts = defaultdict(dict)
    for each in spans:
        if each.kind == "collective":
            starts[each.step, each.name][each.rank] = each.start
    waits = defaultdict(lambda: dict.fromkeys(ranks, 0.0))
    for (step, name), start in sorted(starts.items()):
        for rank in ranks:
            if rank not in start:
                raise ValueError(f"step {step}: rank {rank} has no {name}")
            waits[step][rank] += max(start.values()) - start[rank]
    return [(step, min(w, key=w.get), sum(w.values())) for step, w in waits.items()]
    # END SOLUTION


# %% exercise="0.3" role="check" points=10
check("0.3", stragglers)

# %% [markdown]
# **Look.** Your function on the run above. Is it rank 2 in every step?

# %% exercise="0.3" role="look"
found = stragglers(timed)
for step, rank, lost_s in found:
    print(f"step {step}: rank {rank} was last, the others lost {1e3 * lost_s:.1f} ms")
total_s = sum(lost_s for _, _, lost_s in found)
print(f"all together: {1e3 * total_s:.0f} ms of {4 * slow_run.seconds * 1e3:.0f} ms")

# %% [markdown]
# How busy can such a job be at all? If three ranks compute for a time of 1 and rank 2 for
# a time of $f$, all four are done after $f$, and together they have worked $p - 1 + f$
# out of $p f$, for $p$ ranks.
#
# **Predict.** What percentage is that for four ranks and $f = 2$?

# %% role="predict"
predict("percent busy", ...)


# %%
def percent_busy(p, factor):
    return 100 * (p - 1 + factor) / (p * factor)


busy_s = sum(s.end - s.start for s in timed if s.kind == "compute")
end_s = max(s.end for s in timed)
reveal("percent busy", percent_busy(4, factor))
print(f"measured: {100 * busy_s / (4 * end_s):.0f} % of 4 x {1e3 * end_s:.0f} ms")
print(f"1000 ranks, one of them slow: {percent_busy(1000, factor):.0f} %")

# %% [markdown]
# The formula leaves out the transfers and what the machine did besides, so the measured
# share is near it, not equal to it. Look at the last line: with more ranks, a single
# straggler wastes more. That is why balance is the first thing to look for in a slow job.
#
# ## 7 · Ranks fail
#
# With thousands of GPUs, something is always broken. `cluster.fail` breaks rank 1 at its
# third all-reduce. The next cell **fails on purpose**.

# %% tags=["raises-exception"]
cluster.fail(rank=1, at="all_reduce#3")
cluster.run(train)

# %% [markdown]
# The first line names the rank that failed and why; then comes your own line; then what
# became of the others. They were blocked in an all-reduce that rank 1 never reached, and
# would have stayed there. Your notebook has working ranks again:

# %%
cluster.heal()
print("sum of ranks:", cluster.run(sum_of_ranks).results)

# %% [markdown]
# ## Break it
#
# Things that go wrong for everybody, to be met here first.
#
# **A typo costs nothing.** Put something on the ranks that took long to make:

# %%
# %%ranks
weights = torch.full((3,), 100.0 + dist.get_rank())

# %% [markdown]
# Then run something with a typo in it. This cell **fails on purpose**:


# %% tags=["raises-exception"]
def oops():
    return torch.ones(3).summ()


cluster.run(oops)

# %%
# %%ranks
print("still here:", weights.tolist())

# %% [markdown]
# **What travels.** Functions and classes from your cells go along with a run. An open
# file cannot: it belongs to the process that opened it. The second cell **fails on
# purpose**, and says which name is at fault.


# %%
class Recipe:
    def __init__(self, rate):
        self.rate = rate

    def halve(self):
        return Recipe(self.rate / 2)


recipe = Recipe(rate=0.5)
rates = cluster.run(lambda: recipe.halve().rate, ranks=[1, 3]).results
print("on ranks 1 and 3:", rates, "- in the notebook still:", recipe.rate)

# %% tags=["raises-exception"]
log = Path(os.devnull).open("w")  # noqa: SIM115


def write_log():
    log.write("hello")


cluster.run(write_log)

# %% [markdown]
# **Stop.** Make `patience_s` 600, run the cell, and press ■ (or the keys I, I). You get
# the prompt back, and are told what each rank was doing. Ranks that a stop reaches, as it
# reaches these, stay as they are; others are replaced. (`labkit check` leaves this cell
# out, so it may stay at 600.)

# %% tags=["nbval-skip"]
patience_s = 0.1

cluster.run(time.sleep, patience_s).seconds

# %% [markdown]
# **Who has what?** Decide first, then open.
#
# <details><summary>A function runs <code>x = torch.tensor(dist.get_rank())</code> on every
# rank. Who has <code>x</code> afterwards?</summary>
#
# Nobody. It was a local variable of the function, and nobody returned it.
# </details>
# <details><summary>A <code>%%ranks</code> cell runs the same line. Who has
# <code>x</code>?</summary>
#
# Every rank, each its own; the notebook has none. A later <code>%%ranks</code> cell finds
# it there.
# </details>
# <details><summary>Then one rank's process dies. Who has <code>x</code>?</summary>
#
# Nobody: the ranks are replaced, and the message lists <code>x</code> among what was
# lost. After a mere exception in Python, as the typo above, every rank still has it.
# </details>

# %% [markdown]
# ## The same without a notebook
#
# None of your functions knows that it runs in a notebook. Outside, ranks are started by
# **torchrun**, which comes with PyTorch: it starts a script several times, and tells each
# copy its rank. Here is one function, in a cell and as such a script. (Starting four
# interpreters and importing PyTorch in each takes some seconds: cells are spared that.)

# %%
import inspect
import subprocess
import sys
import tempfile


def draw_and_add():
    torch.manual_seed(dist.get_rank())
    x = torch.randn(2)
    dist.all_reduce(x)
    return x.tolist()


script = f"""import torch
import torch.distributed as dist

{inspect.getsource(draw_and_add)}

dist.init_process_group("gloo")
print(f"{{draw_and_add()}}\\n", end="")
dist.destroy_process_group()
"""

# %%
path = Path(tempfile.mkdtemp()) / "draw.py"
path.write_text(script)
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
done = subprocess.run(
    [*torchrun, "--nproc-per-node", "4", path],
    capture_output=True, text=True, timeout=100,
    env={**os.environ, **cluster.placement.env},
)  # fmt: skip
outside = [eval(line) for line in done.stdout.splitlines()]
inside = cluster.run(draw_and_add).results
print("torchrun:", outside, done.stderr if done.returncode else "", sep="\n")
print("notebook:", inside, sep="\n")
assert outside == inside

# %% [markdown]
# Identical, to the last digit. Two lines were added, and every such script begins and
# ends with them: `init_process_group` joins the ranks to a group, which labkit has done
# for you, and `destroy_process_group` takes leave.
#
# **On other hardware.** With a GPU for each rank, `Cluster(4)` chooses NCCL, gives each
# rank its own GPU, and says so. With one GPU, ranks share it, and the first line says how.
# Your functions run as they stand: their tensors are in the CPU's memory, and travel by
# gloo even there. Make them with `device="cuda"` to see them travel by NCCL.
#
# ## When to use ranks, and common mistakes
#
# Use ranks when the work can be split, and what has to be sent is small against what is
# computed. Do not when a single device is not yet busy: a second one then waits as well.
#
# | mistake | what you see | part |
# |---|---|---|
# | changing a variable and expecting others to see it | nothing happens | 1 |
# | a thread for each core in each rank | everything is slow | 2 |
# | `time.sleep` to put ranks in order | right today | 3 |
# | both ranks send first | works here, hangs there | 4 |
# | `isend` without `wait` | wrong values, now and then | 4 |
# | a collective under `if rank == 0:` | a mismatch, or a hang | 5 |
# | blaming the rank with the longest all-reduce | the wrong machine is replaced | 6 |

# %% [markdown]
# ## Practice
#
# **1.** Seven of eight GPUs show all-reduces of 40 ms, one shows 2 ms. What do you look at
# first?
# (a) the network; (b) the size of the messages; (c) the seven; (d) what the one does
# before its all-reduce.
# <details><summary>Answer</summary>
#
# <b>(d)</b>. The one arrives last and waits least, so it is what the seven wait for: part
# 6 and exercise 0.3. (a) The transfer is at most the 2 ms. (b) Larger messages save calls,
# and these 38 ms are not spent on calls. (c) It is the other way round: the seven wait.
# </details>
#
# **2.** Somebody adds one metric to what rank 0 logs, and computes it with an all-reduce.
# What happens?
# (a) rank 0 gets its own part of the sum; (b) the others contribute zeros; (c) the job
# hangs or stops with a mismatch; (d) it gets a little slower.
# <details><summary>Answer</summary>
#
# <b>(c)</b>. Ranks must make the same calls in the same order: part 5. Rank 0's extra
# all-reduce meets the others' next collective, whatever that is, or nothing at all. There
# is no such thing as a partial result (a), nor one with zeros (b).
# </details>
#
# **3.** On some network two ranks exchange 8 bytes, and all is well. With 64 MB they
# hang. Why?
# (a) out of memory; (b) both send before they receive, and 8 bytes fit into a buffer;
# (c) a slow link; (d) tensors of different types.
# <details><summary>Answer</summary>
#
# <b>(b)</b>. Part 4: the buffer had hidden it. (a) and (c) end, if late and with an error;
# (d) is a mismatch, and is told as one.
# </details>

# %% [markdown]
# ## What to read
#
# - [torch.distributed](https://pytorch.org/docs/stable/distributed.html): the calls of this
#   lesson, their arguments, and what each library supports.
# - Lamport, *Time, Clocks, and the Ordering of Events in a Distributed System*,
#   Communications of the ACM 21(7), 1978: what "before" means without a common clock, and
#   how check 0.1 judges order.
# - [torchrun](https://pytorch.org/docs/stable/elastic/run.html): starting ranks without a
#   notebook.

# %%
cluster.close()
print("🎉 Four ranks, no fear. You can run them, put them in order, exchange data")
print("   without a deadlock, and find the slow one. Next: 01 Collectives.")
