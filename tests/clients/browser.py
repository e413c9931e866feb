"""Pages in headless Chromium, and what their text does while an answer comes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, sync_playwright

from tests.chromium import ARGUMENTS, CHROMIUM


@contextmanager
def open_page(url: str) -> Iterator[Page]:
    """A page of a browser with an empty profile."""
    if CHROMIUM is None:
        raise SystemExit("Chromium is missing; on Debian and Ubuntu: sudo apt install chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            headless=True,
            args=ARGUMENTS,
            viewport={"width": 1400, "height": 1000},
        )
        page = context.pages[0]
        page.set_default_timeout(15_000)
        page.goto(url)
        yield page
        context.close()


def lengths_while_growing(text: Locator, times: int, *, seconds: float = 20) -> list[int]:
    """Lengths of a text as it grows so many times. Raises `AssertionError` if it does not."""
    page, seen = text.page, [0]
    for _ in range(int(seconds * 10)):
        length = len(text.inner_text()) if text.count() else 0
        if length > seen[-1]:
            seen.append(length)
        if len(seen) > times:
            return seen[1:]
        page.wait_for_timeout(100)
    raise AssertionError(f"grew only {len(seen) - 1} times in {seconds} s")


def wait_until_still(text: Locator, *, seconds: float = 30) -> str:
    """The text once it has not changed for a second."""
    page, before, still = text.page, "", 0
    for _ in range(int(seconds * 5)):
        now = text.inner_text() if text.count() else ""
        still = still + 1 if now == before and now else 0
        if still == 5:
            return now
        before = now
        page.wait_for_timeout(200)
    raise AssertionError(f"still changing after {seconds} s: {before[-200:]!r}")
