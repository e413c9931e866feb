"""What handlers of plugins answer that is odd or cannot be sent. PLG-1"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from enginebay import RouteRequest, RouteResponse, event
from enginebay.config.schema import Config
from tests.support import Server, plugins_with, scripted, serve


async def answers(request: RouteRequest) -> RouteResponse:
    """What the body says."""
    return RouteResponse(**request.json_object())


async def fails(request: RouteRequest) -> RouteResponse:
    """Fails as the path says: `early`, or in the stream."""
    how = request.path_params["how"]

    async def parts() -> AsyncIterator[Any]:
        yield event({"n": 1})
        if how == "number":
            yield 5
        elif how == "nan":
            yield event(float("nan"))
        await work

    work = asyncio.create_task(asyncio.sleep(60))
    work.cancel()
    if how == "early":
        await work
    return RouteResponse(body=parts())


async def streams(request: RouteRequest) -> RouteResponse:
    async def parts() -> AsyncIterator[str]:
        yield "a \ud800"

    return RouteResponse(body=parts(), status=int(request.path_params["status"]))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["x"]))
    plugins.routes("POST", "/answers", answers)
    plugins.routes("POST", "/fails/{how}", fails)
    plugins.routes("POST", "/streams/{status}", streams)
    models = [{"name": "a", "backend": "scripted", "path": "."}]
    with serve(Config.model_validate({"models": models}), plugins) as server:
        yield server


@pytest.mark.parametrize("how", ["early", "late", "number", "nan"])
def test_whatever_fails_in_a_handler_is_an_error_of_the_plugin(server: Server, how: str) -> None:
    answer = server.http.post(f"/fails/{how}")
    assert answer.status_code == (500 if how == "early" else 200)
    assert "failed in a plugin; see the server's log" in answer.text.split("\n\n")[how != "early"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 0},
        {"status": 100},
        {"status": 999},
        {"status": "200"},
        {"headers": {"x": "a\r\nb: c"}},
        {"headers": {"x": "\u20ac"}},
        {"headers": {"x": 5}},
        {"headers": {"a b": "c"}},
        {"headers": {"Content-Length": "99"}},
        {"media_type": "a\nb"},
    ],
)
def test_a_response_that_cannot_be_sent(server: Server, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"status|header"):
        RouteResponse(body={}, **fields)
    answer = server.http.post("/answers", json={"body": {}, **fields})
    assert answer.status_code == 500
    assert "failed in a plugin" in answer.json()["error"]["message"]


def test_bodies(server: Server) -> None:
    answer = server.http.post("/answers", content=b'{"body": [NaN, 1e999, 1]}')
    assert answer.text == "[null,null,1]"
    answer = server.http.post("/answers", json={"body": {"a": 1}, "status": 204})
    assert (answer.status_code, answer.content) == (204, b"")
    assert server.http.post("/streams/200").text == "a ?"
    answer = server.http.post("/streams/204")
    assert (answer.status_code, answer.content) == (204, b"")
