"""A server that answers what it is told to, for what no Enginebay would do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""A status and a body: bytes, an object to send as JSON, or an iterator of bytes; and headers."""


DONE = b"data: [DONE]\n\n"


def events(*items: Any) -> bytes:
    """A stream of these events, whole."""
    return b"".join(b"data: %s\n\n" % json.dumps(item).encode() for item in items) + DONE


class Fake:
    """Answers by path, one after the other, the last one again and again."""

    def __init__(self, url: str, answers: dict[str, list[Answer]]) -> None:
        self.url = url
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.left = Event()  # set when a client has closed the connection in mid-answer

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path."""
        return [body for asked, body in self.asked if asked == path]


@contextmanager
def fake(answers: dict[str, list[Answer]], port: int = 0) -> Iterator[Fake]:
    """A running server with these answers, on any free port if it is 0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(length)))

        def _answer(self, body: Any) -> None:
            server.asked.append((self.path, body))
            queue = server.answers.get(self.path, [(404, {"error": {"message": "no route"}})])
            status, answer, *headers = queue.pop(0) if len(queue) > 1 else queue[0]
            if isinstance(answer, Iterator):
                self._stream(status, answer)
                return
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            if not isinstance(answer, bytes):
                self.send_header("Content-Type", "application/json")
            elif answer.startswith(b"<"):
                self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, status: int, pieces: Iterator[bytes]) -> None:
            self.close_connection = True
            self.send_response(status)
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:
                server.left.set()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as http:
        server = Fake(f"http://127.0.0.1:{http.server_address[1]}", answers)
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
