"""What gap does the worst body of each route leave in somebody else's stream?

    python benchmarks/bodies.py

A stream has a token every 20 ms. Meanwhile each route gets bodies that are as large, as long and as
deep as the limits of the server allow: every field that may hold a list, an object or a text is
filled to a limit with each kind of value, and so is a field that no route knows. The figure of a
route is the longest time between two tokens. A body with a gap above the limit is sent three times,
and the median counts: other programs leave gaps, too. The engine of the stream has nothing to
compute. Requests that name a model name `demo`, which hf runs in a process of its own. The client
runs next to the server, so a machine needs two free cores.
"""

import argparse
import itertools
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks import report
from benchmarks.talkers import Talker, Ticker
from benchmarks.watched import post, running
from enginebay.config.schema import Config
from enginebay.engine.backend import EngineBackend
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen
from enginebay.server.http.uvicorn_server import Server

DEMO = Path(__file__).parents[1] / "demo"
RESULTS = Path(__file__).parent / "results" / "bodies.json"
LARGEST = 32_000_000
VALUES = 490_000
ITEMS = 9_900
MOST = 0.1
"""Seconds that no gap may be longer than on a quiet machine."""

LONGEST: Mapping[str, bytes] = {
    "objects": b"[%b]" % b",".join([b"{}"] * ITEMS),
    "texts": b"[%b]" % b",".join([b'"a"'] * VALUES),
    "numbers": b"[%b]" % b",".join([b"1"] * VALUES),
    "messages": b"[%b]" % b",".join([b'{"role":"user","content":"a"}'] * ITEMS),
    "parts": b'[{"role":"user","content":[%b]}]'
    % b",".join([b'{"type":"text","text":"a"}'] * ITEMS),
    "fields": b"{%b}" % b",".join(b'"k%d":1' % number for number in range(ITEMS)),
    "text": b'"%b"' % (b"a b " * (LARGEST // 4 - 1000)),
    "escapes": b'"%b"' % (b"a b \\n" * (VALUES * 10)),
    "depth": b"[" * 900 + b"]" * 900,
}
"""Values of a field, by what they have most of."""

PLACES = {"{model_id}": "demo", "{response_id}": "none", "{request_id}": "none"}
LEFT_OUT = ("/v1/download", "/api/pull")
"""Routes whose bodies are small and whose work is elsewhere."""


def serve(ready: Connection) -> None:
    """Run the server; its port goes to `ready` once its models are loaded."""
    plugins = Plugins()
    plugins.backends("talker", lambda settings: EngineBackend(lambda: Talker(Ticker())))
    models = [
        {"name": "demo", "backend": "hf", "path": str(DEMO / "model")},
        {"name": "paced", "backend": "talker", "path": "."},
    ]
    app = create_app(Config.model_validate({"models": models}), plugins)
    listening = listen("127.0.0.1", 0)

    async def started() -> None:
        await app.state.services.models.wait_until_loaded()
        ready.send(listening.getsockname()[1])

    Server(app, "error", started).run([listening])


class PacedStream(threading.Thread):
    """Reads a stream that never ends, and remembers when something came."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._arrivals: list[float] = []
        self._connection = self._connect()

    def _connect(self) -> socket.socket:
        body = {"model": "paced", "prompt": "a", "stream": True, "max_tokens": 10**8}
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.sendall(post("/v1/completions", body))
        return connection

    def run(self) -> None:
        while self._connection.recv(1 << 16):
            self._arrivals.append(time.monotonic())

    def longest_gap(self, since: float) -> float:
        """Seconds between two arrivals, of which the second came after `since`."""
        arrivals = list(self._arrivals)
        if not arrivals or time.monotonic() - arrivals[-1] > 5:
            raise RuntimeError("the paced stream has ended")
        pairs = itertools.pairwise(arrivals)
        return max((after - before for before, after in pairs if after > since), default=0.0)


def ask(port: int, method: str, path: str, body: bytes) -> str:
    """Send a body; the status of the answer, which is read to its end."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        with suppress(OSError):  # the server has refused the rest
            connection.sendall(head.encode())
            connection.sendall(body)
        with suppress(OSError):
            while piece := connection.recv(1 << 20):
                answer = answer or piece
    return answer.split(b" ", 2)[1].decode() if answer else "none"


class Schema:
    """Bodies of a server's routes, by its OpenAPI document."""

    def __init__(self, port: int) -> None:
        with urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
            self._document = json.load(answer)

    def routes(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Method, path and schema of each route that has a body."""
        for path, methods in self._document["paths"].items():
            for method, about in methods.items():
                content = about.get("requestBody", {}).get("content", {})
                if content and path not in LEFT_OUT:
                    schema = self._whole(content["application/json"]["schema"])
                    yield method.upper(), path, schema

    def _whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema of an object, without references and the choice of null."""
        for option in (schema, *schema.get("anyOf", ())):
            if name := option.get("$ref", "").rpartition("/")[2]:
                return self._whole(self._document["components"]["schemas"][name])
        return schema

    def kinds(self, schema: dict[str, Any]) -> set[str]:
        """The types of values that a field may have; none if it may be anything."""
        options = [schema]
        found: set[str] = set()
        while options:
            option = options.pop()
            choices = (*option.get("anyOf", ()), *option.get("oneOf", ()), *option.get("allOf", ()))
            options += choices
            if name := option.get("$ref", "").rpartition("/")[2]:
                options.append(self._document["components"]["schemas"][name])
            elif not choices:
                found.add(option.get("type", "anything"))
        return found

    def required(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Values of the fields that a body has to have."""
        found: dict[str, Any] = {"model": "demo"} if "model" in schema["properties"] else {}
        for name in schema.get("required", ()):
            kinds = self.kinds(schema["properties"][name])
            if name in ("messages", "conversations"):
                found[name] = [{"role": "user", "content": "a"}]
            elif kinds & {"string", "anything"}:
                found[name] = "demo" if name == "model" else "a"
            elif "array" in kinds:
                found[name] = ["a"]
            else:
                found[name] = 1 if "integer" in kinds else {}
        for name in ("max_tokens", "max_output_tokens", "max_length"):
            if name in schema["properties"]:
                found[name] = 1
        return found


def bodies(schema: Schema, body: dict[str, Any], seen: set[str]) -> Iterator[tuple[str, bytes]]:
    """The worst bodies of one route, by field and filling.

    A field that a route before had is filled again only where the routes differ in what they do
    with it.
    """
    required = schema.required(body)
    own = {"messages", "prompt", "input", "tools", "content", "system", "text", "texts", "query"}
    for name, about in {**body["properties"], "no_field": {}}.items():
        signature = f"{name} {json.dumps(about, sort_keys=True)}"
        kinds = schema.kinds(about)
        if not kinds & {"array", "object", "string", "anything"}:
            continue
        if name not in own and signature in seen:
            continue
        seen.add(signature)
        rest = {key: value for key, value in required.items() if key != name}
        for filling, value in LONGEST.items():
            start = json.dumps(rest)[:-1].encode()
            yield (
                f"{name}: {filling}",
                start + b"," * bool(rest) + f'"{name}":'.encode() + value + b"}",
            )
    if names := [name for name in ("messages", "prompt", "input") if name in required]:
        flat = b",".join(b'"k%d":1' % number for number in range(ITEMS - 100))
        yield (
            f"{names[0]} and unknown fields",
            json.dumps(required)[:-1].encode() + b"," + flat + b"}",
        )


def measure(port: int, only: str) -> Iterator[tuple[str, report.Json]]:
    """Each route with its longest gap."""
    stream = PacedStream(port)
    stream.start()
    time.sleep(1)
    schema, seen = Schema(port), set[str]()
    for method, path, body in schema.routes():
        if only not in path:
            continue
        target = path
        for place, name in PLACES.items():
            target = target.replace(place, name)
        worst: report.Json = {"gap_ms": 0.0, "bodies": 0, "statuses": {}}
        for name, content in bodies(schema, body, seen):
            gaps: list[float] = []
            while not gaps or (gaps[0] > MOST * 1000 and len(gaps) < 3):
                time.sleep(0.05)
                before = time.monotonic()
                status = ask(port, method, target, content)
                time.sleep(0.05)
                gaps.append(stream.longest_gap(before) * 1000)
            gap = statistics.median(gaps)
            worst["bodies"] += 1
            worst["statuses"][status] = worst["statuses"].get(status, 0) + 1
            if gap > worst["gap_ms"]:
                worst |= {"gap_ms": round(gap, 1), "body": name, "bytes": len(content)}
        yield f"{method} {path}", worst


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Only routes whose path contains this.")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    routes: dict[str, report.Json] = {}
    with running(serve, daemon=False) as server:
        for route, worst in measure(server.port, arguments.only):
            routes[route] = worst
            print(f"{route:45} {worst['gap_ms']:7.1f} ms  {worst.get('body')}  {worst['statuses']}")
    if not arguments.only:
        report.write(
            {"machine": report.machine(), "limit_ms": MOST * 1000, "routes": routes},
            arguments.output,
        )
    late = [route for route, worst in routes.items() if worst["gap_ms"] > MOST * 1000]
    print(f"longer than {MOST * 1000:g} ms: {', '.join(late) or 'none'}")


if __name__ == "__main__":
    main()
