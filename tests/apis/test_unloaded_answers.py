"""An answer whose model is unloaded ends with an error, in the form of its API. WIRE-8"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from enginebay.testing import ScriptedEngine
from tests.apis.ollama_support import user
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT: dict[str, Any] = {"model": "scripted", "messages": user("hi")}
PROMPT: dict[str, Any] = {"model": "scripted", "prompt": "hi"}
LONG = 10**9


@contextmanager
def endless() -> Iterator[tuple[Server, Callable[[], None]]]:
    """A server whose model never ends, and what unloads it once it has said something."""
    spoke = threading.Event()

    def script(prompt: str, index: int) -> Iterator[str]:
        yield from "some"
        while True:
            spoke.set()
            yield "more"

    backend = engine_backend(lambda: ScriptedEngine(script, context_length=LONG))
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:

        def unload() -> None:
            assert spoke.wait(60)
            server.run(server.app.state.services.models.close())

        yield server, unload


BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": PROMPT,
    "/v1/responses": {"model": "scripted", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": LONG},
    "/api/chat": {**CHAT, "options": {"num_predict": -1}},
    "/api/generate": {**PROMPT, "options": {"num_predict": -1}},
    "/api/v1/generate": {**PROMPT, "max_length": LONG},
}
STREAMS = {"/api/v1/generate": "/api/extra/generate/stream"}
KNOWN = ("stop", "length", "completed", "end_turn", "abort", "cancelled")


@pytest.mark.parametrize("path", BODIES)
def test_a_stream(path: str) -> None:
    with endless() as (server, unload):
        body = {**BODIES[path], "stream": True}
        with server.http.stream("POST", STREAMS.get(path, path), json=body) as response:
            lines = response.iter_lines()
            while "more" not in next(lines):
                pass
            unload()
            rest = [line for line in lines if line]
    [at, *_] = [at for at, line in enumerate(rest) if "unloaded" in line]
    data = json.loads(rest[at].removeprefix("data: "))
    error = data.get("response", data)["error"]
    assert "the model was unloaded" in (error if isinstance(error, str) else error["message"])
    assert rest[at + 1 :] == (["data: [DONE]"] if "completions" in path else [])
    assert not any(f'reason":"{each}"' in line for line in rest for each in KNOWN)


@pytest.mark.parametrize("path", BODIES)
def test_a_whole_answer(path: str) -> None:
    body = {**BODIES[path], "stream": False}
    with endless() as (server, unload), ThreadPoolExecutor() as threads:
        asked = threads.submit(server.http.post, path, json=body)
        unload()
        response = asked.result()
    assert response.status_code == 503
    assert "unloaded" in response.text
