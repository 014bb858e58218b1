"""Ways in which a run can end oddly: each once hung, lied, or lost a word."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit.errors import RankFailed, TravelError
from labkit.runtime import sources
from tests.runtime.conftest import MakeCluster
from tests.runtime.processes import known, wait_gone


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unbuildable:
    def __reduce__(self) -> tuple[object, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("cannot be rebuilt")


def _variables() -> dict[str, object]:
    """The rank's own variables, where a notebook's function finds its globals."""
    return vars(sys.modules["__main__"])


def _keep_and_raise_unprintable() -> None:
    _variables()["kept"] = 7
    raise Unprintable


def _get_kept() -> object:
    return _variables()["kept"]


def test_an_exception_without_words_costs_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with pytest.raises(RankFailed, match="Unprintable"):
        cluster.run(_keep_and_raise_unprintable)
    assert cluster.run(_get_kept).results == [7, 7]


def _turn_stdout_into_a_closed_file() -> None:
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        sys.stdout = nothing


def test_a_rank_whose_stdout_was_closed_goes_on(
    make_cluster: MakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster()
    cluster.run(_turn_stdout_into_a_closed_file)
    cluster.run(print, "heard again")
    assert "[rank 1] heard again" in capsys.readouterr().out


def test_a_result_that_cannot_travel_is_named(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with pytest.raises(
        RankFailed, match=r"the result\['x'\]\[1\] cannot: an open file"
    ):
        cluster.run(lambda: {"x": [1, open(os.devnull)]})  # noqa: PTH123, SIM115
    with pytest.raises(TravelError, match="rank 0's result could not be: ValueError"):
        cluster.run(Unbuildable)
    assert cluster.run(dist.get_rank).results == [0, 1]


def test_a_method_of_a_tensor_runs(make_cluster: MakeCluster) -> None:
    assert make_cluster().run(torch.ones(3).sum).results == [torch.tensor(3.0)] * 2


def _fail_by_rank() -> None:
    raise (ValueError, KeyError)[dist.get_rank()](f"from {dist.get_rank()}")


def test_every_error_is_named(make_cluster: MakeCluster) -> None:
    with pytest.raises(RankFailed) as caught:
        make_cluster().run(_fail_by_rank)
    text = str(caught.value)
    assert "ValueError: from 0" in text
    assert "KeyError: 'from 1'" in text


def test_an_error_can_be_copied_and_pickled() -> None:
    error = RankFailed("rank 3 raised", rank=3, exception=ValueError("x"))
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.rank) == ("rank 3 raised", 3)


def _new_group_in_own_order() -> float:
    ranks = [0, 1] if dist.get_rank() == 0 else [1, 0]
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group(ranks))
    return x.item()


def test_ranks_of_a_new_group_may_be_named_in_any_order(
    make_cluster: MakeCluster,
) -> None:
    assert make_cluster().run(_new_group_in_own_order).results == [2.0, 2.0]


def test_a_rank_that_ended_while_nothing_ran_is_told(
    make_cluster: MakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster()
    with pytest.raises(RankFailed):
        cluster.run(_keep_and_raise_unprintable)
    pids = cluster.run(os.getpid).results
    victim = known(pids[1:])
    victim[0].kill()
    wait_gone(victim)
    cluster.run(time.sleep, 0.05, ranks=[0])
    fresh = cluster.run(os.getpid, ranks=[0]).results
    assert fresh != pids[:1]
    told = capsys.readouterr().err
    assert "ended since the last run: rank 1" in told
    assert "lost with the old ones: kept" in told


def test_a_stream_that_cannot_write_the_text_ends_no_run(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    make_cluster().run(print, "caf\u00e9")
    ascii_only.flush()
    assert b"[rank 0] caf?" in ascii_only.buffer.getvalue()  # type: ignore[attr-defined]


def test_closing_ends_a_background_run(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    pids = known(cluster.run(os.getpid).results)
    run = cluster.run(time.sleep, 600, background=True)
    cluster.close()
    assert run.done
    wait_gone(pids)


def test_a_child_that_prints_for_ever_holds_up_no_ending(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()

    def flood_and_fail() -> None:
        if dist.get_rank() == 0:
            import subprocess

            subprocess.Popen(["yes"])
            raise ValueError("after a flood began")
        dist.barrier()

    with pytest.raises(RankFailed, match="after a flood began"):
        cluster.run(flood_and_fail)
    assert cluster.run(dist.get_rank).results == [0, 1]


def test_names_in_inner_functions_of_a_cell_come_along() -> None:
    code = compile("[helper(i) for i in (lambda: other)()]", "<cell>", "exec")
    assert {"helper", "other"} <= sources._names(code)


def test_a_changed_environment_reaches_new_ranks(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster().run(dist.get_rank)
    monkeypatch.setenv("LABKIT_TEST_WORD", "new")
    assert make_cluster().run(os.getenv, "LABKIT_TEST_WORD").results == ["new"] * 2


def test_no_process_is_left_by_any_of_these() -> None:
    mine = psutil.Process().children(recursive=True)
    assert [p for p in mine if p.name() == "yes"] == []
