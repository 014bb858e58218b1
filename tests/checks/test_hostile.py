"""Answers that do what no answer should: each gets a verdict with a message."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks import CheckFailed, check, run
from labkit.comm.collectives import reduce_scatter_ring


class Unspeakable:
    def __reduce__(self) -> Any:
        raise RuntimeError("does not travel")

    def __repr__(self) -> str:
        raise RuntimeError("does not print")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("does not print")


def nothing(x_N: Tensor, group: Any) -> None:
    reduce_scatter_ring(x_N, group)


def a_column(x_N: Tensor, group: Any) -> Tensor:
    return reduce_scatter_ring(x_N, group).reshape(-1, 1)


def doubles(x_N: Tensor, group: Any) -> Tensor:
    return reduce_scatter_ring(x_N, group).double()


def sparse(x_N: Tensor, group: Any) -> Tensor:
    return reduce_scatter_ring(x_N, group).to_sparse()


def without_data(x_N: Tensor, group: Any) -> Tensor:
    return reduce_scatter_ring(x_N, group).to("meta")


def emptied(x_N: Tensor, group: Any) -> Tensor:
    chunk_n = reduce_scatter_ring(x_N, group)
    x_N.resize_(0)
    return chunk_n


def one_by_one(x_N: Tensor, group: Any) -> Any:
    return (value for value in reduce_scatter_ring(x_N, group))


def unspeakable(x_N: Tensor, group: Any) -> Any:
    return Unspeakable()


def mute(x_N: Tensor, group: Any) -> Tensor:
    raise Mute


def without_end(x_N: Tensor, group: Any) -> Tensor:
    return without_end(x_N, group)


def killed(x_N: Tensor, group: Any) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return x_N


def interrupted(x_N: Tensor, group: Any) -> Tensor:
    raise KeyboardInterrupt


def patched(x_N: Tensor, group: Any) -> Tensor:
    dist.isend = dist.send = dist.irecv = dist.recv = None  # type: ignore[assignment]
    return reduce_scatter_ring(x_N, group)


def too_large(x_N: Tensor, group: Any) -> Tensor:
    return torch.empty(1 << 50)


def in_a_thread(x_N: Tensor, group: Any) -> Tensor:
    got: list[Tensor] = []
    thread = threading.Thread(target=lambda: got.append(x_N[:0]))
    thread.start()
    thread.join()
    return got[0]


def without_return(*given: Any) -> None:
    while True:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("exercise", ["0.2", "1.2", "1.6"])
def test_what_never_returns_is_waited_for_once(
    exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.LIMIT_S, "threads", 0.5)
    with pytest.raises(CheckFailed, match=r"after 0\.5 s it had not") as caught:
        check(exercise, without_return)
    assert "more case" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (nothing, "rank 0 must return its chunk; got NoneType"),
        (a_column, "the chunk must be bfloat16[2]; got bfloat16[2, 1]"),
        (doubles, "the chunk must be bfloat16[2]; got float64[2]"),
        (sparse, "must be dense on cpu; got sparse_coo on cpu"),
        (without_data, "must be dense on cpu; got dense on meta"),
        (emptied, "x_N must be as it was"),
        (one_by_one, "cannot pickle 'generator' object"),
        (unspeakable, "does not travel"),
        (mute, "rank 0 raised Mute: (its own text cannot be had"),
        (without_end, "maximum recursion depth exceeded"),
        (killed, "died of SIGKILL"),
        (interrupted, "rank 0 raised KeyboardInterrupt"),
        (patched, "'NoneType' object is not callable"),
        (too_large, "can't allocate memory"),
        (in_a_thread, "the chunk must be bfloat16[2]; got bfloat16[0]"),
    ],
)
def test_a_verdict_with_a_message(odd: Callable[..., Any], message: str) -> None:
    with pytest.raises(CheckFailed, match=r"1\.2 Ring reduce-scatter: 0 of") as caught:
        check("1.2", odd)
    assert message in str(caught.value)


def test_an_answer_that_holds_a_file_is_told_so(tmp_path: Path) -> None:
    with (tmp_path / "notes").open("w") as file:

        def writes(x_N: Tensor, group: Any) -> Tensor:
            file.write("here")
            return reduce_scatter_ring(x_N, group)

        with pytest.raises(CheckFailed, match="file cannot travel: an open file"):
            check("1.2", writes)
