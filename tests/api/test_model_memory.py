"""`GET /v1/models/{id}/memory`, of real backends: what a model takes, before it is loaded."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.server.access import keys_file
from tests.backends.gguf_models import CONTEXT, write_llama
from tests.support import DEMO_MODEL, Server, serve

PARTS = {"weights", "kv_cache", "buffers", "vocabulary", "runtime"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("house")
    (base / "models").mkdir()
    write_llama(base / "models" / "in-folder.gguf")
    write_llama(base / "configured.gguf")
    shutil.copytree(DEMO_MODEL, base / "models" / "demo")
    (base / "broken.gguf").write_bytes(b"GGUF")
    gguf = {"backend": "llamacpp", "load": "request", "isolation": "thread"}
    models = [
        {"name": "gguf", "path": "configured.gguf", **gguf},
        {"name": "short", "path": "configured.gguf", "options": {"context_length": 256}, **gguf},
        {"name": "demo", "backend": "hf", "path": str(DEMO_MODEL), "load": "request"},
        {"name": "broken", "path": "broken.gguf", **gguf},
    ]
    for model in models:
        model["path"] = str(base / str(model["path"]))
    folder = {"model_dir": str(base / "models")}
    config = Config.model_validate({"models": models, "server": folder})
    with serve(config, Plugins()) as running:
        yield running


def asked(server: Server, name: str, **query: Any) -> dict[str, Any]:
    response = server.http.get(f"/v1/models/{name}/memory", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def part(memory: dict[str, Any], name: str) -> int:
    return sum(each["ram"] + each["gpu"] for each in memory["parts"] if each["name"] == name)


@pytest.mark.parametrize("name", ["gguf", "demo", "in-folder.gguf", "short"])
def test_configured_models_and_those_of_the_folder(server: Server, name: str) -> None:
    memory = asked(server, name)
    assert (memory["object"], memory["id"]) == ("model.memory", name)
    assert {each["name"] for each in memory["parts"]} >= PARTS
    assert memory["ram"] == sum(each["ram"] for each in memory["parts"])
    assert memory["gpu"] == sum(each["gpu"] for each in memory["parts"])
    assert memory["fits"] is True
    assert memory["advice"] == []
    assert 0 < memory["ram"] < memory["free_ram"]
    loaded = server.http.get("/v1/models").json()["data"]
    assert {model["state"] for model in loaded if model["id"] in ("demo",)} == {"unloaded"}


def test_the_context_can_be_another(server: Server) -> None:
    whole, half = asked(server, "gguf"), asked(server, "gguf", context_length=256)
    assert (whole["context_length"], half["context_length"]) == (CONTEXT, 256)
    assert part(half, "kv_cache") < part(whole, "kv_cache")
    assert part(asked(server, "short"), "kv_cache") == part(half, "kv_cache")


def test_a_loaded_model(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "short", "messages": messages, "max_tokens": 2}
    before = asked(server, "short")
    server.http.post("/v1/chat/completions", json=body)
    after = asked(server, "short")
    assert before["parts"] == after["parts"]
    assert after["context_length"] == 256


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("nobody/memory", 404, "nobody"),
        ("gguf/memory?context_length=0", 400, "context_length"),
        ("gguf/memory?context_length=x", 400, "context_length"),
        ("gguf/memory?context_length=99999", 400, "was trained for"),
        ("broken/memory", 503, "corrupt or incomplete"),
        ("broken/memory?context_length=64", 503, "broken.gguf: the file is corrupt"),
    ],
)
def test_bad_questions(server: Server, path: str, status: int, told: str) -> None:
    response = server.http.get(f"/v1/models/{path}")
    assert response.status_code == status, response.text
    assert told in response.json()["error"]["message"]


def test_it_is_for_admins(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    model = {"name": "m", "backend": "llamacpp", "path": str(path), "load": "request"}
    keys = tmp_path / "keys.yml"
    users = [("friend", "a-user-key", "user"), ("root", "an-admin-key", "admin")]
    keys_file.create(keys, [keys_file.new_entry(*user) for user in users])
    server = {"keys_file": str(keys), "auth": "admin"}
    config = Config.model_validate({"models": [model], "server": server})
    with serve(config, Plugins()) as running:
        for key, status in ((None, 401), ("a-user-key", 403), ("an-admin-key", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            response = running.http.get("/v1/models/m/memory", headers=headers)
            assert response.status_code == status, response.text
