"""Whatever clients do, nothing of their requests stays behind."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from enginebay import EngineBackend
from tests.api.test_cancel import BACKENDS, nothing_runs
from tests.held import until
from tests.support import Server, plugins_with, scripted_config, serve

REQUESTS = 200
AT_ONCE = 24
KINDS = ("finishes", "leaves", "is cancelled", "is cancelled later", "leaves and is cancelled")
SHORT = 40


async def ask(server: Server, http: httpx2.AsyncClient, number: int, kind: str) -> str:
    """Send one request that ends in this way; what became of it."""
    chance = random.Random(number)
    stream = "later" in kind or chance.random() < 0.7
    path, asked = chance.choice(
        [
            ("completions", {"prompt": "x"}),
            ("completions", {"prompt": ["x", "y", "z"]}),
            ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ]
    )
    body: dict[str, Any] = {**asked, "n": chance.choice([1, 1, 3]), "stream": stream}
    body["priority"] = chance.randint(-1, 1)
    if kind == "finishes":
        body["max_tokens"] = SHORT
    id = f"request-{number}"
    sending = asyncio.create_task(send(http, f"/v1/{path}", body, id, kind))
    if kind.endswith("cancelled"):
        await until_cancelled(http, id, sending)
    if "leaves" in kind and not stream:
        await asyncio.sleep(0)
        sending.cancel()
    with suppress(asyncio.CancelledError):
        return await sending
    return "left"


async def send(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any], id: str, kind: str
) -> str:
    headers = {"X-Request-Id": id}
    async with http.stream("POST", path, json=body, headers=headers) as response:
        if response.status_code != 200:
            await response.aread()
            return str(response.json()["error"]["code"])
        text, cancelled = "", None
        async for piece in response.aiter_text():
            text += piece
            if "leaves" in kind:
                return "left"
            if "later" in kind and not cancelled:
                cancelled = await http.post(f"/v1/requests/{id}/cancel")
        assert text.endswith("data: [DONE]\n\n") == body["stream"]
        return "abort" if '"abort"' in text else "finished"


async def until_cancelled(http: httpx2.AsyncClient, id: str, sending: asyncio.Task[str]) -> None:
    """Cancel it as soon as it is there, unless it has ended by itself."""
    while not sending.done():
        response = await http.post(f"/v1/requests/{id}/cancel")
        if response.status_code == 200:
            return


@pytest.mark.parametrize("isolation", BACKENDS)
async def test_nothing_is_left_of_random_requests(isolation: str) -> None:
    backends: list[EngineBackend] = []

    def create(settings: Any) -> EngineBackend:
        backend = BACKENDS[isolation](settings)
        assert isinstance(backend, EngineBackend)
        backends.append(backend)
        return backend

    config = scripted_config(max_running=4, max_queue=12)
    plugins = plugins_with(scripted=create)
    outcomes: dict[str, set[str]] = {kind: set() for kind in KINDS}
    with serve(config, plugins) as server:
        tasks = server.run(count_tasks())
        slots = asyncio.Semaphore(AT_ONCE)
        # The server closes idle connections, while a client on a busy machine sends on one.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:

            async def one(number: int) -> None:
                kind = KINDS[number % len(KINDS)]
                async with slots:
                    outcomes[kind].add(await ask(server, http, number, kind))

            await asyncio.gather(*map(one, range(REQUESTS)))
        await asyncio.to_thread(until, server, lambda: nothing_runs(server))
        [backend] = backends
        assert not backend._calls
        [model] = server.app.state.services.models.all()
        assert model.served().gate._shares == {}
        assert not list(server.app.state.services.serving.requests)
        await asyncio.to_thread(until, server, lambda: len(asyncio.all_tasks()) <= tasks)
    assert "finished" in outcomes["finishes"]
    assert "abort" in outcomes["is cancelled later"]
    assert outcomes["finishes"] <= {"finished", "queue_full"}
    assert outcomes["is cancelled later"] <= {"abort", "queue_full"}
    assert "request_cancelled" in outcomes["is cancelled"]
    assert outcomes["is cancelled"] <= {"abort", "request_cancelled", "queue_full"}


async def count_tasks() -> int:
    return len(asyncio.all_tasks())
