"""LoRAs of a model, loaded and unloaded over HTTP while it runs."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import NotFoundError

from enginebay import GenerationRequest, InvalidRequestError, Lora
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.testing import ScriptedEngine
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.support import (
    DEMO_MODEL,
    Server,
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)


class Adapted(ScriptedEngine):
    """Says what the files of its adapters say; one that says `bad` does not fit."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, index: [self.loaded[self.asked]])
        self.info = replace(self.info, adapters=("configured",))
        self.loaded: dict[str | None, str] = {None: "plain", "configured": "configured"}
        self.asked: str | None = None

    def add_request(self, request: GenerationRequest) -> None:
        self.asked = request.adapter
        super().add_request(request)

    def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        texts = [f"{Path(lora.path).read_text()}*{lora.scaling:g}" for lora in loras]
        if any("bad" in text for text in texts):
            raise InvalidRequestError(f"{name} was made for another model", param="loras")
        if any("stupid" in text for text in texts):
            raise RuntimeError("stupid")
        self.loaded[name] = "+".join(texts)

    def unload_adapter(self, name: str) -> None:
        del self.loaded[name]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Two models that can, the second asked for by name, with a folder of LoRAs."""
    folder = tmp_path / "loras"
    folder.mkdir()
    for name in ("pirate", "poet", "bad", "stupid"):
        (folder / f"{name}.gguf").write_text(name)
    (tmp_path / "secret.gguf").write_text("secret")
    (folder / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    (folder / "notes.txt").write_text("none")
    (folder / "peft").mkdir()
    (folder / "peft" / "adapter_config.json").write_text("{}")
    config = scripted_config(name="base", server={"lora_dir": str(folder)})
    config.models.append(config.models[0].model_copy(update={"name": "other"}))
    config.models.append(config.models[0].model_copy(update={"name": "later", "load": "request"}))
    plugins = plugins_with(scripted=engine_backend(Adapted))
    with serve(config, plugins) as running:
        yield running


def say(server: Server, model: str = "base") -> str:
    return server.openai.completions.create(model=model, prompt="Hi").choices[0].text


def load(server: Server, *names: str, **body: Any) -> httpx2.Response:
    text = json.dumps({"loras": [{"name": name} for name in names], **body})
    headers = {"Content-Type": "application/json"}
    return server.http.post("/v1/lora/load", content=text, headers=headers)


def loaded(server: Server, **params: str) -> dict[str, float]:
    cards = server.http.get("/v1/lora", params=params).json()["data"]
    return {card["id"]: card["scaling"] for card in cards}


def error_of(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_the_folder_is_listed(server: Server) -> None:
    for path in ("/v1/loras", "/v1/lora/list", "/loras"):
        answer = server.http.get(path).json()
        assert answer["object"] == "list"
        names = [card["id"] for card in answer["data"]]
        assert names == ["bad.gguf", "peft", "pirate.gguf", "poet.gguf", "stupid.gguf"]
        assert {card["object"] for card in answer["data"]} == {"lora"}


def test_they_apply_to_all_later_requests_of_the_model(server: Server) -> None:
    answer = load(server, "pirate.gguf").json()
    assert answer == {"success": ["pirate.gguf"], "failure": [], "errors": {}}
    assert say(server) == "pirate*1"
    assert say(server, "other") == "plain"
    assert say(server, "configured") == "configured"
    assert loaded(server) == {"pirate.gguf": 1.0}
    assert loaded(server, model="other") == {}
    chat = server.openai.chat.completions.create(
        model="base", messages=[{"role": "user", "content": "Hi"}]
    )
    assert (chat.model, chat.choices[0].message.content) == ("base", "pirate*1")
    assert server.http.post("/v1/lora/unload").json() == {"success": ["pirate.gguf"]}
    assert say(server) == "plain"
    assert loaded(server) == {}
    assert server.http.post("/v1/lora/unload", json={}).json() == {"success": []}


def test_several_apply_together_and_each_can_be_asked_for(server: Server) -> None:
    loras = [{"name": "pirate.gguf", "scaling": 0.5}, {"name": "poet.gguf", "scaling": None}]
    body = {"loras": loras, "skip_queue": True, "model": "base"}
    assert server.http.post("/v1/lora/load", json=body).status_code == 200
    assert loaded(server) == {"pirate.gguf": 0.5, "poet.gguf": 1.0}
    assert say(server) == "pirate*0.5+poet*1"
    assert say(server, "pirate.gguf+poet.gguf") == "pirate*0.5+poet*1"
    assert say(server, "poet.gguf") == "poet*1"
    cards = server.http.get("/v1/models").json()["data"]
    adapters = [card["id"] for card in cards if card["parent"] == "base"]
    assert adapters == ["configured", "pirate.gguf", "poet.gguf", "pirate.gguf+poet.gguf"]


def test_to_look_at_them_loads_no_model(server: Server) -> None:
    assert loaded(server, model="later") == {}
    assert server.http.get("/v1/models/later").json()["state"] == "unloaded"


def test_others_take_their_place(server: Server) -> None:
    load(server, "pirate.gguf", "poet.gguf")
    before = server.openai.completions.create(model="base", prompt="Hi").system_fingerprint
    body = {"loras": [{"name": "poet.gguf", "scaling": 2}]}
    assert server.http.post("/v1/lora/load", json=body).status_code == 200
    after = server.openai.completions.create(model="base", prompt="Hi")
    assert (after.choices[0].text, after.system_fingerprint != before) == ("poet*2", True)
    with pytest.raises(NotFoundError):
        say(server, "pirate.gguf")
    server.http.post("/v1/lora/unload", json={"model": "base"})
    with pytest.raises(NotFoundError):
        say(server, "poet.gguf")


def test_what_fails_is_said_and_the_others_are_loaded(server: Server) -> None:
    answer = load(server, "bad.gguf", "pirate.gguf", "missing").json()
    assert (answer["success"], answer["failure"]) == (["pirate.gguf"], ["missing", "bad.gguf"])
    assert "made for another model" in answer["errors"]["bad.gguf"]
    assert "there is no 'missing' in" in answer["errors"]["missing"]
    assert say(server) == "pirate*1"


def test_when_all_fail_nothing_changes(server: Server) -> None:
    load(server, "pirate.gguf")
    error = error_of(load(server, "bad.gguf"))
    assert error["message"] == "bad.gguf was made for another model"
    assert error["param"] == "loras"
    assert loaded(server) == {"pirate.gguf": 1.0}
    response = load(server, "stupid.gguf")
    assert response.status_code == 500
    assert "the engine failed to load adapter: RuntimeError: stupid" in response.text
    assert say(server) == "pirate*1"
    assert load(server, "poet.gguf", "stupid.gguf").status_code == 500
    assert (say(server), loaded(server)) == ("plain", {})


@pytest.mark.parametrize(
    "name",
    [
        "../secret.gguf",
        "link.gguf",
        "/etc/passwd",
        "pirate.gguf/../../secret.gguf",
        "./pirate.gguf",
        "..\\secret.gguf",
        "C:secret",
        "x" * 256,
        "a\nb",
        "a\0b",
        ".",
        "..",
        "peft//adapter_config.json",
    ],
)
def test_names_cannot_leave_the_folder(server: Server, name: str) -> None:
    error = error_of(load(server, name))
    assert error["param"] == "loras"
    assert "not a valid name of a file" in error["message"] or "is outside" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "loras"),
        ({"loras": []}, "loras"),
        ({"loras": ["pirate"]}, "loras[0]"),
        ({"loras": [{"scaling": 1}]}, "loras[0].name"),
        ({"loras": [{"name": "pirate.gguf", "scaling": "much"}]}, "loras[0].scaling"),
        ({"loras": [{"name": "pirate.gguf"}] * 2}, "loras"),
        ({"loras": [{"name": "configured"}]}, "loras"),
    ],
)
def test_bad_bodies(server: Server, body: Any, param: str) -> None:
    assert error_of(server.http.post("/v1/lora/load", json=body))["param"] == param


def test_an_unknown_model_is_a_404(server: Server) -> None:
    assert load(server, "pirate.gguf", model="nobody").status_code == 404
    assert server.http.post("/v1/lora/unload", json={"model": "nobody"}).status_code == 404
    assert server.http.get("/v1/lora", params={"model": "nobody"}).status_code == 404


def test_fields_that_mean_nothing_are_named(server: Server) -> None:
    answer = load(server, "pirate.gguf", strength=3)
    assert answer.headers["x-unsupported-params"] == "strength"


def test_a_backend_that_loads_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_text("mine")
    config = scripted_config(server={"lora_dir": str(tmp_path)})
    with serve(config, plugins_with(scripted=scripted(["plain"]))) as server:
        error = error_of(load(server, "mine.gguf"))
        assert error["code"] == "unsupported_parameter"
        assert "'scripted' of model 'scripted' cannot load LoRAs" in error["message"]
        assert say(server, "scripted") == "plain"


def test_without_a_folder_there_are_none(tmp_path: Path) -> None:
    config = scripted_config(server={"lora_dir": str(tmp_path / "nowhere")})
    with serve(config, plugins_with(scripted=engine_backend(Adapted))) as server:
        assert server.http.get("/v1/loras").json()["data"] == []
        assert "nowhere" in error_of(load(server, "mine"))["message"]


async def test_switching_while_many_ask(server: Server) -> None:
    async with server.async_openai() as client:

        async def ask() -> str:
            answer = await client.completions.create(model="base", prompt="Hi")
            return answer.choices[0].text

        async def switch(name: str) -> None:
            response = await asyncio.to_thread(load, server, name)
            assert response.status_code == 200

        names = ["pirate.gguf", "poet.gguf"] * 4
        answers = await asyncio.gather(
            *(work for name in names for work in (switch(name), ask(), ask()))
        )
    assert {each for each in answers if each} <= {"plain", "pirate*1", "poet*1"}


# The demo model on each backend, with the same random adapter.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    from demo.to_gguf import convert
    from tests.gpu.adapters import make_adapter

    folder = tmp_path_factory.mktemp("loras")
    make_adapter(folder / "peft", folder / "lora.gguf", folder.parent / "merged")
    convert(DEMO_MODEL, folder.parent / "demo.gguf", "f32")
    (folder / "broken").mkdir()
    (folder / "broken" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "broken.gguf").write_bytes(b"GGUF nonsense")
    return folder


def test_hf(files: Path) -> None:
    check_switching("hf", DEMO_MODEL, files, "peft", {"device": "cpu", "threads": 1}, "process")


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_llamacpp(files: Path, isolation: str) -> None:
    model = files.parent / "demo.gguf"
    check_switching("llamacpp", model, files, "lora.gguf", {"threads": 1}, isolation)


def test_exllamav2(files: Path, load_exllamav2: LoadExLlamaV2) -> None:
    create = engine_backend(lambda: load_exllamav2(DEMO_MODEL))
    check_switching("cpu", DEMO_MODEL, files, "peft", {}, None, plugins_with(cpu=create))


def check_switching(
    backend: str,
    path: Path,
    files: Path,
    name: str,
    options: dict[str, Any],
    isolation: str | None,
    plugins: Plugins | None = None,
) -> None:
    model = {"name": "demo", "backend": backend, "path": str(path), "options": options}
    config = Config.model_validate(
        {
            "server": {"lora_dir": str(files)},
            "models": [model | ({"isolation": isolation} if isolation else {})],
        }
    )
    with serve(config, plugins or Plugins()) as server:

        def greedy(model: str) -> str:
            answer = server.openai.completions.create(
                model=model, prompt="Tell me a story about", temperature=0, max_tokens=24
            )
            return answer.choices[0].text

        def strong(scaling: float) -> str:
            loras = [{"name": name, "scaling": scaling}]
            response = server.http.post("/v1/lora/load", json={"loras": loras})
            assert response.status_code == 200, response.text
            return greedy("demo")

        plain = greedy("demo")
        adapted = strong(3)
        assert adapted == greedy(name) != plain
        assert strong(0) == plain
        bad = "broken.gguf" if name.endswith(".gguf") else "broken"
        assert str(files / bad) in error_of(load(server, bad))["message"]
        assert strong(3) == adapted
        assert server.http.post("/v1/lora/unload").json() == {"success": [name]}
        assert greedy("demo") == plain
