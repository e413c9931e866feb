"""SEC-2: what a request body may hold, in every route, and that reading it holds up nobody."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Self, get_type_hints

import pytest
from fastapi import APIRouter
from pydantic import BaseModel, TypeAdapter, model_validator

from enginebay.chat.schemas.read_body import validator_of
from enginebay.config.field_types import Many
from enginebay.config.schema import Config
from enginebay.contract.errors import InvalidRequestError
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.body_reader import SMALL, BodyReader
from enginebay.server.http.body_route import BodyRoute
from tests.support import Server, plugins_with, scripted, scripted_config, serve

JSON = {"Content-Type": "application/json"}
APP = create_app(Config(), Plugins())
COUNTED_ELSEWHERE = 1000
"""A list that is not longer may collect all its errors."""


def routes(router: APIRouter, prefix: str = "") -> Iterator[tuple[str, BodyRoute]]:
    """Each route that reads a body, with its path."""
    for route in router.routes:
        if inner := getattr(route, "original_router", None):
            yield from routes(inner, prefix + route.include_context.prefix)
        elif getattr(route, "body_field", None):
            assert isinstance(route, BodyRoute), (
                f"{prefix} {route} reads its body on the event loop"
            )
            if route.methods:
                yield prefix + route.path, route


PATHS = sorted({path for path, _ in routes(APP.router) if not path.startswith("/v1/v1")})
KINDS = {
    f"{route.endpoint.__module__.rpartition('.')[2]}-{route.name}": kind
    for _, route in routes(APP.router)
    for kind in [get_type_hints(route.endpoint, include_extras=True)["body"]]
}


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Server]:
    """One for all of them: none of these requests may do it harm."""
    settings = {"max_request_items": 50, "max_request_values": 1000}
    plugins = plugins_with(scripted=scripted(["ok"], context_length=4096))
    with serve(scripted_config(server=settings), plugins) as running:
        yield running


def refused(server: Server, path: str, body: bytes, setting: str) -> str:
    response = server.http.post(path.replace("{model_id:path}", "x"), content=body, headers=JSON)
    assert response.status_code == 400, response.text
    assert setting in response.text
    return response.text


@pytest.mark.wing("ollama", "responses")
def test_all_routes_are_found() -> None:
    assert len(PATHS) > 60
    assert {"/v1/chat/completions", "/api/chat", "/v1/responses", "/tokenize"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "setting"),
    [
        (b'{"messages": [%b]}' % b",".join([b"{}"] * 60), "max_request_items"),
        (b'{"no_field": [[%b]]}' % b",".join([b'{"a": 1}'] * 60), "max_request_items"),
        (b"{%b}" % b",".join(b'"k%d": 1' % number for number in range(60)), "max_request_items"),
        (b'{"a": {%b}}' % b",".join(b'"k%d": 1' % at for at in range(60)), "max_request_items"),
        (b'{"prompt": [%b]}' % b",".join([b"1"] * 2000), "max_request_values"),
        (b"[" * 2000, "max_request_values"),
    ],
    ids=["objects", "deep objects", "fields", "fields below", "numbers", "depth"],
)
def test_too_much_is_refused_before_it_is_validated(
    server: Server, path: str, body: bytes, setting: str
) -> None:
    refused(server, path, body, f"server.{setting}")


def test_the_error_names_the_field(server: Server) -> None:
    body = json.dumps({"model": "x", "tools": [{"function": {"name": "a"}}] * 30}).encode()
    error = json.loads(refused(server, "/v1/chat/completions", body, "max_request_items"))["error"]
    assert error["param"] == "tools"
    assert error["message"] == (
        "tools: the body has more than 50 objects; server.max_request_items sets this limit"
    )


def test_numbers_and_texts_are_no_items(server: Server) -> None:
    answer = server.http.post("/v1/detokenize", json={"tokens": [1] * 900})
    assert answer.status_code == 200
    answer = server.http.post("/v1/completions", json={"prompt": ["a"] * 100, "max_tokens": 1})
    assert answer.status_code == 200


def test_commas_and_brackets_of_texts_count_as_values(server: Server) -> None:
    """Their number only bounds the values; to tell them apart, the body would have to be parsed."""
    for text in ("," * 1001, "\n" * 10_001):
        body = json.dumps({"prompt": text, "max_tokens": 1}).encode()
        refused(server, "/v1/completions", body, "max_request_values")


@pytest.mark.parametrize("before", ["", " " * 100_000, "\ufeff", "\r\n\t"])
def test_nothing_before_json_hides_its_values(server: Server, before: str) -> None:
    body = before + json.dumps({"prompt": [1] * 2000, "max_tokens": 1})
    refused(server, "/v1/completions", body.encode(), "max_request_values")


def test_what_is_not_json_has_no_values(server: Server) -> None:
    """A plugin's route may be sent a recording."""
    answer = server.http.post("/v1/completions", content=b"RIFF,:[{" * 10_000, headers=JSON)
    assert answer.status_code == 400
    assert "the body is not valid JSON" in answer.text


def lists(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each list in a schema of pydantic, with its place."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "set", "frozenset", "tuple"):
            yield path, schema
        for name, part in schema.items():
            if name not in ("metadata", "ref", "serialization"):
                yield from lists(part, f"{path}.{name}")
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from lists(part, path)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_list_stops_at_its_first_error(kind: Any) -> None:
    """Half a million errors take seconds to collect, in one call that holds the GIL."""
    endless = [
        path
        for path, schema in lists(TypeAdapter(kind).core_schema)
        if not schema.get("fail_fast") and not schema.get("max_length", 10**9) <= COUNTED_ELSEWHERE
    ]
    assert endless == []


async def test_a_large_body_is_read_on_a_thread() -> None:
    reader = BodyReader(10)
    threads: list[threading.Thread] = []

    def validate(value: Any) -> Any:
        threads.append(threading.current_thread())
        return value

    text = "x" * SMALL
    assert await reader.read(json.dumps(text).encode(), validate) == (text, [])
    assert await reader.read(b'"small"', validate) == ("small", [])
    assert [thread is threading.main_thread() for thread in threads] == [False, True]
    with pytest.raises(InvalidRequestError, match="more than 10 objects"):
        await reader.read(json.dumps([{}] * SMALL).encode(), validate)
    with pytest.raises(json.JSONDecodeError):
        await reader.read(b"[" + b" " * SMALL, validate)
    reader.close()


async def test_the_event_loop_has_its_turn_between_two_items() -> None:
    """Before each item, a thread that validates a list runs Python, where others take over."""
    loop, turns = asyncio.get_running_loop(), 0
    turned = threading.Semaphore(0)

    def turn() -> None:
        nonlocal turns
        turns += 1
        turned.release()

    class Slow(BaseModel):
        @model_validator(mode="after")
        def _wait_for_a_turn(self) -> Self:
            loop.call_soon_threadsafe(turn)
            assert turned.acquire(timeout=60)
            return self

    reader = BodyReader(10)
    body = json.dumps([{"content": "x" * SMALL}] * 3).encode()
    await reader.read(body, validator_of(Many[Slow]))
    assert turns == 3
    reader.close()
