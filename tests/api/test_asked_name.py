"""EVE-5: an error names a model as the request does, not by a name that the client never used."""

from typing import Any

import pytest

from enginebay import BackendUnavailableError, EngineBackend
from enginebay.config.schema import Config
from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import BackendSettings
from enginebay.testing import ScriptedEngine
from tests.support import plugins_with, serve

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def create(settings: BackendSettings) -> Backend:
    if settings.options.get("broken"):
        raise BackendUnavailableError("it has no weights")
    template = "{{ messages[-1].content }}" if settings.options.get("chats") else None
    return EngineBackend(lambda: ScriptedEngine(["Hello"], chat_template=template))


@pytest.mark.wing("messages", "ollama", "responses")
@pytest.mark.parametrize("asked", ["gemma", "gemma.gguf"])
@pytest.mark.parametrize(
    ("model", "path", "body", "status"),
    [
        ({"options": {"broken": True}}, "/v1/chat/completions", CHAT, 503),
        ({"options": {"broken": True}}, "/v1/completions", {"prompt": "x"}, 503),
        ({"options": {"broken": True}}, "/v1/embeddings", {"input": "x"}, 503),
        ({"options": {"broken": True}}, "/v1/responses", {"input": "x"}, 503),
        ({"options": {"broken": True}}, "/v1/messages", {**CHAT, "max_tokens": 9}, 503),
        ({"options": {"broken": True}}, "/api/chat", CHAT, 503),
        ({"load": "command"}, "/v1/chat/completions", CHAT, 503),
        ({"load": "command"}, "/tokenize", {"prompt": "x"}, 503),
        ({}, "/v1/chat/completions", CHAT, 400),  # it has no chat template
        ({}, "/v1/embeddings", {"input": "x"}, 400),
        ({}, "/v1/rerank", {"query": "x", "documents": ["y"]}, 400),
    ],
)
def test_every_error(
    model: dict[str, Any], path: str, body: dict[str, Any], status: int, asked: str
) -> None:
    entry = {"name": "gemma.gguf", "aliases": ["gemma"], "backend": "named", "path": "."}
    config = Config.model_validate({"models": [{**entry, "load": "request", **model}]})
    with serve(config, plugins_with(named=create)) as server:
        for _ in range(2):  # the load that fails, and later requests
            answer = server.http.post(path, json={**body, "model": asked})
            assert answer.status_code == status, answer.text
            error = answer.json()["error"]
            message = error if isinstance(error, str) else error["message"]
            other = "'gemma.gguf'" if asked == "gemma" else "'gemma'"
            assert f"model '{asked}'" in message
            assert other not in message
