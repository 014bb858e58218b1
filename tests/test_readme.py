"""README's example does what it says, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(example, str(tmp_path / "readme.py"), "exec"), names)
    names["cluster"].close()  # type: ignore[attr-defined]
    assert (tmp_path / "step.json.gz").stat().st_size > 0
