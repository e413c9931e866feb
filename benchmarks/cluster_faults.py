"""How soon an engine hears that nobody wants an answer, and clients that their engine is gone."""

import json
import os
import random
import secrets
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import report
from benchmarks.cluster_sites import STEP, Served
from benchmarks.cluster_streams import STAMP, ask
from benchmarks.watched import TIMEOUT
from tests.cluster.site import ADMIN, replicas

_LONG = 100_000
"""Tokens: an answer that does not end by itself."""


def left(served: Served) -> report.Json:
    """A client that closes its connection: milliseconds until the engine has aborted."""
    with _stream(served) as connection:
        _begun(connection, served)
        gone = time.time()
    return {"server": served.name, "left_ms": _millis(_aborted(served, gone) - gone)}


def cancelled(served: Served) -> report.Json:
    """A request cancelled by its id: milliseconds until the engine and the client know."""
    id = secrets.token_hex(8)
    with _stream(served, id) as connection:
        _begun(connection, served)
        began = time.time()
        _post(served, f"/v1/requests/{id}/cancel", {})
        told = _read_until(connection, served, b'"abort"')
        aborted = _aborted(served, began)
    return {
        "server": served.name,
        "cancelled_ms": _millis(aborted - began),
        "cancelled_client_ms": _millis(told - began),
    }


def killed(served: Served) -> report.Json:
    """An engine killed: milliseconds until its stream has the error, seconds to the next answer.

    Ask only of a cluster with one engine of the model.
    """
    with _stream(served) as connection:
        _begun(connection, served)
        began = time.time()
        [replica] = replicas(served.model)
        os.kill(replica.pid, signal.SIGKILL)
        told = _read_until(connection, served, b'"engine_dead"')
    while not _answers(served):
        time.sleep(0.05)
    again = time.time() - began
    while len(replicas(served.model)) != 1:
        time.sleep(0.05)
    return {
        "server": served.name,
        "error_ms": _millis(told - began),
        "again_s": round(again, 2),
    }


def _millis(seconds: float) -> float:
    return round(seconds * 1e3, 1)


@contextmanager
def _stream(served: Served, id: str = "") -> Iterator[socket.socket]:
    """A stream without end, which is closed with the block."""
    request = ask(served, _LONG)
    if id:
        request = request.replace(b"\r\n", f"\r\nX-Request-Id: {id}\r\n".encode(), 1)
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as connection:
        connection.sendall(request)
        yield connection


def _begun(connection: socket.socket, served: Served) -> None:
    """Wait for a few tokens, and then for any part of a step."""
    _read_until(connection, served, b"")
    time.sleep(random.uniform(0, STEP))


def _read_until(connection: socket.socket, served: Served, mark: bytes) -> float:
    """When this came, or a few tokens if it is empty."""
    seen = b""
    while not (mark in seen if mark else len(STAMP.findall(seen)) > 3):
        data = connection.recv(1 << 16)
        if not data:
            raise RuntimeError(f"{served.name} ended the answer: {seen[-500:]!r}")
        seen += data
    return time.time()


def _aborted(served: Served, since: float) -> float:
    """When the engine did it."""
    while time.time() < since + TIMEOUT:
        if times := served.happened("abort", since):
            return times[0]
        time.sleep(0.02)
    raise RuntimeError(f"the engine of {served.name} goes on with what nobody wants")


def _answers(served: Served) -> bool:
    body = {"model": served.model, "prompt": "x", "max_tokens": 1}
    try:
        return _post(served, "/v1/completions", body) == 200
    except OSError:
        return False


def _post(served: Served, path: str, body: report.Json) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
