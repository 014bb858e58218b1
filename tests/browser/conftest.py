"""Fixtures of the browser tests: one server and one browser, a fresh page a test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.lab import LabServer, lab_server
from tests.conftest import skip_unless

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's path; LABKIT_CHROMIUM names another than the one on PATH."""
    found = [os.environ.get("LABKIT_CHROMIUM"), *map(shutil.which, CHROMIUMS)]
    path = next(filter(None, found), "")
    skip_unless(bool(path), "Chromium (apt install chromium)", "LABKIT_REQUIRE_BROWSER")
    return path


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on an empty folder; started only where there is a browser."""
    with lab_server(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """The browser itself."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page with no memory of the tests before."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()
