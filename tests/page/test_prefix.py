"""The page behind a proxy that has the server under a path, and strips that (OPS-4)."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.conftest import ServeScripted
from tests.page.support import Gated, answered, say
from tests.support import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

PREFIX = "/llm"


@contextmanager
def proxy(server: Server) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths beside the prefix that it was asked for."""
    target = urlsplit(server.url).netloc
    astray: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                astray.append(self.path)
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {**dict(self.headers), "Connection": "close"}
            upstream = http.client.HTTPConnection(target)
            upstream.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)
            upstream.close()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.daemon_threads = True
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}", astray
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def test_the_page_under_a_path(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["One", " two"])
    with proxy(serve_scripted(script)) as (url, astray):
        page.goto(f"{url}{PREFIX}/")
        page.locator("#running .card").first.wait_for()
        say(page, "Count")
        script.go_on()
        page.locator(".message.assistant .said", has_text="One").wait_for()
        script.go_on()
        assert answered(page).locator(".said").inner_text() == "One two"
        page.get_by_role("link", name="API").click()
        page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()
        assert page.url == f"{url}{PREFIX}/docs"
        page.locator(".servers select").wait_for()
        assert page.locator(".servers select").input_value() == f"{url}{PREFIX}"
        assert astray == []
