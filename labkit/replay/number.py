"""Numbers that a hardware model may hold: finite, and not below what makes sense."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

from labkit.errors import UsageError


def is_amount(value: Any) -> bool:
    """Whether it is a finite number of at least 0, no larger than a float may be."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    return bool(0 <= number <= sys.float_info.max)


def check_positive(owner: str, field: str, value: Any) -> None:
    """Refuse what is no number above 0: of a rate, a size.

    Raises:
        UsageError: It is missing, no number, not finite, or not above 0.
    """
    if not is_amount(value) or value == 0:
        raise _refusal(owner, field, value, "a finite number above 0")


def check_time(owner: str, field: str, value: Any) -> None:
    """Refuse what is no number of at least 0.

    Raises:
        UsageError: It is missing, no number, not finite, or below 0.
    """
    if not is_amount(value):
        raise _refusal(owner, field, value, "a finite number of at least 0")


def check_count(owner: str, field: str, value: Any) -> None:
    """Refuse what is no whole number of at least 1.

    Raises:
        UsageError: It is anything else.
    """
    if type(value) is not int or value < 1:
        raise _refusal(owner, field, value, "a whole number of at least 1")


def _refusal(owner: str, field: str, value: Any, words: str) -> UsageError:
    seen = "nothing: it is missing" if value is None else repr(value)
    return UsageError(
        f"{field} of {owner!r} must be {words}; got {seen}. Give it in SI units: "
        "seconds, bytes, FLOPs, and these a second"
    )
