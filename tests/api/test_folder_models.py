"""MOD-1 over HTTP: what lies in the models folder, for everybody who may use it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend, BackendUnavailableError, EngineBackend
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.backend_settings import BackendSettings
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys_file import create, new_entry
from enginebay.server.services import services_of
from enginebay.testing import ScriptedEngine
from tests.support import Server, plugins_with, serve

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def create_toy(settings: BackendSettings) -> Backend:
    def engine() -> ScriptedEngine:
        if "broken" in settings.name:
            raise BackendUnavailableError("it is broken")
        return ScriptedEngine([settings.name])

    return EngineBackend(engine)


@contextmanager
def served(
    folder: Path, *models: dict[str, Any], keys: KeyStore | None = None, **loading: Any
) -> Iterator[Server]:
    plugins = plugins_with()
    plugins.backends("toys", create_toy, serves=lambda path: path.suffix == ".toy")
    entries = [{"backend": "toys", "path": ".", **model} for model in models]
    server = {"model_dir": str(folder), "auth": "required" if keys else "none"}
    config = Config.model_validate({"models": entries, "server": server, "loading": loading})
    with serve(config, plugins, keys=keys) as running:
        yield running


def ids(server: Server, path: str = "/v1/models", **headers: str) -> list[str]:
    answer = server.http.get(path, headers=headers).json()
    return [card.get("id") or card["name"] for card in answer.get("data", answer.get("models"))]


def said(server: Server, model: str | None = None, **headers: str) -> str:
    answer = server.http.post(CHAT, json={**BODY, "model": model}, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.wing("kobold", "ollama")
def test_from_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "models") as server:
        assert ids(server) == []
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/health/ready").status_code == 503
        nothing = server.http.post(CHAT, json=BODY)
        assert (nothing.status_code, "put one into" in nothing.text) == (503, True)
        (tmp_path / "models" / "owner").mkdir(parents=True)
        (tmp_path / "models" / "owner" / "a.toy").touch()
        [card] = server.http.get("/v1/models").json()["data"]
        assert card["id"] == "owner/a.toy"
        assert (card["source"], card["state"], card["load"]) == ("folder", "unloaded", "request")
        assert server.http.get("/health/ready").status_code == 200
        assert ids(server, "/api/tags") == ["owner/a.toy"]
        assert server.http.get("/v1/models/owner/a.toy").json()["id"] == "owner/a.toy"
        assert server.http.get("/api/v1/model").json()["result"] == "enginebay/owner/a.toy"
        assert said(server) == said(server, "owner/a.toy") == "owner/a.toy"
        assert server.http.get("/v1/models/owner/a.toy").json()["state"] == "ready"
        chat = {"model": "owner/a.toy:latest", "messages": BODY["messages"], "stream": False}
        assert server.http.post("/api/chat", json=chat).status_code == 200
        (tmp_path / "models" / "owner" / "a.toy").unlink()
        assert ids(server) == []
        assert server.http.post(CHAT, json={**BODY, "model": "owner/a.toy"}).status_code == 404


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    path = tmp_path / "keys.yml"
    create(
        path,
        [
            new_entry("all", "of-all-models"),
            new_entry("one", "of-one-model", models=["a.toy"]),
            new_entry("none", "of-no-model", models=["x"]),
            new_entry("admin", "of-an-admin", "admin"),
        ],
    )
    return KeyStore(path)


def key(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.wing("ollama")
def test_keys_see_and_use_what_they_may(tmp_path: Path, keys: KeyStore) -> None:
    for name in ("a.toy", "b.toy"):
        (tmp_path / name).touch()
    with served(tmp_path, {"name": "m"}, keys=keys) as server:
        everything, one, no = key("of-all-models"), key("of-one-model"), key("of-no-model")
        for path in ("/v1/models", "/api/tags", "/v1/model/list"):
            assert ids(server, path, **everything) == ["m", "a.toy", "b.toy"]
            assert ids(server, path, **one) == ["a.toy"]
            assert ids(server, path, **no) == []
            assert ids(server, path, **key("of-an-admin")) == ["m", "a.toy", "b.toy"]
        assert said(server, "b.toy", **everything) == "b.toy"
        assert said(server, None, **one) == "a.toy"
        for headers, name in ((one, "b.toy"), (one, "m"), (no, "a.toy"), (one, "nothing")):
            refused = server.http.post(CHAT, json={**BODY, "model": name}, headers=headers)
            message = refused.json()["error"]["message"]
            available = "a.toy" if headers is one else "none"
            assert refused.status_code == 404
            assert message.endswith(f"does not exist for this key; available: {available}")


def test_one_with_wrong_settings_is_listed_with_its_error(tmp_path: Path) -> None:
    for name in ("a.toy", "b.toy"):
        (tmp_path / name).touch()
    (tmp_path / "a.yml").write_text("sampling:\n  temprature: 1\n")
    with served(tmp_path) as server:
        first, second = server.http.get("/v1/models").json()["data"]
        assert (first["id"], first["state"], second["state"]) == ("a.toy", "failed", "unloaded")
        assert "a.yml:2: sampling.temprature: unknown key" in first["error"]
        refused = server.http.post(CHAT, json={**BODY, "model": "a.toy"})
        assert (refused.status_code, "a.yml:2" in refused.text) == (503, True)
        assert server.http.post("/v1/models/a.toy/load").status_code == 400
        assert said(server, "b.toy") == "b.toy"
        (tmp_path / "a.yml").write_text("sampling:\n  temperature: 1\n")
        assert said(server, "a.toy") == "a.toy"


def test_one_that_cannot_be_loaded_leaves_the_server_well(tmp_path: Path) -> None:
    (tmp_path / "broken.toy").touch()
    with served(tmp_path) as server:
        answer = server.http.post(CHAT, json={**BODY, "model": "broken.toy"})
        assert (answer.status_code, "it is broken" in answer.text) == (503, True)
        [card] = server.http.get("/v1/models").json()["data"]
        assert (card["state"], card["error"]) == ("failed", "it is broken")
        assert server.http.get("/health").status_code == 200


def test_loads_by_admins_and_switches(tmp_path: Path) -> None:
    for name in ("a.toy", "b.toy"):
        (tmp_path / name).touch()
    with served(tmp_path, {"name": "m"}) as server:
        assert said(server) == "m"
        switched = server.http.post("/v1/model/load", json={"name": "a.toy", "stream": False})
        assert switched.status_code == 200
        assert said(server) == "a.toy"
        server.http.post("/v1/model/load", json={"name": "m", "stream": False})
        assert said(server) == "m"
        assert said(server, "a.toy") == "a.toy"  # again, as requests may load it
        assert server.http.post("/v1/models/b.toy/load", json={"stream": False}).status_code == 200
        assert server.http.post("/v1/models/b.toy/unload").status_code == 200
        assert ids(server) == ["m", "a.toy", "b.toy"]


@pytest.mark.wing("ollama")
@pytest.mark.parametrize("field", ["keep_alive", "ttl"])
def test_how_long_it_stays(tmp_path: Path, field: str) -> None:
    # MOD-5
    (tmp_path / "a.toy").touch()
    with served(tmp_path) as server:
        entry = lambda: services_of(server.app).models.find("a.toy")  # noqa: E731
        chat = {**BODY, "model": "a.toy"}
        answer = server.http.post(CHAT, json=chat)
        assert entry().idle_timeout == 600
        for sent, seconds in (("5m", 300.0), (-1, float("inf")), (7, 7.0), (None, 7.0), ("", 7.0)):
            answer = server.http.post(CHAT, json={**chat, field: sent})
            assert answer.status_code == 200
            assert "x-unsupported-params" not in answer.headers
            assert entry().idle_timeout == seconds
        ollama = {"model": "a.toy", "keep_alive": "2h"}
        assert server.http.post("/api/generate", json=ollama).status_code == 200
        assert entry().idle_timeout == 7200
        [running] = server.http.get("/api/ps").json()["models"]
        assert running["expires_at"] < "2300"
        embed = {"model": "a.toy", "input": [], "keep_alive": "3h"}
        assert server.http.post("/api/embed", json=embed).status_code == 200
        assert entry().idle_timeout == 10800
        bad = server.http.post(CHAT, json={**chat, field: "soon"})
        assert bad.status_code == 400
        assert bad.json()["error"]["param"] in (field, "keep_alive")
        assert "5m" in bad.json()["error"]["message"]


def test_explain_and_tokens_of_it(tmp_path: Path) -> None:
    """Routes that need a model load it, too."""
    (tmp_path / "a.toy").touch()
    with served(tmp_path) as server:
        counted = server.http.post("/v1/token/encode", json={"text": "hi", "model": "a.toy"})
        assert counted.status_code == 200
        explained = server.http.post(f"{CHAT}/explain", json={**BODY, "model": "a.toy"})
        assert "hi" in json.dumps(explained.json())


def test_the_config_takes_a_name_and_gives_it_back(tmp_path: Path) -> None:
    """Again and again while a request has the model of the folder, and nothing piles up."""
    (tmp_path / "a.toy").touch()
    with served(tmp_path) as server:
        models = services_of(server.app).models
        before = Config.model_validate({"server": {"model_dir": str(tmp_path)}})
        entry = {"name": "a.toy", "backend": "toys", "path": ".", "load": "request"}
        after = before.model_copy(update={"models": [ModelConfig.model_validate(entry)]})

        async def take_and_give() -> None:
            await models.look_at_folder()
            old = models.find("a.toy")
            async with models.lease(models.look_up("a.toy")):
                for _ in range(3):
                    await models.use_config(after)
                    assert models.find("a.toy").source == "config"
                for _ in range(3):
                    await models.use_config(before)
                    new = models.find("a.toy")
                    assert (new.source, new is old, new.retired) == ("folder", False, False)
                assert models._retired == {old}
                assert old.is_loaded
                waiting = [task for task in models._loader._tasks if "_retire" in str(task)]
                assert len(waiting) == 1

        server.run(take_and_give())
        assert said(server, "a.toy") == "a.toy"


def test_a_key_without_any_model(tmp_path: Path, keys: KeyStore) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.toy").touch()
    with served(tmp_path / "m", keys=keys) as server:
        key = {"Authorization": "Bearer of-no-model"}
        answer = server.http.post(CHAT, json=BODY, headers=key)
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message == "there is no model for this key; available: none"
