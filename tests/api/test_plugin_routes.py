"""Routes of plugins over HTTP: keys, limits, log, metrics, errors, clients that leave. PLG-1"""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import (
    ContentDelta,
    InvalidRequestError,
    RouteRegister,
    RouteRequest,
    RouteResponse,
    event,
)
from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from tests.pooling import BACKENDS
from tests.support import Server, plugins_with, scripted, serve

USER, ADMIN = "user" * 8, "admin" * 8
PIECES = ["<think>", "Hm.", "</think>", "Hello", ", ", "world"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<think></think>"


async def whole(request: RouteRequest) -> Any:
    """What the chat route answers."""
    return await (await request.chat(request.json_object())).whole()


async def text(request: RouteRequest) -> RouteResponse:
    answer = await request.chat(request.json_object(), id="mine-1")

    async def parts() -> AsyncIterator[str]:
        async for update in answer.updates():
            for part in update.parts:
                if isinstance(part, ContentDelta):
                    yield part.text
        yield f" {answer.id} {answer.model} {answer.usage.completion_tokens}"

    return RouteResponse(body=parts(), media_type="text/plain; charset=utf-8", headers={"x-a": "b"})


async def fails_late(request: RouteRequest) -> RouteResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield event({"n": 1})
        if request.query.get("how") == "crash":
            raise RuntimeError("a secret")
        raise InvalidRequestError("too late", param="q")

    return RouteResponse(body=parts(), media_type=request.query.get("type"))


async def fails_early(request: RouteRequest) -> RouteResponse:
    async def parts() -> AsyncIterator[bytes]:
        raise InvalidRequestError("too early", param="q")
        yield b""

    return RouteResponse(body=parts())


async def crashes(request: RouteRequest) -> Any:
    raise RuntimeError("a secret")


async def about(request: RouteRequest) -> Any:
    return {
        "name": request.path_params["name"],
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "agent": request.headers["x-agent"],
        "key": request.key,
        "models": request.models(),
    }


async def both(request: RouteRequest) -> Any:
    """Two answers at once, whose bodies are a list."""
    answers = [await request.chat(body) for body in request.json()]
    return [await answer.whole() for answer in answers]


LEFT: list[Any] = []


async def leaves_it(request: RouteRequest) -> Any:
    """An answer that is begun, and then neither read nor closed."""
    body = request.json_object()
    answer = await request.chat(body)
    reading = answer.chunks() if body.get("stream") else answer.updates()
    await anext(reading)
    LEFT.append(reading)
    return {}


async def compute(request: RouteRequest) -> Any:
    """Whichever of these the path names."""
    run = {
        "embed": request.embed,
        "rerank": request.rerank,
        "score": request.score,
        "classify": request.classify,
    }
    return await run[request.path_params["verb"]](request.json_object())


async def anything(request: RouteRequest) -> RouteResponse:
    return RouteResponse(body=request.path_params["path"])


def register(routes: RouteRegister) -> None:
    routes("POST", "/compute/{verb}", compute)
    routes("POST", "/leave", leaves_it)
    routes("POST", "/both", both)
    routes("POST", "/mine/whole", whole, example={"messages": []})
    routes("POST", "/mine/text", text)
    routes("POST", "/mine/late", fails_late)
    routes("POST", "/api/late", fails_late)
    routes("POST", "/mine/early", fails_early)
    routes("POST", "/mine/crash", crashes)
    routes("GET", "/about/{name}", about)
    routes("POST", "/admin", crashes, access="admin")
    routes("POST", "/free", fails_early, access="anyone", counted=False)
    routes("POST", "/v1/completions", crashes)
    routes.errors("/mine/", lambda error: {"oops": error.message})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(PIECES, chat_template=TEMPLATE), **BACKENDS)
    register(plugins.routes)
    models = [{"name": name, "backend": "scripted", "path": "."} for name in ("a", "b")]
    others = ("embeds", "ranks", "three")
    models += [{"name": name, "backend": name, "path": "."} for name in others]
    config = Config.model_validate({"models": models, "server": {"auth": "required"}})
    known = [
        Key("ann", digest_of(USER), models=("b",), requests_per_minute=1000, max_tokens=100),
        Key("root", digest_of(ADMIN), "admin"),
        Key("slow", digest_of("slow" * 8), requests_per_minute=1),
    ]
    with serve(config, plugins, keys=KeyStore(Path("none"), known)) as server:
        server.http.headers["x-api-key"] = ADMIN
        yield server


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "model": "b"}


def test_it_answers_as_the_servers_own_route_does(server: Server) -> None:
    own = server.http.post("/mine/whole", json={**CHAT, "top_k": 5, "foo": 1})
    usual = server.http.post("/v1/chat/completions", json={**CHAT, "top_k": 5, "foo": 1})
    assert own.json()["choices"] == usual.json()["choices"]
    assert own.json()["usage"]["completion_tokens"] == usual.json()["usage"]["completion_tokens"]
    assert own.headers["x-unsupported-params"] == usual.headers["x-unsupported-params"]
    assert own.json()["id"] == f"chatcmpl-{own.headers['x-request-id']}"


@pytest.mark.parametrize(
    ("verb", "route", "body"),
    [
        ("embed", "embeddings", {"input": ["ab", "c"], "model": "embeds", "foo": 1}),
        ("rerank", "rerank", {"query": "a", "documents": ["b", "a"], "model": "ranks", "foo": 1}),
        ("score", "score", {"queries": "a", "documents": ["b", "a"], "model": "ranks"}),
        ("classify", "classify", {"input": "ab", "model": "three"}),
        ("classify", "classify", {"input": "ab", "model": "b"}),
    ],
)
def test_what_generates_nothing(server: Server, verb: str, route: str, body: Any) -> None:
    own = server.http.post(f"/compute/{verb}", json=body)
    usual = server.http.post(f"/v1/{route}", json=body)
    assert own.status_code == usual.status_code
    unsure = {"id": None, "created": None}
    assert {**own.json(), **unsure} == {**usual.json(), **unsure}
    header = "x-unsupported-params"
    assert own.headers.get(header) == usual.headers.get(header)


def test_a_path_of_all_paths_says_nothing_of_the_servers_own() -> None:
    """Neither who may call these, nor that they do not count."""
    plugins = plugins_with(scripted=scripted(["x"]))
    for method in ("GET", "POST"):
        plugins.routes(method, "/{path:path}", anything, access="anyone", counted=False)
    models = [{"name": "b", "backend": "scripted", "path": "."}]
    config = Config.model_validate({"models": models, "server": {"auth": "required"}})
    known = [Key("slow", digest_of(USER), requests_per_minute=1)]
    with serve(config, plugins, keys=KeyStore(Path("none"), known)) as server:
        assert server.http.get("/some/page").text == "some/page"
        for path in ("/v1/models", "/props", "/requests"):
            assert server.http.get(path).status_code == 401
        for path in ("/v1/chat/completions", "/embeddings"):
            assert server.http.post(path, json=CHAT).status_code == 401
        headers = {"x-api-key": USER}
        answers = [server.http.post("/v1/completions", json={}, headers=headers) for _ in "12"]
        assert [answer.status_code for answer in answers] == [400, 429]


def test_a_stream_of_parts(server: Server) -> None:
    answer = server.http.post("/mine/text", json=CHAT, headers={"X-Request-Id": "abc"})
    assert answer.text == "Hello, world mine-1 b 31"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert (answer.headers["x-a"], answer.headers["x-request-id"]) == ("b", "abc")


def test_fields_without_effect_of_all_answers_are_named(server: Server) -> None:
    answer = server.http.post("/both", json=[{**CHAT, "foo": 1}, {**CHAT, "bar": 1, "foo": 2}])
    assert len(answer.json()) == 2
    assert answer.headers["x-unsupported-params"] == "foo, bar"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_left_ends_with_the_request(server: Server, stream: bool) -> None:
    assert server.http.post("/leave", json={**CHAT, "stream": stream}).json() == {}
    server.settle()
    model = server.app.state.services.models.find("b")
    assert (model.running, model.waiting) == (0, 0)
    counts = server.app.state.services.serving.counts.of("b")
    assert counts.in_flight == 0


def test_what_a_handler_knows(server: Server) -> None:
    headers = {"x-api-key": USER, "X-Agent": "me"}
    answer = server.http.get("/about/x%20y?a=1", headers=headers)
    assert answer.json() == {
        "name": "x y",
        "method": "GET",
        "path": "/about/x y",
        "query": {"a": "1"},
        "agent": "me",
        "key": "ann",
        "models": ["b"],
    }


def test_keys_and_their_limits(server: Server) -> None:
    def status(path: str, key: str, body: Any = CHAT) -> int:
        return server.http.post(path, json=body, headers={"x-api-key": key}).status_code

    assert [status("/mine/whole", key) for key in ("wrong", USER, ADMIN)] == [401, 200, 200]
    assert [status("/admin", key) for key in ("wrong", USER, ADMIN)] == [401, 403, 500]
    assert [status("/free", key) for key in ("wrong", "slow" * 8, "slow" * 8)] == [400] * 3
    assert status("/mine/whole", USER, {**CHAT, "model": "a"}) == 404
    assert [status("/mine/whole", "slow" * 8) for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/mine/whole", {"messages": []}, 400, "messages: List should have at least 1 item"),
        ("/mine/whole", {**CHAT, "model": "none"}, 404, "the model 'none' does not exist"),
        ("/mine/whole", [], 400, "the body must be a JSON object"),
        ("/mine/early", {}, 400, "too early"),
        ("/mine/crash", {}, 500, "failed in a plugin; see the server's log"),
        ("/mine/none", {}, 404, "there is no route POST /mine/none"),
    ],
)
def test_errors_have_the_shape_of_the_path(
    server: Server, path: str, body: Any, status: int, message: str
) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == status
    assert answer.json().keys() == {"oops"}
    assert message in answer.json()["oops"]
    assert "secret" not in answer.text


def test_all_that_answers_for_a_path_knows_its_shape(server: Server) -> None:
    assert server.http.post("/mine/whole", headers={"x-api-key": "no"}).json().keys() == {"oops"}
    assert server.http.get("/mine/whole").json() == {"oops": "/mine/whole does not allow GET"}
    broken = server.http.post("/mine/whole", content=b"{")
    assert broken.json()["oops"].startswith("the body is not valid JSON: ")
    large = server.http.post("/mine/whole", content=b" " * 40_000_000)
    assert (large.status_code, large.json().keys()) == (413, {"oops"})
    assert server.http.post("/v1/nothing").json().keys() == {"error"}


@pytest.mark.parametrize("how", ["refuse", "crash"])
def test_an_error_in_mid_stream_is_its_last_event(server: Server, how: str) -> None:
    answer = server.http.post("/mine/late", params={"how": how})
    assert answer.status_code == 200
    first, last = answer.text.split("\n\n")[:2]
    assert first == 'data: {"n": 1}'
    assert last.startswith('data: {"oops":')
    assert "secret" not in last
    lines = server.http.post("/mine/late", params={"type": "application/x-ndjson"}).text
    assert lines.endswith('{"oops":"too late"}\n')


@pytest.mark.wing("ollama")
def test_among_the_paths_of_an_api_errors_have_its_form(server: Server) -> None:
    lines = server.http.post("/api/late", params={"type": "application/x-ndjson"}).text
    assert lines.endswith('{"error":"too late"}\n')
    assert server.http.get("/api/late").json() == {"error": "/api/late does not allow GET"}


def test_it_is_counted_logged_and_documented(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "enginebay.access"):
        server.http.post("/mine/whole", json=CHAT)
        server.settle()
    assert "POST /mine/whole 200 in" in caplog.text
    assert 'route="/mine/whole",status="200"' in server.http.get("/metrics").text
    paths = server.http.get("/openapi.json").json()["paths"]
    documented = paths["/mine/whole"]["post"]
    assert documented["description"] == "What the chat route answers."
    example = documented["requestBody"]["content"]["application/json"]["example"]
    assert example == {"messages": []}


def test_the_servers_own_routes_come_first(server: Server) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    assert answer.json()["object"] == "text_completion"


def test_a_plugin_that_fails_leaves_no_routes(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from enginebay import hookimpl\n"
        "@hookimpl\n"
        "def register_routes(register):\n"
        "    register('POST', '/a', print)\n"
        "    register.errors('/a', print)\n"
        "    register('POST', 'b', print)\n"
    )
    plugins = Plugins(folder=tmp_path)
    assert "must begin with a slash" in (plugins.found[-1].error or "")
    assert not plugins.routes
    assert not plugins.routes.error_shapes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("FETCH", "/a", print), "must be GET, POST, PUT"),
        (("GET", "/a", 5), "must be handled by a function"),
        (("GET", "/mine/whole", print), None),
        (("POST", "/mine/whole", print), "registered twice"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, message: str | None) -> None:
    routes = RouteRegister()
    register(routes)
    if message is None:
        routes(*arguments)
        return
    with pytest.raises((ValueError, TypeError), match=message):
        routes(*arguments)
