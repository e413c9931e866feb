"""Requests to servers that are slow, busy or away."""

import asyncio
from contextlib import aclosing
from threading import Event
from typing import Any

import pytest
from completion_events import PATH, choice, vllm
from enginebay_remote import create
from enginebay_remote.http import Http
from enginebay_remote.options import Options
from fake import DONE, Answer, Fake, events, fake

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    Chat,
    GenerationRequest,
    InvalidRequestError,
)


async def test_a_server_that_never_answers() -> None:
    """The list of models is not waited for as long as a completion."""
    gate = Event()
    with fake({"/v1/models": [(200, iter(gate.wait, True))]}) as server:
        http = Http(server.url, timeout=0.05, retries=2)
        try:
            with pytest.raises(
                BackendUnavailableError, match=r"did not answer within 0\.05 seconds"
            ):
                await http.get("/v1/models")
            assert len(server.asked) == 1
        finally:
            gate.set()
            await http.close()


async def _texts(server: Fake, **settings: Any) -> list[str]:
    http = Http(server.url, delay=0, **settings)
    try:
        async with aclosing(http.events(PATH, {}, {})) as found:
            return [event["choices"][0]["text"] async for event in found]
    finally:
        await http.close()


@pytest.mark.parametrize("busy", [(503, {}), (429, {}), (200, b"")])
async def test_tries_again(busy: Answer) -> None:
    """As long as nothing has been said."""
    answers: dict[str, list[Answer]] = {PATH: [busy, busy, (200, events(choice("x")))]}
    with fake(answers) as server:
        assert await _texts(server) == ["x"]
        assert len(server.asked) == 3


async def test_gives_up() -> None:
    """After `retries`, at once if the request is wrong, and after the first event."""
    with fake({PATH: [(503, {})]}) as server:
        with pytest.raises(BackendUnavailableError):
            await _texts(server, retries=3)
        assert len(server.asked) == 4
    with fake({PATH: [(400, {})]}) as server:
        with pytest.raises(InvalidRequestError):
            await _texts(server)
        assert len(server.asked) == 1
    cut = events(choice("x")).removesuffix(DONE)
    with fake({PATH: [(200, cut)]}) as server:
        with pytest.raises(BackendUnavailableError, match="cut off"):
            await _texts(server)
        assert len(server.asked) == 1
    with pytest.raises(BackendUnavailableError, match=server.url):  # nobody there any more
        await _texts(server, retries=1)


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_server_that_goes_away_and_comes_back(api: str) -> None:
    """The backend says so, and finds out by itself when that is over."""
    with fake(vllm(b"")) as server:
        options = Options.model_validate({"retries": 0, "api": api})
        backend = create(BackendSettings(name="m", path=server.url, options=options))
        http = Http(server.url, delay=0, retries=0)
        await backend.start()
        await http.get("/v1/models")
    port = int(server.url.rpartition(":")[2])
    try:
        assert (backend.unavailable, http.away) == (None, None)
        chat = Chat(messages=({"role": "user", "content": "Hi"},))
        request = GenerationRequest(request_id="r", prompt_token_ids=(7, 8), chat=chat)
        with pytest.raises(BackendUnavailableError, match=server.url):
            await anext(backend.generate(request))
        assert server.url in (backend.unavailable or "")
        for _ in range(2):
            with pytest.raises(BackendUnavailableError):
                await http.get("/v1/models")
        with fake({"/v1/models": [(502, {}), (200, {"data": []})]}, port) as server:
            async with asyncio.timeout(60):
                while http.away:  # noqa: ASYNC110  (nothing to wait for is public)
                    await asyncio.sleep(0)
            assert len(server.asked) == 2
    finally:
        await backend.close()
        await http.close()


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    """Its model has failed."""
    with fake({}) as server:
        pass
    http = Http(server.url, delay=0, retries=0)
    with pytest.raises(BackendUnavailableError):
        await http.get("/v1/models")
    assert http.away is None
    await http.close()
