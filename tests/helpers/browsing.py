"""The machine's own browser, as a fixture for whoever imports it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The machine's own Chromium; Playwright brings none with it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        if os.environ.get("LABS_REQUIRE_BROWSER"):
            pytest.fail("LABS_REQUIRE_BROWSER is set, but there is no Chromium")
        pytest.skip(f"no browser on this machine ({', '.join(BROWSERS)})")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()
