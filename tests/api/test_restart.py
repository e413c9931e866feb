"""A model whose engine dies, seen by clients: an error, a pause, answers again; others go on."""

import os
import signal
from functools import partial

import pytest

from enginebay import Backend, BackendUnavailableError, EngineBackend
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings, Isolation
from enginebay.engine.backoff import Backoff
from tests.engine.test_engine import Obedient, until_restarted
from tests.support import Server, plugins_with, serve

COMPLETIONS = "/v1/completions"


def create(settings: BackendSettings, first: float) -> Backend:
    isolation: Isolation = settings.isolation or "thread"
    return EngineBackend(Obedient, isolation=isolation, backoff=Backoff(first=first))


def config(*isolations: str | None) -> Config:
    models = [
        {"name": f"m{number}", "backend": "obedient", "path": ".", "isolation": isolation}
        for number, isolation in enumerate(isolations)
    ]
    return Config.model_validate({"models": models})


def say(server: Server, model: str, prompt: str) -> str:
    answer = server.http.post(COMPLETIONS, json={"model": model, "prompt": prompt})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_engine_comes_back() -> None:
    backends = plugins_with(obedient=partial(create, first=0))
    with serve(config("process", "process"), backends) as server:
        pid = int(say(server, "m0", "pid"))
        body = {"model": "m0", "prompt": "endless", "stream": True}
        with server.http.stream("POST", COMPLETIONS, json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            *_, error, _, done, _ = lines
        assert "killed by SIGKILL" in error
        assert done == "data: [DONE]"
        assert say(server, "m1", "count 2") == "01"
        model = server.app.state.services.models.find("m0")
        server.run(until_restarted(model.started.backend))
        assert say(server, "m0", "count 3") == "012"
        assert server.http.get("/health").json()["state"] == "ok"


def test_health_while_one_of_two_restarts() -> None:
    backends = plugins_with(obedient=partial(create, first=60))
    with serve(config("process", None), backends) as server:
        for _ in range(2):
            body = {"model": "m0", "prompt": "exit 3"}
            answer = server.http.post(COMPLETIONS, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "model 'm0' cannot answer now, try again soon" in answer.json()["error"]["message"]
        health = server.http.get("/health")
        assert (health.status_code, health.json()["state"]) == (200, "degraded")
        assert health.json()["models"]["m0"]["state"] == "loading"
        assert "exited with code 3" in health.json()["models"]["m0"]["error"]
        assert server.http.get("/v1/models/m0").json()["state"] == "loading"
        assert say(server, "m1", "count 2") == "01"


def test_a_backend_without_the_wanted_isolation() -> None:
    def threads_only(settings: BackendSettings) -> Backend:
        return EngineBackend(Obedient)

    with serve(config("process", "thread"), plugins_with(obedient=threads_only)) as server:
        models = server.app.state.services.models
        assert models.find("m1").state == "ready"
        with pytest.raises(BackendUnavailableError, match="cannot run with `isolation: process`"):
            models.find("m0").served()
