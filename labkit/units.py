"""The one place that formats bytes, times and rates.

Everywhere else numbers travel in SI units, with the unit in the name (`_s`, `_bytes`).
"""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def byte_unit(num_bytes: float) -> tuple[int, str]:
    """The power of 2 in which a size has up to 4 digits: (1024, "KiB") for 1536."""
    power = 0
    while abs(num_bytes) >= 1024 ** (power + 1) and power < len(_BINARY) - 1:
        power += 1
    return 1024**power, _BINARY[power]


def format_bytes(num_bytes: float) -> str:
    """Format a size in powers of 2: `format_bytes(1536)` is "1.5 KiB"."""
    size, unit = byte_unit(num_bytes)
    value = float(num_bytes) / size
    return f"{value:.0f} {unit}" if unit == "B" else f"{digits(value)} {unit}"


def time_unit(duration_s: float) -> tuple[float, str]:
    """Units of a time axis in a second, and their name: (1000, "ms") for 0.5 s."""
    if duration_s >= 2:
        return 1.0, "s"
    return (1e3, "ms") if duration_s >= 2e-3 else (1e6, "us")


def format_seconds(seconds: float) -> str:
    """Format a duration with three digits: `format_seconds(0.0124)` is "12.4 ms"."""
    if seconds == 0:
        return "0 s"
    for scale, unit in _TIME:
        if abs(seconds) >= scale:
            return f"{digits(seconds / scale)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def format_rate(per_s: float, unit: str) -> str:
    """Format a rate in powers of 1000: `format_rate(4e9, "B/s")` is "4 GB/s"."""
    value, power = float(per_s), 0
    while abs(value) >= 1000 and power < len(_DECIMAL) - 1:
        value /= 1000
        power += 1
    return f"{digits(value)} {_DECIMAL[power]}{unit}"


def digits(value: float) -> str:
    """Format with three digits, or all before the point: 0.0123, 12.3, 1,230."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
