"""`check_routes` passes for routes that keep its promises, and fails for each broken one. PLG-1"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from enginebay import ContentDelta, RouteRegister, RouteRequest, RouteResponse, event
from enginebay.testing.probe import BrokenPromiseError
from enginebay.testing.routes import check_routes, serving_routes

EXAMPLE = {"q": "Hi"}
Register = Callable[[RouteRegister], None]


def chat_of(request: RouteRequest) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": request.json_object().get("q", "")}]}


async def whole(request: RouteRequest) -> Any:
    return await (await request.chat(chat_of(request))).whole()


async def streamed(request: RouteRequest) -> RouteResponse:
    answer = await request.chat({**chat_of(request), "stream": True})

    async def events() -> AsyncIterator[bytes]:
        async for chunk in answer.chunks():
            yield event(chunk)

    return RouteResponse(body=events())


async def told(request: RouteRequest) -> RouteResponse:
    answer = await request.chat(chat_of(request))

    async def text() -> AsyncIterator[str]:
        async for update in answer.updates():
            for part in update.parts:
                if isinstance(part, ContentDelta):
                    yield part.text

    return RouteResponse(body=text(), media_type="text/plain")


def of(handler: Any, path: str = "/mine", **more: Any) -> Register:
    more = {"example": EXAMPLE, **more}
    return lambda register: register("POST", path, handler, **more)


@pytest.mark.parametrize("handler", [whole, streamed, told])
@pytest.mark.parametrize("access", ["key", "admin", "anyone"])
async def test_good_routes(handler: Any, access: str) -> None:
    await check_routes(of(handler, access=access))


async def test_a_route_that_runs_nothing() -> None:
    async def hello(request: RouteRequest) -> Any:
        return {"hello": request.path_params["name"], "models": request.models()}

    def register(routes: RouteRegister) -> None:
        routes("GET", "/hello/{name}", hello)

    await check_routes(register)
    async with serving_routes(register) as client:
        assert (await client.get("/hello/ann")).json() == {"hello": "ann", "models": ["scripted"]}


async def crashes(request: RouteRequest) -> Any:
    return {"q": request.json()["q"]}  # whatever was sent


async def writes_no_json(request: RouteRequest) -> Any:
    return RouteResponse(body="{", media_type="application/json")


async def is_refused(request: RouteRequest) -> Any:
    return await (await request.chat({"messages": []})).whole()


async def cannot_be_written(request: RouteRequest) -> Any:
    return {"q": object()}


async def swallows(request: RouteRequest) -> Any:
    try:
        return await whole(request)
    except Exception:
        return {"answer": ""}


@pytest.mark.parametrize(
    ("register", "broken"),
    [
        (of(whole, "/v1/chat/completions"), "promise 1: the server has a route of its own"),
        (of(whole, "/v1/models/mine/load"), "promise 1: the server has a route of its own"),
        (of(is_refused), "promise 3: it answers 400"),
        (of(writes_no_json), "promise 3: the response is not JSON"),
        (of(cannot_be_written), "promise 3: it answers 500"),
        (of(crashes), "promise 4: it answers 500 to the body"),
        (of(swallows), "promise 5: it answers 200"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_broken_promises(register: Register, broken: str) -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        await check_routes(register)
    assert broken in str(caught.value)
