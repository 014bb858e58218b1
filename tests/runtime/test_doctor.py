"""The doctor: its lines on made-up machines, and that nothing can stop its report."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labkit.runtime import checkup, doctor
from labkit.runtime.checkup import Check
from labkit.runtime.devices import Machine, look, place
from labkit.runtime.doctor import Doctor, print_report, report
from labkit.runtime.gpus import Gpu, Link

GIB = 2**30


def machine(num_gpus: int = 0, **changes: Any) -> Machine:
    known: dict[str, Any] = {
        "cores": 8,
        "memory_bytes": 32 * GIB,
        "platform": "linux",
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "nccl": (2, 29, 7),
        "driver_cuda": (13, 0),
        "gpus": tuple(Gpu("H100", 80 * GIB, f"GPU-{n}") for n in range(num_gpus)),
    }
    return Machine(**(known | changes))


def test_this_machine_gets_a_whole_report() -> None:
    found = report()
    names = [check.name for check in found.checks]
    assert len(names) == len(set(names)) == 20
    assert all(check.value for check in found.checks)
    lines = {check.name: check for check in found.checks}
    for world_size in (2, 4, 8):
        because = place(world_size, look()).because
        assert lines[f"Cluster({world_size})"].value == because
    assert all(check.fix for check in found.checks if check.status != "ok")


def test_a_question_that_raises_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(machine: Machine) -> Check:
        raise RuntimeError("no such thing")

    broken.__name__ = "memory"
    monkeypatch.setattr(checkup, "memory", broken)
    lines = {check.name: check for check in report().checks}
    assert lines["memory"].value == "not told (RuntimeError: no such thing)"
    assert lines["memory"].status == "warn"
    assert lines["cores"].status in ("ok", "warn")


@pytest.mark.timeout(60)
def test_a_question_that_hangs_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hangs(machine: Machine) -> Check:
        released.wait()
        return Check("host name", "late")

    hangs.__name__ = "host_name"
    monkeypatch.setattr(checkup, "host_name", hangs)
    lines = {check.name: check for check in report(limit_s=2.0).checks}
    released.set()
    assert lines["host name"].value == "no answer within 2 s"
    assert lines["host name"].fix
    assert len(lines) == 20


@pytest.mark.timeout(60)
def test_a_driver_that_hangs_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def stuck(*, ask_driver: bool = True) -> Machine:
        if ask_driver:
            released.wait()
        return machine()

    monkeypatch.setattr(doctor, "look", stuck)
    found = report(limit_s=0.3)
    released.set()
    first = found.checks[0]
    assert (first.name, first.status) == ("GPU driver", "warn")
    assert "nvidia-smi" in first.fix
    assert len(found.checks) == 21


def test_the_worst_line_decides_and_the_verdict_names_it() -> None:
    fine, odd, broken = (
        Check("a", "1"),
        Check("b", "2", "warn", "x"),
        Check("c", "3", "fail", "y"),
    )
    assert Doctor((fine,)).status == "ok"
    assert Doctor((fine,)).verdict == "Everything that a lesson needs is here."
    assert Doctor((fine, odd)).status == "warn"
    assert Doctor((fine, odd)).verdict == "Worth a look: b."
    assert Doctor((broken, odd)).status == "fail"
    assert Doctor((broken, odd)).verdict == (
        "To fix before a lesson can run: c. Worth a look: b."
    )
    assert Doctor(()).status == "ok"


def test_a_notebook_shows_a_table_and_escapes_it() -> None:
    found = Doctor((Check("home", "<b>x</b>", "fail", "do & so"), Check("ok", "1")))
    html = found._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "do &amp; so" in html
    assert "what to do" in html
    assert "what to do" not in Doctor((Check("ok", "1"),))._repr_html_()
    assert "\u2717 <b>x</b>" in str(found)


def test_the_terminal_shows_every_line_and_takes_no_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = (Check("folder", "/a[red]b[/red]", "warn", "use [bold]"), Check("x", "7"))
    monkeypatch.setattr(doctor, "report", lambda: Doctor(checks))
    file = io.StringIO()
    found = print_report(Console(file=file, width=100))
    shown = file.getvalue()
    assert found.checks == checks
    assert "/a[red]b[/red]" in shown
    assert "use [bold]" in shown
    assert "Worth a look: folder." in shown


@pytest.mark.parametrize(
    ("platform", "status", "words"),
    [
        ("linux", "ok", "supported"),
        ("wsl", "ok", "supported (Linux under WSL)"),
        ("macos", "warn", "best effort, ranks are spawned"),
        ("windows", "fail", "not supported"),
    ],
)
def test_the_supported_case_is_named(platform: str, status: str, words: str) -> None:
    check = checkup.system(machine(platform=platform))
    assert (check.status, check.value.endswith(words)) == (status, True)
    assert bool(check.fix) == (status != "ok")


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.10.1", "warn"), ("2.11.0", "ok"), ("2.13.0+cu130", "ok"), ("2.14.2", "ok"),
        ("2.15.0", "warn"), ("3.0", "warn"), (None, "fail"),
    ],
)  # fmt: skip
def test_torch_outside_the_tested_versions_is_told(
    version: str | None, status: str
) -> None:
    check = checkup.torch(machine(torch=version))
    assert check.status == status
    if status == "warn":
        assert "2.11 to 2.14" in check.fix


def test_gpus_that_torch_cannot_use_come_with_the_way_out() -> None:
    assert checkup.gpus(machine()).value == "none: ranks compute on the CPU"
    assert checkup.gpus(machine(8)) == Check("GPUs", "8 x H100, 80 GiB")
    cpu_build = checkup.gpus(machine(2, torch="2.13.0+cpu", cuda=None))
    assert cpu_build.status == "warn"
    assert "install its CUDA build" in cpu_build.fix
    old = checkup.gpus(machine(2, driver_cuda=(12, 4)))
    assert "takes CUDA 12.4, torch needs 13.0: update the driver" in old.fix


def test_links_are_grouped() -> None:
    alike = tuple(Link(a, b, "nvlink", peer_access=True) for a, b in ((0, 1), (0, 2)))
    assert checkup.links(machine(3, links=alike)).value == (
        "nvlink, peer access between all 3"
    )
    mixed = (*alike, Link(1, 2, "cpu", peer_access=False))
    assert checkup.links(machine(3, links=mixed)).value == (
        "nvlink, peer access: 0-1, 0-2; cpu, no peer access: 1-2"
    )
    assert "fewer than two" in checkup.links(machine(1)).value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cuda": None}, "not part of this torch"),
        ({"nccl": None}, "version not known"),
        ({"nccl": (2, 29, 7)}, "2.29.7, cannot put several"),
        ({"nccl": (2, 30, 4)}, "2.30.4, can put several"),
    ],
)
def test_nccl_says_whether_gpus_can_be_shared(
    changes: dict[str, Any], words: str
) -> None:
    assert checkup.nccl(machine(1, **changes)).value.startswith(words)


def test_little_memory_and_one_core_are_told() -> None:
    assert checkup.memory(machine(memory_bytes=GIB)).status == "warn"
    assert checkup.cores(machine(cores=1)).status == "warn"
    assert checkup.cores(machine(cores=2)).status == "ok"


@pytest.mark.parametrize("name", ["temporary_folder", "home"])
def test_a_folder_that_cannot_be_written_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("HOME", str(gone))
    monkeypatch.setattr(checkup.tempfile, "gettempdir", lambda: str(gone))
    check = getattr(checkup, name)(machine())
    assert check.status == "fail"
    assert str(gone) in check.value
    assert "cannot be written" in check.value
    assert check.fix.startswith("free some space there, or set ")


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Usage:
        free = 10 * 2**20

    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda path: Usage)
    assert checkup.home(machine()).value.startswith("10 MiB free in ")
    assert checkup.home(machine()).status == "warn"
    if sys.platform.startswith("linux"):
        assert checkup.shared_memory(machine()).fix == "in Docker: --shm-size=1g"
    assert checkup.shared_memory(machine(platform="macos")).status == "ok"


def test_rt42_loopback_is_tried_and_not_only_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RT-42: the line is about a real connection within this machine."""
    here = machine(loopback="lo")
    assert checkup.loopback(here) == Check(
        "gloo interface", "lo: ranks can talk over 127.0.0.1"
    )
    assert checkup.loopback(machine(loopback=None)).status == "fail"

    def refused(*args: Any, **kwargs: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(checkup.socket, "create_connection", refused)
    check = checkup.loopback(here)
    assert check.status == "fail"
    assert "Connection refused" in check.value
    assert "127.0.0.1" in check.fix


def test_rt42_a_host_name_without_address_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(*args: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(checkup.socket, "getaddrinfo", nowhere)
    check = checkup.host_name(machine())
    assert check.status == "ok"
    assert "has no address (only several nodes need one)" in check.value


def install(folder: Path, name: str, version: str) -> None:
    place = folder / name
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"name": name, "version": version}))


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ([], "1.2.3"),
        ([{"disabledExtensions": {"anywidget": True}}], "disabled"),
        ([{"disabledExtensions": ["anywidget"]}], "disabled"),
        ([{"disabledExtensions": {"anywidget": False}}], "1.2.3"),
        ([{"disabledExtensions": {"other": True}}], "1.2.3"),
        (
            [
                {"disabledExtensions": {"anywidget": False}},
                {"disabledExtensions": {"anywidget": True}},
            ],
            "1.2.3",
        ),
    ],
)
def test_an_extension_is_found_as_jupyterlab_finds_it(
    tmp_path: Path, settings: list[dict[str, Any]], state: str
) -> None:
    install(tmp_path / "b", "anywidget", "1.2.3")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert checkup.extension_state("anywidget", folders, settings) == state
    assert checkup.extension_state("other", folders, settings) == "missing"


def test_a_disabled_widget_extension_comes_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "labconfig" / "page_config.d").mkdir(parents=True)
    text = json.dumps({"disabledExtensions": {"anywidget": True}})
    (tmp_path / "labconfig" / "page_config.d" / "x.json").write_text(text)
    (tmp_path / "labconfig" / "page_config.json").write_text("{not json")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    check = checkup.widgets(machine())
    assert check.status == "warn"
    assert "anywidget disabled" in check.value
    assert "jupyter labextension enable anywidget" in check.fix


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("python", "ok"),
        (sys.executable, "ok"),
        (str(Path(sys.executable).parent / "python3"), "ok"),
        ("/elsewhere/bin/python", "warn"),
    ],
)
def test_a_kernel_of_another_python_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, status: str
) -> None:
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": [program, "-m", "ipykernel_launcher"], "display_name": "x"}
    (folder / "kernel.json").write_text(json.dumps({**spec, "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    check = checkup.kernel(machine())
    assert check.status == status
    assert ("not this Python" in check.value) == (status == "warn")


def test_a_placement_that_is_refused_is_a_line() -> None:
    tiny = machine(memory_bytes=3 * 64 * 2**20)
    check = checkup.placements(tiny, 4)
    assert check.status == "warn"
    assert "from 1 to 3 here" in check.value
    assert checkup.placements(tiny, 2).status == "ok"
