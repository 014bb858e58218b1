"""Any notebook that can be understood is read, and anything else is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from labkit.course.notebook import read_notebook
from labkit.errors import UsageError

CELL = {"cell_type": "code", "source": ["# née\n", "x = 1"], "metadata": {}}
NOTEBOOK = {"cells": [CELL], "metadata": {}, "nbformat": 4}
SOURCE = "# née\nx = 1"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}',
     '{"worksheets": []}', '{"cells": [{"cell_type": "x", "source": ""}]}'],
)  # fmt: skip
def test_what_is_no_notebook_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "00_broken.ipynb"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"00_broken.ipynb must be a Jupyter notebook"):
        read_notebook(path)
    with pytest.raises(UsageError, match="FileNotFoundError"):
        read_notebook(tmp_path / "none.ipynb")


def read(tmp_path: Path, content: bytes) -> dict[str, Any]:
    path = tmp_path / "00_odd.ipynb"
    path.write_bytes(content)
    return read_notebook(path)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-be"]
)
def test_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    text = json.dumps(NOTEBOOK, ensure_ascii=False, indent=1).replace("\n", "\r\n")
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    found = read(tmp_path, (mark + text).encode(encoding))
    assert [cell["source"] for cell in found["cells"]] == [SOURCE]


def test_what_was_read_can_be_written(tmp_path: Path) -> None:
    odd = '"x": [NaN, -Infinity, 1e999, "\\ud800", "\\ud83d\\ude00"]'
    text = json.dumps({**NOTEBOOK, "metadata": {}}).replace(
        '"metadata": {}', '"metadata": {' + odd + "}"
    )
    found = read(tmp_path, text.encode())
    assert found["metadata"]["x"] == [None, None, None, "?", "\U0001f600"]
    assert found["cells"][0]["metadata"] == found["metadata"]
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


def test_missing_or_odd_metadata_are_none(tmp_path: Path) -> None:
    cells = [{**CELL, "metadata": 3}, {"cell_type": "raw", "source": ""}]
    found = read(tmp_path, json.dumps({"cells": cells, "metadata": []}).encode())
    assert found["metadata"] == {}
    assert [cell["metadata"] for cell in found["cells"]] == [{}, {}]


def test_the_older_format_is_read(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "heading", "level": 1, "source": ["Title"]},
        {
            "cell_type": "code",
            "input": ["x = 1"],
            "outputs": [{"output_type": "pyout"}],
        },
    ]
    found = read(tmp_path, json.dumps({"worksheets": [{"cells": cells}]}).encode())
    heading, code = found["cells"]
    assert (heading["cell_type"], heading["source"]) == ("markdown", "Title")
    assert (code["source"], code["outputs"]) == ("x = 1", [])


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "device.ipynb").symlink_to("/dev/zero")
    (tmp_path / "circle.ipynb").symlink_to(tmp_path / "circle.ipynb")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(UsageError, match="it is no file"):
            read_notebook(tmp_path / f"{name}.ipynb")
    with pytest.raises(UsageError, match="must be a Jupyter notebook"):
        read_notebook(tmp_path / "circle.ipynb")


def test_ends_of_lines_are_made_one_kind(tmp_path: Path) -> None:
    windows = {"cells": [{**CELL, "source": "# née\r\nx = 1"}]}
    assert read(tmp_path, json.dumps(windows).encode())["cells"][0]["source"] == SOURCE


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"cells": ' + "[" * 100_000, '{"x": ' * 50_000, "9" * 5000]
)
def test_hostile_json_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="must be a Jupyter notebook"):
        read(tmp_path, text.encode())
