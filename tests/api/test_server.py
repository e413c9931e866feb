"""Models, health, keys, disconnects, errors in mid-stream."""

import json
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from enginebay import (
    Backend,
    BackendUnavailableError,
    Delta,
    EngineBackend,
    GenerationRequest,
    ServingError,
    hookimpl,
)
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.engine.backoff import Backoff
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import engine_backend, plugins_with, scripted, scripted_config, serve

USER = [{"role": "user", "content": "hi"}]
BODY = {"messages": USER}
CHAT = "/v1/chat/completions"
Steps = Iterable[tuple[str, Delta | ServingError]]


def endless(prompt: str, index: int) -> Iterator[str]:
    return iter(lambda: "a", "")


class Watched(ScriptedEngine):
    """Says `a` for ever, and when it is told to stop."""

    def __init__(self) -> None:
        super().__init__(endless, context_length=10**9)
        self.aborted = threading.Event()

    def abort_request(self, request_id: str) -> None:
        super().abort_request(request_id)
        self.aborted.set()


def test_models(serve_scripted: ServeScripted) -> None:
    # MLC-37
    server = serve_scripted(["ok"], name="dist/models/tiny")
    models = server.openai.models.list().data
    assert [model.id for model in models] == ["dist/models/tiny"]
    assert server.http.get("/models").json() == server.http.get("/v1/models").json()
    assert server.openai.models.retrieve("dist/models/tiny").id == "dist/models/tiny"
    card = server.http.get("/v1/models/dist/models/tiny").json()
    assert (card["state"], card["context_length"]) == ("ready", 4096)


@pytest.mark.wing("page")
def test_health_and_docs(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"])
    model = {"state": "ready", "progress": 1.0, "error": None}
    assert server.http.get("/health").json() == {
        "status": "healthy",
        "issues": [],
        "state": "ok",
        "models": {"scripted": model},
    }
    paths = server.http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"} <= set(paths)
    assert server.http.get("/docs").status_code == 200
    assert (
        "text/html" in server.http.get("/", headers={"Accept": "text/html"}).headers["content-type"]
    )
    assert server.http.head("/health").status_code == 200
    assert server.http.head("/v1/models").status_code == 200


def test_while_loading() -> None:
    """Requests that may not wait get 503 and how far it is; then they are answered."""
    # WEB-40
    loading, go_on = threading.Event(), threading.Event()

    def create(settings: BackendSettings) -> Backend:
        def engine() -> ScriptedEngine:
            settings.report_progress("loading weights", 0.25)
            loading.set()
            assert go_on.wait(60)
            return ScriptedEngine(["ok"])

        return EngineBackend(engine)

    config = scripted_config()
    config.loading.timeout = 0
    with serve(config, plugins_with(scripted=create), wait=False) as server:
        try:
            assert loading.wait(60)
            response = server.http.post(CHAT, json=BODY)
            assert response.status_code == 503
            assert "still loading (loading weights, 25%)" in response.json()["error"]["message"]
            assert response.headers["retry-after"]
            health = server.http.get("/health")
            assert (health.status_code, health.json()["state"]) == (503, "loading")
        finally:
            go_on.set()
        server.run(server.app.state.services.models.wait_until_loaded())
        assert server.http.post(CHAT, json=BODY).status_code == 200


def test_a_model_that_cannot_be_loaded_leaves_the_others() -> None:
    def create(settings: BackendSettings) -> Backend:
        raise BackendUnavailableError("install it with: pip install 'enginebay[x]'")

    models = [
        {"name": "broken", "backend": "broken", "path": "."},
        {"name": "unknown", "backend": "nobody", "path": "."},
        {"name": "good", "backend": "scripted", "path": "."},
    ]
    plugins = plugins_with(broken=create, scripted=scripted(["ok"]))
    with serve(Config.model_validate({"models": models}), plugins) as server:
        health = server.http.get("/health").json()
        assert (health["status"], health["state"]) == ("healthy", "degraded")
        names = [issue["description"].partition(": ")[0] for issue in health["issues"]]
        assert names == ["broken", "unknown"]
        assert "pip install" in health["issues"][0]["description"]
        assert (
            server.http.get("/health").json()["issues"] == health["issues"]
        )  # since the same time
        assert datetime.fromisoformat(health["issues"][0]["time"]) <= datetime.now(UTC)
        ready = server.http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "unhealthy")
        assert "pip install" in health["models"]["broken"]["error"]
        assert "hf, llamacpp" in health["models"]["unknown"]["error"]
        response = server.http.post(CHAT, json={"model": "broken", **BODY})
        assert response.status_code == 503
        assert "pip install" in response.json()["error"]["message"]
        assert server.http.post(CHAT, json={"model": "good", **BODY}).status_code == 200


def test_no_models() -> None:
    with serve(Config(), Plugins()) as server:
        assert server.http.get("/v1/models").json()["data"] == []
        response = server.http.post(CHAT, json=BODY)
        assert response.status_code == 503
        assert "no model is configured" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic one"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "bearer two"}, 200),
        ({"x-api-key": "two"}, 200),
        ({"x-api-key": "two", "Authorization": "Bearer two"}, 200),
    ],
)
def test_keys(serve_scripted: ServeScripted, headers: dict[str, str], status: int) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["one", "two"]})
    for path in ("/v1/models", "/models"):
        response = server.http.get(path, headers=headers)
        assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert server.http.get("/health").status_code == 200


def test_cors(serve_scripted: ServeScripted) -> None:
    headers = {"Origin": "http://ui.example"}
    assert (
        "access-control-allow-origin"
        not in serve_scripted(["ok"]).http.get("/v1/models", headers=headers).headers
    )
    server = serve_scripted(["ok"], server={"cors_origins": ["http://ui.example"]})
    answer = server.http.get("/v1/models", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "http://ui.example"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_generation(stream: bool) -> None:
    # MLC-20 TAB-87
    engine = Watched()
    with serve(scripted_config(), plugins_with(scripted=engine_backend(lambda: engine))) as server:
        body = {**BODY, "stream": stream}
        if stream:
            with server.http.stream("POST", CHAT, json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                server.http.post(CHAT, json=body, timeout=0.2)
        assert engine.aborted.wait(60)


def test_a_client_that_leaves_before_the_first_token() -> None:
    engine = Watched()
    engine._script = lambda prompt, index: iter(lambda: "", "x")
    with serve(scripted_config(), plugins_with(scripted=engine_backend(lambda: engine))) as server:
        body = {"prompt": "x", "stream": True}
        with pytest.raises(httpx2.ReadTimeout):
            server.http.post("/v1/completions", json=body, timeout=0.2)
        assert engine.aborted.wait(60)


def test_an_engine_that_dies() -> None:
    # MLC-11 VLLM-9 VLLM-78 VLLM-79 TAB-76 TAB-86
    class Dying(ScriptedEngine):
        def step(self) -> Steps:
            if any(len(choice.token_ids) > 3 for choice in self._choices):
                raise RuntimeError("out of memory")
            return super().step()

    def create(settings: BackendSettings) -> Backend:
        return EngineBackend(lambda: Dying(endless), backoff=Backoff(first=60))

    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        response = server.http.post(CHAT, json={**BODY, "stream": True})
        events = [line[6:] for line in response.text.splitlines() if line]
        assert response.status_code == 200
        assert events[-1] == "[DONE]"
        error = json.loads(events[-2])["error"]
        assert error["code"] == "engine_dead"
        assert "out of memory" in error["message"]
        for stream in (False, True):  # the first event is awaited before the status is sent
            response = server.http.post(CHAT, json={**BODY, "stream": stream})
            assert response.status_code == 503
            assert "restarting" in response.json()["error"]["message"]
        health = server.http.get("/health")
        assert (health.status_code, health.json()["state"]) == (503, "loading")
        [model] = health.json()["models"].values()
        assert model["state"] == "loading"
        assert model["error"] == "restarting: the engine died: RuntimeError: out of memory"


def test_pings_while_nothing_comes() -> None:
    """Comments keep an idle stream open; clients ignore them. WIRE-2"""
    go_on = threading.Event()

    class Waiting(ScriptedEngine):
        def step(self) -> Steps:
            if any(choice.token_ids for choice in self._choices):
                assert go_on.wait(60)
            return super().step()

    backend = engine_backend(lambda: Waiting(["a", "b"]))
    config = scripted_config(server={"ping_interval": 0.05})
    with (
        serve(config, plugins_with(scripted=backend)) as server,
        server.http.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": ping") == 2:
                go_on.set()
        assert lines[-2] == "data: [DONE]"
    last = max(at for at, line in enumerate(lines) if line == ": ping")
    assert lines[last + 1].startswith("data: ")  # a blank line there would be an empty event


def test_a_plugin_can_answer_in_the_backends_place_or_watch() -> None:
    seen: list[str] = []

    class Cache:
        @hookimpl
        def generate(
            self, backend: Backend, request: GenerationRequest
        ) -> AsyncGenerator[Delta, None] | None:
            prompt = "".join(map(chr, request.prompt_token_ids))
            return self._answer() if "cached" in prompt else None

        async def _answer(self) -> AsyncGenerator[Delta, None]:
            yield Delta(text="from the cache", token_ids=(1, 2, 3))  # and no finish: VLLM-94

    class Watch:
        @hookimpl(wrapper=True)
        def generate(self, backend: Backend, request: GenerationRequest) -> Any:
            seen.append(request.request_id)
            return (yield)

    plugins = plugins_with(scripted=scripted(["from the engine"]))
    plugins._manager.register(Cache())
    plugins._manager.register(Watch())
    with serve(scripted_config(), plugins) as server:
        answer = server.http.post("/v1/completions", json={"prompt": "cached"}).json()
        assert answer["choices"][0]["text"] == "from the cache"
        assert answer["choices"][0]["finish_reason"] == "stop"
        answer = server.http.post("/v1/completions", json={"prompt": "new"}).json()
        assert answer["choices"][0]["text"] == "from the engine"
    assert len(seen) == 2


def test_shutdown_with_a_stream_running() -> None:
    engine = Watched()
    with serve(scripted_config(), plugins_with(scripted=engine_backend(lambda: engine))) as server:
        stream = server.http.stream("POST", CHAT, json={**BODY, "stream": True})
        response = stream.__enter__()
        next(response.iter_lines())
    stream.__exit__(None, None, None)
    assert engine.aborted.is_set()


def test_the_app_needs_no_server() -> None:
    """`create_app` alone starts nothing."""
    app = create_app(scripted_config(), Plugins())
    assert [model.state for model in app.state.services.models.all()] == ["unloaded"]
