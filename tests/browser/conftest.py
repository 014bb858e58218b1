"""Fixtures of the browser tests: one server and one browser, a fresh page a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from labkit.bench.lab import CHROMIUM_FLAGS, find_chromium
from tests.browser.lab import LabServer, lab_server
from tests.conftest import skip_unless


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's path; LABKIT_CHROMIUM names another than the one on PATH."""
    path = find_chromium()
    skip_unless(bool(path), "Chromium (apt install chromium)", "LABKIT_REQUIRE_BROWSER")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on an empty folder; started only where there is a browser."""
    with lab_server(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """The browser itself. While it lives, this thread has a running event loop."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_FLAGS
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page with no memory of the tests before."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()
