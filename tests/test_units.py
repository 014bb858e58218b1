"""Numbers as people read them: three digits, a unit, and never an exponent."""

from __future__ import annotations

import pytest

from labkit.units import format_bytes, format_rate, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (3e-9, "3 ns"), (0.0124, "12.4 ms"), (0.9996, "1,000 ms"),
        (999.4, "999 s"), (1800.0, "1,800 s"), (-2e-6, "-2 us"),
    ],
)  # fmt: skip
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_bytes_and_rates_have_no_exponent_either() -> None:
    assert format_bytes(1023 * 1024) == "1,023 KiB"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_rate(9.996e8, "B/s") == "1,000 MB/s"
