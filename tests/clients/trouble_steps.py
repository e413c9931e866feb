"""What is tried with every client when something is in the way of an answer."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from playwright.sync_api import Locator, expect

from tests.clients import programs
from tests.clients.browser import lengths_while_growing
from tests.clients.install import SEEN
from tests.clients.journal import Journal
from tests.clients.programs import ADMIN_KEY, KEY, LIMITED_KEY
from tests.clients.report import Report


class Client(Protocol):
    """What the steps need of a client."""

    @property
    def answer(self) -> Locator:
        """The text of the last answer."""

    @property
    def stop_button(self) -> Locator:
        """Shown while an answer comes."""

    def new_chat(self) -> None:
        """Begin a new chat."""

    def ask(self, text: str) -> None:
        """Send a message, whatever comes of it."""

    def stop(self) -> None:
        """Press the button that stops the answer."""

    def error_with(self, words: str) -> str:
        """The error with these words that is shown, or will be in a moment."""


def try_all(
    client: Client, connect_to: Callable[[str, str], None], report: Report, journal: Journal
) -> None:
    """Every step, against a server that answers one request at a time.

    `connect_to` a URL with a key also chooses `storyteller`.
    """
    port = programs.free_port()
    with ExitStack() as running:
        server = running.enter_context(narrow_server(journal, port))
        with report.step("more requests than a key may send") as finding:
            connect_to(server, LIMITED_KEY)
            _hear_a_story(client)
            client.stop()
            client.ask("Another one")
            finding.seen = client.error_with("limited to 1 per minute")
        with report.step("a full queue") as finding:
            connect_to(server, KEY)
            client.new_chat()
            with story(server):
                client.ask("Tell me a story")
                finding.seen = client.error_with("queue")
        with report.step("the server stops while it answers") as finding:
            _hear_a_story(client)
            running.close()
            expect(client.stop_button).to_be_hidden()
            text = client.answer.inner_text()
            assert text, "nothing is left of the answer"
            finding.seen = f"{text[-40:]!r} stays; {journal.last().outcome}"
    with narrow_server(journal, port), report.step("the server is back"):
        _hear_a_story(client)
        client.stop()


def narrow_server(journal: Journal, port: int) -> AbstractContextManager[str]:
    """A server that asks nobody to wait."""
    return programs.enginebay(journal.file, SEEN, config="narrow", port=port)


def _hear_a_story(client: Client) -> None:
    client.new_chat()
    client.ask("Tell me a story")
    lengths_while_growing(client.answer, 8)


@contextmanager
def story(server: str) -> Iterator[None]:
    """Somebody else who is told a story meanwhile."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "Content-Type": "application/json"}
    body = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 20_000}).encode()
    request = urllib.request.Request(f"{server}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        response.readline()
        yield
