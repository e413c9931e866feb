"""EVE-7: a request without a model gets the model that its user used last."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from enginebay import EngineBackend
from enginebay.config.schema import Config
from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import BackendSettings
from enginebay.server.access.key_store import KeyStore
from enginebay.testing import ScriptedEngine
from tests.api.test_queue import keys_of
from tests.support import Server, plugins_with, serve

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def create(settings: BackendSettings) -> Backend:
    template = f"{settings.name}: {{{{ messages[-1].content }}}}"
    return EngineBackend(lambda: ScriptedEngine([settings.name], chat_template=template))


@contextmanager
def served(*names: str, keys: KeyStore | None = None, **server: Any) -> Iterator[Server]:
    plugins = plugins_with(named=create)
    models = [{"name": n, "backend": "named", "path": ".", "load": "request"} for n in names]
    config = Config.model_validate({"models": models, "server": server})
    with serve(config, plugins, keys=keys) as at:
        yield at


def said(server: Server, model: str | None = None, key: str = "none") -> str:
    body = {**CHAT, "model": model} if model else CHAT
    answer = server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == answer.json()["choices"][0]["message"]["content"]
    return str(answer.json()["model"])


def everywhere(server: Server) -> set[str]:
    """The model of every API's requests that name none, and of routes about it."""
    get, post = server.http.get, server.http.post
    generated = {"prompt": "x", "max_length": 5}
    return {
        said(server),
        post("/v1/completions", json={"prompt": "x"}).json()["model"],
        post("/v1/responses", json={"input": "hi"}).json()["model"],
        post("/api/v1/generate", json=generated).json()["results"][0]["text"],
        get("/api/v1/model").json()["result"].removeprefix("enginebay/"),
        get("/v1/model").json()["id"],
        get("/props").json()["model_alias"],
        get("/props").json()["chat_template"].partition(":")[0],
        post("/apply-template", json=CHAT).json()["prompt"].partition(":")[0],
    }


@pytest.mark.wing("kobold", "llama_server", "messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {**CHAT, "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/api/generate", {"prompt": "x", "stream": False}),
    ],
)
def test_it_is_the_one_that_was_used_last(path: str, body: dict[str, Any]) -> None:
    with served("a", "b") as server:
        assert everywhere(server) == {"a"}
        assert server.http.post(path, json={**body, "model": "b"}).status_code == 200
        assert everywhere(server) == {"b"}
        assert said(server, "a") == "a"
        assert everywhere(server) == {"a"}


def test_a_dummy_name_means_it_too() -> None:
    with served("a", "b", use_dummy_models=True) as server:
        body = {**CHAT, "model": "gpt-3.5-turbo"}
        for name in ("a", "b"):
            assert said(server, name) == name
            answer = server.http.post("/v1/chat/completions", json=body)
            assert answer.json()["model"] == name


def test_each_key_has_its_own() -> None:
    with served("a", "b", keys=keys_of("ann", "bob"), auth="required") as server:
        assert said(server, "b", key="ann") == "b"
        assert [said(server, key=key) for key in ("ann", "bob", "admin")] == ["b", "a", "a"]


def test_a_switch_is_for_all() -> None:
    with served("a", "b", "c") as server:
        assert said(server, "b") == "b"
        switched = server.http.post("/v1/model/load", json={"name": "c", "stream": False})
        assert switched.status_code == 200
        assert said(server) == "c"


def test_one_that_is_unloaded_comes_back_and_one_that_is_gone_does_not() -> None:
    with served("a", "b") as server:
        assert said(server, "b") == "b"
        assert server.http.post("/v1/model/unload").json()["id"] == "b"
        assert said(server) == "b"
        models = server.app.state.services.models
        models.find("b").on_request = False
        server.run(models.unload(models.find("b")))
        models.find("b").on_request = False
        assert said(server) == "a"
