"""A test that cannot run here says so, and fails where the machine forbids the skip."""

from __future__ import annotations

import pytest

from tests.conftest import skip_unless


def test_what_is_present_is_tested() -> None:
    skip_unless(True, "browser", "LABKIT_REQUIRE_BROWSER")


def test_what_is_missing_is_skipped_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"NOT TESTED.*no browser"):
        skip_unless(False, "browser", "LABKIT_REQUIRE_BROWSER")


def test_a_forbidden_skip_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="LABKIT_REQUIRE_BROWSER=1"):
        skip_unless(False, "browser", "LABKIT_REQUIRE_BROWSER")
