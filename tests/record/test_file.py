"""A record in a file: it comes back exactly, and nothing that is not one opens."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.record import file
from labkit.record.events import Site
from labkit.record.file import load, save
from labkit.record.program import Clock, Comm, Program, Race, Traffic
from labkit.record.soundness import MAX_S
from tests.record import made

OLD = Path(__file__).parent / "data" / "schema_1.jsonl"
SITE = Site("cell", 7, "train\u03b1")


def everything() -> Program:
    """A Program with every kind of event, and every field filled once."""
    first, second = made.ranks(2)
    with first.span("step", 0.0, 3.0), first.span("forward", 0.1, 1.0, micro_batch=2):
        first.work(0.1, 1 / 3, flops=1e9, stream=1, lane=1)
        first.call(
            "all_to_all", 1 / 3, 0.5, 0.75, send_splits=(1, 2), recv_splits=(3, 4),
            site=SITE, reads=(5, 6), writes=(7,), op="sum", batch=3, is_async=True,
        )  # fmt: skip
        first.moment('said "hello"\n', 0.9)
    first.wait(first.mark(1), 1.0, 1.1, who="stream", cause="event", site=SITE)
    first.read()
    first.alloc(1, 2**40, "parameters", 0.0)
    first.free(1, 2**40, "parameters", None)
    first.comm("recv", 1.0, None, peer=None, end_source=None)
    second.work(None, None)
    return made.program(
        first, second, hosts=("a", "b"), dropped=(0, 3), device="cuda", level="work",
        clocks=(Clock(1e-3, 1e-6), Clock(-7.25, 0.0)), timing_dependent="polls",
        groups={"world": (0, 1), "1": (1,)},
        traffic=(Traffic(0, "all_to_all", "world", None, 1, 1024, 512),),
        races=(Race(0, 0, 7, "read", "aten::add", SITE),),
    )  # fmt: skip


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes a record's lines to a file, with changes by line number."""

    def write(program: Program | None = None, **changed: Any) -> Path:
        path = save(program or everything(), tmp_path / "changed.jsonl")
        texts: list[str | None] = list(path.read_text().splitlines())
        for number, change in changed.items():
            place = -1 if number == "last" else int(number[1:])
            text = texts[place]
            assert text is not None
            texts[place] = change(text) if callable(change) else change
        path.write_text("".join(f"{text}\n" for text in texts if text is not None))
        return path

    return write


@pytest.mark.parametrize("name", ["a.gz", "a.record", "a.jsonl"])
def test_everything_comes_back(tmp_path: Path, name: str) -> None:
    program = everything()
    path = save(program, tmp_path / name)
    again = load(path)
    assert again == program
    assert [list(map(type, events)) for events in again.events] == [
        list(map(type, events)) for events in program.events
    ]
    assert isinstance(again.events[0][3], Comm)
    assert again.events[0][3].site == SITE
    assert again.header.clocks[0].uncertainty_s == 1e-6


def test_any_finite_float_comes_back_exactly(tmp_path: Path) -> None:
    rng = random.Random(0)
    (rank,) = made.ranks(1)
    times: list[float] = []
    while len(times) < 500:
        (number,) = struct.unpack("d", rng.randbytes(8))
        if abs(number) <= MAX_S:
            times.append(abs(number))
    for at in times:
        rank.moment("now", at)
    again = load(save(made.program(rank), tmp_path / "a.gz"))
    assert [event.at_s for event in again.events[0]] == times  # type: ignore[union-attr]


def test_a_program_always_gives_the_same_bytes(tmp_path: Path) -> None:
    one = save(everything(), tmp_path / "one.gz").read_bytes()
    assert save(everything(), tmp_path / "another.gz").read_bytes() == one
    assert save(load(tmp_path / "one.gz"), tmp_path / "third.gz").read_bytes() == one


def test_a_file_is_readable_and_small(tmp_path: Path) -> None:
    program = made.training(4, 200)
    packed = save(program, tmp_path / "a.gz").read_bytes()
    plain = save(program, tmp_path / "a.jsonl").read_bytes()
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 5
    assert all(json.loads(line) for line in plain.splitlines())
    assert not list(tmp_path.glob("*.part"))


def test_an_old_file_opens() -> None:
    """The committed file of schema 1: never written anew by this test."""
    assert json.loads(OLD.read_text().splitlines()[0])["schema"] == 1
    assert load(OLD) == everything()


def test_a_file_without_a_field_that_has_a_default_opens(lines: Any) -> None:
    """As one that was written before `Wait.ok` and `Comm.batch` were there."""
    path = lines()
    head, *rows = map(json.loads, path.read_text().splitlines())
    for kind, name in (("Wait", "ok"), ("Comm", "batch")):
        place = head["fields"][kind].index(name)
        del head["fields"][kind][place]
        for row in rows:
            if row[:1] == [kind] if isinstance(row, list) else False:
                del row[place + 1]
    del head["header"]["stream_ordered"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *rows)))
    first = everything().events[0][3]
    assert isinstance(first, Comm)
    assert load(path).events[0][3] == first._replace(batch=None)


def test_an_older_schema_is_stepped_up(
    lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renamed(head: Any, rows: Any) -> Any:
        head["header"]["hardware"] = head["header"].pop("machine")
        return head, (
            [*row[:-1], None] if row[0] == "HostRead" else row for row in rows
        )

    path = lines(
        l0=lambda text: text.replace('"schema":1', '"schema":0').replace(
            '"hardware"', '"machine"'
        )
    )
    with pytest.raises(UsageError, match=r"schema is 0.*no step leads from 0 to 1"):
        load(path)
    monkeypatch.setitem(file.UPGRADES, 0, renamed)
    assert load(path) == everything()


def swap(old: str, new: str) -> Callable[[str], str]:
    """A change of one line; the old text must be there."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "newer": ({"l0": swap('"schema":1', '"schema":2')}, "knows up to 1. Update labkit"),
    "no schema": ({"l0": swap('"schema":1', '"schema":"x"')}, "no number"),
    "schema's type": ({"l0": swap('"schema":1', '"schema":true')}, "no number"),
    "not a record": ({"l0": '{"a": 1}'}, "nothing of a labkit record"),
    "a list": ({"l0": "[1, 2]"}, "nothing of a labkit record"),
    "no JSON": ({"l2": "hello"}, "line 3 is not JSON"),
    "deep": ({"l2": "[" * 100_000}, "line 3 is not JSON"),
    "cut": ({"last": None}, "the last line is missing: it was cut short"),
    "cut inside": ({"last": swap("}}", "")}, "not JSON"),
    "one event less": ({"l3": None}, "the last line counts"),
    "after the end": ({"last": lambda t: f"{t}\n{t}"}, "follows the last one"),
    "unknown kind": ({"l3": swap('"Work"', '"Dream"')}, "unknown kind: ['Dream']"),
    "kind is a list": ({"l3": swap('"Work"', '["Work"]')}, "unknown kind"),
    "a number": ({"l3": "7"}, "neither an event nor the end"),
    "short": ({"l3": '["Work", 0]'}, "1 fields, not 13"),
    "word for a number": ({"l3": swap("1000000000.0", '"fast"')}, "'fast'"),
    "bool for an int": ({"l3": swap('["Work",0', '["Work",false')}, "False"),
    "unknown transfer": ({"l4": swap("all_to_all", "telepathy")}, "kind 'telepathy'"),
    "splits": ({"l4": swap("[1,2]", '[1,"2"]')}, "where it cannot be"),
    "site": ({"l4": swap('["cell",7', '["cell","7"')}, "where it cannot be"),
    "NaN": ({"l3": swap("0.333", "NaN,0.333")}, "holds NaN"),
    "infinite": ({"l3": swap("0.1,", "1e999,")}, "start_s=inf"),
    "endless digits": ({"l3": swap("0.1,", f"{10**400},")}, "start_s=1000"),
    "far too much": ({"l3": swap("1000000000.0", "1e999")}, "flops=inf"),
    "less than none": ({"l3": swap("1000000000.0", "-1.0")}, "flops=-1.0"),
    "bytes": ({"l4": swap("1024", str(10**400))}, "logical_bytes=1000"),
    "traffic": ({"l14": swap("512", str(10**400))}, "wire_bytes=1000"),
    "endless clock": ({"l0": swap("1e-06", str(10**400))}, "uncertainty not below 0"),
    "backwards": ({"l3": swap("0.1,", "0.5,")}, "0.167 s too early"),
    "of no rank": ({"l3": swap('["Work",0', '["Work",5')}, "is of rank 5"),
    "order": ({"l3": swap('["Work",0,1,1,2', '["Work",0,1,1,0')}, "seq 0 follows 1"),
    "no span": ({"l3": swap(",1,0.1", ",99,0.1")}, "span 99 is not"),
    "no transfer": (
        {"l5": swap('["Wait",0,0,0,4,0', '["Wait",0,0,0,4,9')}, "transfer 9"
    ),
    "no group": ({"l0": swap('"world":[0,1],', "")}, "group 'world' is not"),
    "groups": ({"l0": swap('"world":[0,1]', '"world":["a"]')}, "not lists of ranks"),
    "too few ranks": ({"l0": swap('"ranks":[0,1]', '"ranks":[0]')}, "is of rank 1"),
    "ranks twice": ({"l0": swap('"ranks":[0,1]', '"ranks":[0,0,1]')}, "are different"),
    "rank too large": ({"l0": swap('"world_size":2', '"world_size":1')}, "0 to world"),
    "hosts": ({"l0": swap('"hosts":["a","b"]', '"hosts":["a"]')}, "this one has 1"),
    "clock": ({"l0": swap("1e-06", "-1e-06")}, "uncertainty not below 0"),
    "clock's type": ({"l0": swap("1e-06", '"sure"')}, "is no clock"),
    "clock's length": ({"l0": swap("[0.001,1e-06]", "[0.001]")}, "is no clock"),
    "host's type": ({"l0": swap('"hosts":["a","b"]', '"hosts":["a",2]')}, "of hosts"),
    "header's field": (
        {"l0": swap('"torch"', '"tensorflow"')}, "tensorflow is unknown"
    ),
    "header's word": ({"l0": swap('"cuda"', '"tpu"')}, "device is 'tpu'"),
    "header's type": (
        {"l0": swap('"world_size":2', '"world_size":"2"')}, "world_size is"
    ),
    "newer field": (
        {"l0": swap('"Mark":["rank"', '"Mark":["mood","rank"')}, "['mood']"
    ),
    "missing field": ({"l0": swap('"Mark":["rank",', '"Mark":[')}, "missing ['rank']"),
    "newer kind": ({"l0": swap('"Mark":', '"Dream":')}, "does not know"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_record_is_refused_in_words(lines: Any, case: str) -> None:
    changed, words = BAD[case]
    with pytest.raises(UsageError) as caught:
        load(lines(**changed))
    assert words in str(caught.value)
    assert str(caught.value).count(". ") >= 1


@pytest.mark.parametrize("keep", [5, 30, 0.5, -9])
def test_a_compressed_file_that_was_cut_is_told(tmp_path: Path, keep: float) -> None:
    path = save(made.training(4, 50), tmp_path / "a.gz")
    data = path.read_bytes()
    size = int(len(data) * keep) if 0 < keep < 1 else int(keep)
    path.write_bytes(data[:size])
    with pytest.raises(UsageError, match=r"cut short|damaged"):
        load(path)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = save(made.training(4, 50), tmp_path / "a.gz")
    data = bytearray(path.read_bytes())
    for place in range(200, 220):
        data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(UsageError, match=r"damaged|not JSON|cut short"):
        load(path)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "nothing.gz")
    with pytest.raises(UsageError, match="directory"):
        load(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UsageError, match="nothing of a labkit record"):
        load(tmp_path / "empty")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), object()])
def test_what_cannot_be_kept_is_refused_and_the_old_file_stays(
    tmp_path: Path, wrong: Any
) -> None:
    path = save(everything(), tmp_path / "a.gz")
    (rank,) = made.ranks(1)
    rank.work(0.0, 1.0, flops=wrong)
    with pytest.raises(UsageError, match="finite numbers"):
        save(made.program(rank), path)
    assert load(path) == everything()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["", "folder.gz", "nowhere/a.gz", "made/a.gz", "n" * 300]
)
def test_where_no_file_can_be_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "made").write_text("a file")
    (tmp_path / "folder.gz").mkdir()
    (tmp_path / "folder.gz.part").write_text("somebody's own")
    with pytest.raises(UsageError, match=r"cannot be written: .*\. Choose another"):
        save(everything(), tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("wrong", [None, 1, b"a", ["a"], "a\0"])
def test_what_is_no_path_is_told(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a file is named by a path; got"):
        save(everything(), wrong)
    with pytest.raises(UsageError, match="a file is named by a path; got"):
        load(wrong)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    """A pickle that would run code is no record, in either form."""
    import pickle

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "boom",)

    for data in (pickle.dumps(Bomb()), gzip.compress(pickle.dumps(Bomb()))):
        (tmp_path / "a.gz").write_bytes(data)
        with pytest.raises(UsageError):
            load(tmp_path / "a.gz")
    assert not (tmp_path / "boom").exists()
