"""What the tests of the page do again and again."""

import re
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from tests.support import Server

ANSWER = ".message.assistant"


def open_page(page: "Page", server: "Server") -> None:
    """Open the page, and wait until it knows the models."""
    page.goto(server.url)
    page.locator("#running .card").first.wait_for()


def say(page: "Page", text: str) -> None:
    """Send a message."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: "Page", number: int = 0) -> "Locator":
    """The answer of that number, once it has ended."""
    answer = page.locator(f"{ANSWER}[aria-busy=false]").nth(number)
    answer.wait_for()
    return answer


class Gated:
    """A script that goes on piece by piece, when it is told to.

    While it waits the engine goes on stepping, so that it hears of requests that are aborted;
    `closed` is set when that, or the end, has come.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._gate = threading.Semaphore(0)
        self.closed = threading.Event()

    def __call__(self, prompt: str, index: int) -> Iterator[str]:
        self.closed.clear()
        try:
            for piece in self._pieces:
                while not self._gate.acquire(timeout=0.01):
                    yield ""
                yield piece
        finally:
            self.closed.set()

    def go_on(self, pieces: int = 1) -> None:
        """Let it say so many pieces more."""
        self._gate.release(pieces)


def answers(page: "Page", path: str, answer: Any = None, *, status: int = 200) -> list[str]:
    """Answer calls of a path (with `*` for any part) in the place of the server.

    The bodies and queries of the calls, as they come.
    """
    asked: list[str] = []

    def fulfill(route: "Route") -> None:
        request = route.request
        asked.append(request.post_data or request.url.partition("?")[2])
        body = {"error": {"message": answer}} if status >= 400 else answer
        route.fulfill(status=status, json=body)

    page.route(re.compile(rf"//[^/]+/{path.replace('*', '[^/]+')}(\?.*)?$"), fulfill)
    return asked
