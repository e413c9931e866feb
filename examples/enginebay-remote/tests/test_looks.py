"""Looks at servers that come to no end, or find no server that could be asked."""

import asyncio
import logging
from collections.abc import Iterator
from threading import Event

import httpx2
import pytest
from chat_events import PATH
from enginebay_remote import connecting, health
from enginebay_remote.http import Http
from enginebay_remote.pool import Pool
from fake import DONE, Answer, fake
from several import Clock, answer, answering, chat, fakes, started

from enginebay import BackendUnavailableError


def dripping(gate: Event) -> Iterator[bytes]:
    """An answer that goes on and never ends, until the gate opens."""
    while not gate.wait(0.01):
        yield b" "


async def test_a_list_of_models_that_drips() -> None:
    """Has its time as a whole."""
    gate = Event()
    with fake({"/v1/models": [(200, dripping(gate))]}) as server:
        http = Http(server.url, timeout=0.1)
        try:
            with pytest.raises(
                BackendUnavailableError, match=r"did not answer within 0\.1 seconds"
            ):
                await http.get("/v1/models")
        finally:
            gate.set()
            await http.close()


@pytest.mark.parametrize("named", [None, "m"])
async def test_start_does_not_wait_for_one_that_drips(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other that can answer is enough; the look goes on, and may find it well."""
    monkeypatch.setattr(connecting, "LOOK", 600)
    monkeypatch.setattr(health, "GRACE", 0.1)
    gate, clock = Event(), Clock()
    with fakes(answering("a"), answering("b")) as servers:
        a = servers[0]
        models = a.answers["/v1/models"]
        drips: list[Answer] = [(200, dripping(gate)) for _ in range(1 if named else 2)]
        a.answers["/v1/models"] = drips + models
        try:
            async with asyncio.timeout(60), started(servers, clock, model=named) as made:
                for number in range(24):
                    assert await answer(made, chat(f"{number} " * 100)) == "b"
                assert isinstance(made._servers, Pool)
                reasons = [each.reason for each in made._servers._upstreams.values()]
                assert reasons[0] == "it has not been looked at yet"
                gate.set()
                assert await clock.waits() == [0.5, 5]
                await clock.wake(0.5)
                found = {await answer(made, chat(f"{n} " * 100)) for n in range(100, 124)}
                assert found == {"a", "b"}
        finally:
            gate.set()


async def test_a_look_that_comes_to_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is given up, whatever it waits for, and the next one follows."""
    monkeypatch.setattr(health, "LONGEST_LOOK", 0.2)
    gate, clock = Event(), Clock()
    with fakes(answering("a"), answering("b")) as servers:
        a, b = servers
        async with started(servers, clock, model="m") as made:
            b.answers["/v1/models"] = [(503, {})]
            await clock.wake()
            monkeypatch.setattr(a, "answers", {"/v1/models": [(200, dripping(gate))]})
            try:
                await clock.wake()
            finally:
                gate.set()
            assert f"{a.url}: a look at it had no end within 0.2 seconds" in (
                made.unavailable or ""
            )


@pytest.mark.parametrize("key", ["eb-\u2026", "eb-secret\n"])
async def test_a_key_that_no_header_can_have(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Costs its own server only, and is not in the log."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("KEY_OF_B", key)
    with fakes(answering("a"), answering("b")) as servers:
        a, b = servers
        options = [{"url": b.url, "api_key_env": "KEY_OF_B"}]
        async with started([a], Clock(), servers=options) as made:
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "a"
        assert b.asked == []
    lines = [each.message for each in caplog.records if b.url in each.message]
    assert lines == [f"{b.url} gets no requests: its key is not printable ASCII"]
    assert key.strip() not in caplog.text


async def test_each_server_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """With what is wrong there, in the error and in the log."""
    broken, refusing = answering("a"), answering("b")
    broken[PATH] = [(200, DONE)]
    refusing[PATH] = [(401, {"error": {"message": "this API key is not valid"}})]
    with fakes(broken, refusing) as servers:
        a, b = servers
        async with started(servers, Clock()) as made:
            with pytest.raises(BackendUnavailableError) as raised:
                await answer(made)
        http = Http(b.url, retries=0)
        with pytest.raises(BackendUnavailableError, match=f"^the remote server {b.url}: this API"):
            await http.post(PATH, {})
        await http.close()
    avoided = [each.message for each in caplog.records if "is avoided" in each.message]
    for said in (raised.value.message, "\n".join(avoided)):
        assert (said.count(a.url), said.count(b.url)) == (1, 1)
        assert "it ended without an answer" in said
        assert "this API key is not valid (status 401)" in said


async def test_a_connection_that_breaks() -> None:
    """Is said to, where the error has nothing but the name of its class."""

    def reset(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("", request=request)

    http = Http("http://a", retries=0)
    await http.close()
    http._client = httpx2.AsyncClient(transport=httpx2.MockTransport(reset))
    with pytest.raises(
        BackendUnavailableError, match=r"^the remote server http://a: the connection"
    ):
        await http.get("/v1/models")
    await http.close()
