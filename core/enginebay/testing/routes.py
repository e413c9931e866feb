"""`check_routes()`: checks the routes of a plugin in a real application with a scripted model.

The promises, for each route:

1. no route of the server answers in its place
2. without a key it answers 401, with a user's key 403 if it is for admins; neither if it is for
   anyone
3. its `example`, as the body, is answered with a status below 400, with JSON where the response
   says so, and with an `X-Request-Id`
4. a body that is no JSON, or JSON of another shape, is at worst an error of the client, as JSON
5. an engine that dies in mid-answer is an error, or ends the response that has begun
6. what the route runs ends when the client leaves

A route that takes a body needs an `example`; without one it is called with an empty body.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.contract.formats import is_json
from enginebay.contract.routes import Route, RouteRegister
from enginebay.engine.backend import EngineBackend
from enginebay.plugins import Plugins
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from enginebay.server.app import create_app
from enginebay.server.services import services_of
from enginebay.testing.probe import BrokenPromiseError, expect
from enginebay.testing.scripted import Script, ScriptedEngine

_MODEL = "scripted"
_USER, _ADMIN = {"x-api-key": "user" * 8}, {"x-api-key": "admin" * 8}
_ODD_BODIES = (b"", b"{", b"[]", b"null", b"5", b'"text"', b"{}", b'{"model": []}', b"\xff")


async def check_routes(
    register_routes: Callable[[RouteRegister], None],
    *,
    script: Script | None = None,
    timeout: float = 30,  # noqa: ASYNC109  (of one check, not of the whole)
) -> None:
    """Raise `BrokenPromiseError` naming every promise that is broken, with the route.

    `register_routes` is the plugin's hook. `script(prompt, index)` is what the model says, by
    default a short text, or what fits where an answer is constrained. A check that takes longer
    than `timeout` seconds counts as a hang.
    """
    registered = RouteRegister()
    register_routes(registered)
    broken: list[str] = []
    for name, route in registered.items():
        for check in _CHECKS:
            try:
                async with asyncio.timeout(timeout):
                    await check(register_routes, route, script or _short)
            except BrokenPromiseError as error:
                broken.append(f"{name}: {error}")
            except TimeoutError:
                broken.append(f"{name}: {check.__name__} hangs")
    if broken:
        raise BrokenPromiseError("\n".join(broken))


async def check_access(register: Callable[..., None], route: Route, script: Script) -> None:
    """Promises 1 and 2."""
    async with _running(register, script) as app:
        names = {getattr(each, "name", "") for each in app.routes}
        added = f"{route.method} {route.path}" in names
        expect(added, 1, "the server has a route of its own there")
        keyless = (await _call(app, route, {})).status_code
        user = (await _call(app, route, _USER)).status_code
    if route.access == "anyone":
        expect(keyless not in (401, 403), 2, f"anyone may call it, but it answers {keyless}")
        return
    expect(keyless == 401, 2, f"it answers {keyless} without a key")
    if route.access == "admin":
        expect(user == 403, 2, f"it is for admins, but answers {user} to a user's key")


async def check_example(register: Callable[..., None], route: Route, script: Script) -> None:
    """Promise 3."""
    async with _running(register, script) as app:
        answer = await _call(app, route, _ADMIN)
    expect(answer.status_code < 400, 3, f"it answers {answer.status_code}: {answer.text:.500}")
    expect("x-request-id" in answer.headers, 3, "the response has no X-Request-Id")
    if answer.headers.get("content-type") == "application/json":
        expect(is_json(answer.text), 3, f"the response is not JSON: {answer.text:.500}")


async def check_odd_bodies(register: Callable[..., None], route: Route, script: Script) -> None:
    """Promise 4."""
    if route.method == "GET":
        return
    async with _running(register, script) as app:
        for body in _ODD_BODIES:
            answer = await _call(app, route, _ADMIN, body)
            status = answer.status_code
            expect(status < 500, 4, f"it answers {status} to the body {body!r}: {answer.text:.500}")
            told = status < 400 or is_json(answer.text)
            expect(told, 4, f"the error for the body {body!r} is not JSON: {answer.text:.500}")


async def check_death(register: Callable[..., None], route: Route, script: Script) -> None:
    """Promise 5."""

    def dying(prompt: str, index: int) -> Iterator[str]:
        yield "{"
        raise RuntimeError("the engine was told to die")

    async with _running(register, dying) as app:
        answer = await _call(app, route, _ADMIN)
        if services_of(app).models.all()[0].state == "ready":
            return  # the route ran nothing
    whole = answer.headers.get("content-type") == "application/json"
    failed = answer.status_code >= 500 or not whole
    expect(failed, 5, f"it answers {answer.status_code}: {answer.text:.500}")


async def check_leaving(register: Callable[..., None], route: Route, script: Script) -> None:
    """Promise 6, with a model that never stops."""
    loop, runs = asyncio.get_running_loop(), asyncio.Event()

    def endless(prompt: str, index: int) -> Iterator[str]:
        loop.call_soon_threadsafe(runs.set)
        while True:
            yield "and "

    async with _running(register, endless) as app:
        await _leave(app, route, runs)
        shared = services_of(app)
        ended = not len(shared.serving.requests) and not shared.models.all()[0].running
        expect(ended, 6, "what it runs goes on when its client has left")


@asynccontextmanager
async def serving_routes(
    register_routes: Callable[[RouteRegister], None], script: Script | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client, with an admin's key, of a server with these routes and a scripted model.

    For tests of what the routes answer; nothing listens on a port.
    """
    async with _running(register_routes, script or _short) as app, _client(app) as client:
        client.headers.update(_ADMIN)
        yield client


_CHECKS = (check_access, check_example, check_odd_bodies, check_death, check_leaving)


def _short(prompt: str, index: int) -> Iterator[str]:
    yield from ("Hello", ", ", "world", ".")


@asynccontextmanager
async def _running(register: Callable[..., None], script: Script) -> AsyncIterator[Any]:
    """An application with the plugin, a scripted model and two keys."""
    plugins = Plugins()
    plugins.routes = RouteRegister()  # without those of installed plugins, which it may be among
    register(plugins.routes)
    plugins.backends(
        f"{_MODEL} for checks", lambda _: EngineBackend(lambda: ScriptedEngine(script))
    )
    model = {"name": _MODEL, "backend": f"{_MODEL} for checks", "path": "."}
    config = Config.model_validate({"models": [model], "server": {"auth": "required"}})
    known = [
        Key("user", digest_of(_USER["x-api-key"])),
        Key("admin", digest_of(_ADMIN["x-api-key"]), "admin"),
    ]
    app = create_app(config, plugins, keys=KeyStore(Path("there is no such file"), known))
    async with app.router.lifespan_context(app):
        await services_of(app).models.wait_until_loaded()
        yield app


async def _call(
    app: Any, route: Route, headers: dict[str, str], body: bytes | None = None
) -> httpx2.Response:
    """The response to the example, or another body."""
    async with _client(app) as client:
        content = _example(route) if body is None else body
        sent = {**headers, "content-type": "application/json"}
        return await client.request(route.method, _path(route), content=content, headers=sent)


def _client(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


async def _leave(app: Any, route: Route, runs: asyncio.Event) -> None:
    """Call it with the example, and leave when the model runs, or when it has answered."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": _example(route), "more_body": False}
        await runs.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            runs.set()

    call: Callable[..., Awaitable[None]] = app
    headers = {**_ADMIN, "host": "localhost", "content-type": "application/json"}
    await call(
        {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": route.method,
            "scheme": "http",
            "path": _path(route),
            "raw_path": _path(route).encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        },
        receive,
        send,
    )


def _path(route: Route) -> str:
    return re.sub(r"\{[^}]*\}", "x", route.path)


def _example(route: Route) -> bytes:
    return b"" if route.example is None else json.dumps(dict(route.example)).encode()
