"""Two Enginebays with one in front of them, and what their clients see."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest
from chat_events import PATH, event
from conftest import process_of, serving
from enginebay_remote.chat import ChatBackend
from enginebay_remote.options import Options
from enginebay_remote.pool import Pool
from fake import DONE, Answer, events
from several import answering, asked_of, chat, fakes, said

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    ContentDelta,
    Delta,
    GenerationRequest,
    TokenCounts,
)

PLUGIN = """
import itertools

from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl


def say(prompt, index):
    return itertools.repeat("on ") if "for ever" in prompt else ["Hel", "lo"]


@hookimpl
def register_backends(register):
    engine = lambda: ScriptedEngine(say, context_length=300_000)
    register("talker", lambda settings: EngineBackend(engine))
"""
PIECE = events(event({"content": "x"})).removesuffix(DONE)


@asynccontextmanager
async def in_front(first: str, second: str) -> AsyncIterator[tuple[ChatBackend, Pool]]:
    """A backend for both, and what it has of them."""
    options = Options.model_validate({"servers": [second]})
    made = ChatBackend(BackendSettings(name="m", path=first, options=options))
    await made.start()
    try:
        assert isinstance(made._servers, Pool)
        yield made, made._servers
    finally:
        await made.close()


async def whole(made: ChatBackend, asked: GenerationRequest) -> tuple[str, TokenCounts]:
    """Text and usage."""
    async with aclosing(made.generate(asked)) as deltas:
        found = [delta async for delta in deltas]
    parts = [part for delta in found for part in delta.parts]
    usage = found[-1].usage
    assert usage
    return "".join(part.text for part in parts if isinstance(part, ContentDelta)), usage


async def test_later_turns_find_their_prefix(demo: tuple[str, Path], tmp_path: Path) -> None:
    """Eight chats at once on two servers of the demo model; nearly all of it is cached."""
    # SCALE-3
    url, folder = demo
    entry = {"name": "demo", "backend": "hf", "path": str(folder)}
    config = json.dumps({"server": {"port": 0}, "models": [entry]})

    async def talk(made: ChatBackend, number: int) -> list[bool]:
        texts = [f"Chat {number}. " + "Once there was a fox. " * 100]
        found, before = [], 0
        for _ in range(3):
            answer, usage = await whole(made, chat(*texts))
            assert usage.prompt_tokens > 600
            found.append(usage.cached_tokens >= before)
            texts += [answer, "And then?"]
            before = usage.prompt_tokens
        return found[1:]

    with serving(tmp_path / "other", config, {}) as other:
        async with in_front(url, other) as (made, pool):
            homes = await asyncio.gather(*(talk(made, number) for number in range(8)))
            assert all(each.heard for each in pool._upstreams.values())
    later = [each for found in homes for each in found]
    assert sum(later) >= 0.9 * len(later)


async def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """Its streams end with an error, those of the other go on; then nobody is left, and the reason
    says so of both.
    """  # SCALE-5
    config = json.dumps(
        {"server": {"port": 0}, "models": [{"name": "m", "backend": "talker", "path": "."}]}
    )
    plugins = {"talker": PLUGIN}
    with (
        process_of(tmp_path / "a", config, plugins) as (a, first),
        process_of(tmp_path / "b", config, plugins) as (b, second),
    ):
        processes = {a: first, b: second}
        async with in_front(a, b) as (made, pool):
            streams: dict[str, Any] = {}
            for number in range(2):  # the second goes where nothing runs yet
                busy = {each.url for each in pool._upstreams.values() if each.running}
                stream = made.generate(chat(f"{number} for ever"))
                await anext(stream)
                [url] = {each.url for each in pool._upstreams.values() if each.running} - busy
                streams[url] = stream
            kill(processes[a])
            with pytest.raises(BackendUnavailableError, match="broke off") as raised:
                async for _ in streams[a]:
                    pass
            assert a in raised.value.message
            for _ in range(4):
                assert (await whole(made, chat("Hi")))[0] == "Hello"
            delta: Delta = await anext(streams[b])
            assert "on " in str(delta.parts)
            assert made.unavailable is None
            kill(processes[b])
            with pytest.raises(BackendUnavailableError, match="broke off"):
                async for _ in streams[b]:
                    pass
            with pytest.raises(BackendUnavailableError):
                await whole(made, chat("Hi"))
            with pytest.raises(BackendUnavailableError, match="none of its 2 servers") as none:
                await whole(made, chat("Hi"))
            assert a in none.value.message
            assert b in none.value.message


def kill(process: "subprocess.Popen[str]") -> None:
    """End it at once."""
    process.kill()
    process.wait()


def until(gate: Event) -> Iterator[bytes]:
    """An answer that says something at once and ends when the gate opens."""
    yield PIECE
    gate.wait(60)
    yield said("y")


def test_draining(tmp_path: Path) -> None:
    """`drain: true` and a reload: what runs there goes on, new requests go elsewhere at once."""
    gate = Event()  # SCALE-13
    busy: Answer = (503, {"error": {"message": "busy"}})
    with fakes(answering("a", busy), answering("b")) as servers:
        a, b = servers
        b.answers[PATH].insert(0, (200, until(gate)))

        def config(**drain: bool) -> str:
            options = {"servers": [{"url": b.url, **drain}]}
            entry = {"name": "far", "backend": "remote", "path": a.url, "options": options}
            keys = [{"name": "me", "key": "secret", "role": "admin"}]
            (tmp_path / "keys.yml").write_text(json.dumps({"keys": keys}), encoding="utf-8")
            return json.dumps({"server": {"port": 0}, "models": [entry]})

        body = {"model": "far", "messages": [{"role": "user", "content": "Hi"}]}
        with (
            serving(tmp_path, config(), {}) as near,
            httpx2.Client(base_url=near, timeout=60) as client,
        ):
            a.answers["/v1/models"], kept = [(503, {})], a.answers["/v1/models"]
            url, stream = "/chat/completions", {**body, "stream": True}
            with client.stream("POST", url, json=stream) as running:
                lines = running.iter_lines()
                while '"x"' not in next(lines):
                    pass
                assert asked_of(b) == 1
                a.answers["/v1/models"] = kept
                a.answers[PATH] = [(200, said("a"))]
                (tmp_path / "config.yml").write_text(config(drain=True), encoding="utf-8")
                headers = {"Authorization": "Bearer secret"}
                reloaded = client.post("/config/reload", headers=headers)
                assert reloaded.json()["changed"] == ["far"], reloaded.text
                texts = []
                while "a" not in texts:  # the old backend answers until the new one is ready
                    answer = client.post(url, json=body).json()
                    texts.append(answer["choices"][0]["message"]["content"])
                at_b = asked_of(b)
                for _ in range(4):
                    answer = client.post(url, json=body).json()
                    assert answer["choices"][0]["message"]["content"] == "a"
                assert asked_of(b) == at_b
                gate.set()
                rest = "".join(lines)
            assert '"y"' in rest
            assert '"finish_reason":"stop"' in rest
            assert "error" not in rest
