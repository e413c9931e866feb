"""The page in headless Chromium, against a real server; skipped where there is no Chromium.

On Debian and Ubuntu `apt install chromium` brings it; ENGINEBAY_CHROMIUM names another one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.chromium import ARGUMENTS, CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page in which no script may fail, and nothing may be asked of another server."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)  # machines may be busy
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda said: "Security Policy" in said.text and wrong.append(said.text))
    page.on("request", lambda request: "//127.0.0.1:" in request.url or wrong.append(request.url))
    yield page
    context.close()
    assert wrong == []
