"""Loading, unloading and switching models over HTTP, as TabbyAPI's clients do it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel, ConfigDict, Field

from enginebay import Backend, BackendUnavailableError, EngineBackend
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.testing import ScriptedEngine
from tests.support import Server, plugins_with, serve

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


class Options(BaseModel):
    """What two real backends have between them."""

    model_config = ConfigDict(extra="forbid")

    context_length: int | None = Field(default=None, gt=0)
    cache_tokens: int | None = None
    cache_type_k: Literal["f16", "q8_0"] = "f16"
    cache_type_v: Literal["f16", "q8_0"] = "f16"
    batch_tokens: int | None = None
    rope_freq_scale: float | None = None
    tensor_split: list[float] | None = None
    draft_model: str | None = None
    embeddings: bool = False


class House:
    """A backend whose models are files that end with .toy, and what it was told."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.settings: list[BackendSettings] = []
        self.go_on = threading.Event()
        self.go_on.set()
        for name in ("one.toy", "two.toy", "embed.toy", "broken.toy", "other.txt", ".hidden.toy"):
            (base / "models").mkdir(exist_ok=True)
            (base / "models" / name).touch()
        (base / "outside.toy").touch()

    def create(self, settings: BackendSettings) -> Backend:
        self.settings.append(settings)
        return EngineBackend(lambda: self._engine(settings))

    def _engine(self, settings: BackendSettings) -> ScriptedEngine:
        settings.report_progress("weights", 0.25)
        assert self.go_on.wait(60)
        if settings.name == "broken.toy":
            raise BackendUnavailableError("it is broken")
        engine = Embedding() if "embed" in settings.name else ScriptedEngine([settings.name])
        return engine

    @contextmanager
    def serve(self, *models: dict[str, Any], **server: Any) -> Iterator[Server]:
        entries = [{"backend": "toys", "path": ".", **model} for model in models]
        server = {"model_dir": str(self.base / "models"), **server}
        plugins = plugins_with()
        plugins.backends("toys", self.create, Options, serves=lambda path: path.suffix == ".toy")
        loading = {"from_model_dir": False}
        config = Config.model_validate({"models": entries, "server": server, "loading": loading})
        with serve(config, plugins) as running:
            yield running


class Embedding(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__([""])
        self.info = replace(self.info, embedding_size=3, generates=False)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line[:5] == "data:"]


def test_what_sillytavern_asks_for_when_it_connects(house: House) -> None:
    with house.serve({"name": "a"}, {"name": "b", "load": "request"}) as server:
        listed = server.http.get("/v1/model/list").json()
        ids = [card["id"] for card in listed["data"]]
        assert ids == ["a", "b", "broken.toy", "embed.toy", "one.toy", "two.toy"]
        card = server.http.get("/v1/model").json()
        assert (card["id"], card["object"]) == ("a", "model")
        assert card["parameters"]["max_seq_len"] == 4096
        assert card["parameters"]["cache_mode"] == "FP16"
        assert "message.role" in card["parameters"]["prompt_template_content"]
        assert server.http.get("/v1/model/draft/list").json()["data"][2]["id"] == "broken.toy"


def test_a_switch_to_a_file_of_the_folder(house: House) -> None:
    with house.serve({"name": "a"}) as server:
        house.go_on.clear()
        body = {"model_name": "one.toy"}
        said = []
        with server.http.stream("POST", "/v1/model/load", json=body) as answer:
            for line in answer.iter_lines():
                said += [json.loads(line[6:])] if line.startswith("data:") else []
                if said and said[-1]["stage"] == "weights":
                    assert said[-1]["module"] == 25
                    house.go_on.set()
        assert house.go_on.is_set()
        assert said[-1] == {
            "model_type": "model",
            "module": 100,
            "modules": 100,
            "status": "finished",
            "model": "one.toy",
            "stage": "ready",
        }
        assert {event["status"] for event in said[:-1]} == {"processing"}
        assert server.http.get("/v1/model").json()["id"] == "one.toy"
        answer = server.http.post(CHAT, json=BODY).json()
        assert answer["model"] == "one.toy"
        assert answer["choices"][0]["message"]["content"] == "one.toy"
        gone = server.http.post(CHAT, json={"model": "a", **BODY})
        assert gone.status_code == 503
        assert "unloaded when 'one.toy' was loaded" in gone.json()["error"]["message"]
        assert server.http.get("/health").json()["state"] == "ok"
        server.http.post("/v1/model/load", json={"name": "a"})
        cards = server.http.get("/v1/models").json()["data"]
        assert [(card["id"], card["state"]) for card in cards] == [("a", "ready")]
        assert server.http.post(CHAT, json={"model": "one.toy", **BODY}).status_code == 404


def test_parameters_of_tabbyapi_become_options(house: House) -> None:
    body = {
        "name": "one.toy",
        "max_seq_len": 2048,
        "cache_size": 8192,
        "cache_mode": "Q8",
        "chunk_size": 512,
        "rope_scale": 4,
        "rope_alpha": "auto",
        "gpu_split": [20, 24],
        "gpu_split_auto": True,
        "tensor_parallel": False,
        "num_experts_per_token": 2,
        "vision": False,
        "draft": {"draft_model_name": "two.toy", "draft_rope_alpha": 2.5},
        "something_new": 5,
        "stream": False,
    }
    with house.serve() as server:
        answer = server.http.post("/v1/model/load", json=body)
        assert answer.json()["status"] == "finished"
        assert answer.headers["x-unsupported-params"].split(", ") == [
            "rope_alpha",
            "num_experts_per_token",
            "something_new",
            "draft_rope_alpha",
        ]
        assert house.settings[-1].options.model_dump() == {
            "context_length": 2048,
            "cache_tokens": 8192,
            "cache_type_k": "q8_0",
            "cache_type_v": "q8_0",
            "batch_tokens": 512,
            "rope_freq_scale": 0.25,
            "tensor_split": [20, 24],
            "draft_model": str(house.base / "models" / "two.toy"),
            "embeddings": False,
        }
        card = server.http.get("/v1/model").json()["parameters"]
        assert (card["cache_size"], card["cache_mode"]) == (8192, "Q8")
        assert (card["chunk_size"], card["draft"]) == (512, {"id": "two"})


def test_strict_params_refuse_what_cannot_be(house: House) -> None:
    with house.serve(strict_params=True) as server:
        body = {"name": "one.toy", "override_base_seq_len": 4096}
        answer = server.http.post("/v1/model/load", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "override_base_seq_len"
        assert house.settings == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"name": 5}, 400, "name"),
        ({"name": "nobody"}, 404, "name"),
        ({"name": "../outside.toy"}, 404, "name"),
        ({"name": "/etc/passwd"}, 404, "name"),
        ({"name": ".."}, 404, "name"),
        ({"name": ".hidden.toy"}, 404, "name"),
        ({"name": "other.txt"}, 400, "backend"),
        ({"name": "one.toy", "backend": "nobody"}, 400, "backend"),
        ({"name": "one.toy", "max_seq_len": -5}, 400, "options"),
        ({"name": "one.toy", "max_seq_len": "many"}, 400, "max_seq_len"),
        ({"name": "one.toy", "options": {"sise": 1}}, 400, "options"),
        ({"name": "one.toy", "options": {f"x{i}": 1 for i in range(50_000)}}, 400, "options"),
        ({"name": "one.toy", "prompt_template": "../secret"}, 400, "prompt_template"),
        ({"name": "one.toy", "prompt_template": "config.yml"}, 400, "prompt_template"),
        ({"name": "one.toy", "prompt_template": "x" * 5000}, 400, "prompt_template"),
        ({"name": "one.toy", "draft": {}}, 400, "draft.draft_model_name"),
        ({"name": "one.toy", "draft": {"draft_model_name": "../outside.toy"}}, 404, "name"),
    ],
)
def test_bad_input(house: House, body: Any, status: int, param: str) -> None:
    (house.base / "config.yml").touch()
    with house.serve({"name": "a"}) as server:
        answer = server.http.post("/v1/model/load", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert server.http.get("/v1/model").json()["id"] == "a"


def test_files_whose_names_are_no_text(house: House) -> None:
    """Nobody can ask for them, and they keep nobody from the others."""
    for folder, name in (("models", "\udcff.toy"), ("templates", "\udcff.jinja")):
        (house.base / folder).mkdir(exist_ok=True)
        try:
            (house.base / folder / name).touch()
        except (OSError, UnicodeError):
            pytest.skip("the file system has no such names")
    (house.base / "sampler_overrides").mkdir()
    (house.base / "sampler_overrides" / "\udcff.yml").touch()
    with house.serve({"name": "a"}) as server:
        listed = server.http.get("/v1/model/list").json()["data"]
        assert [card["id"] for card in listed] == [
            "a",
            "broken.toy",
            "embed.toy",
            "one.toy",
            "two.toy",
        ]
        assert "chatml" in server.http.get("/v1/template/list").json()["data"]
        assert server.http.get("/v1/sampling/overrides").json()["presets"] == []


def test_a_load_that_fails_says_so_in_the_stream(house: House) -> None:
    with house.serve({"name": "a"}) as server:
        said = events(server.http.post("/v1/model/load", json={"name": "broken.toy"}))
        assert said[-1]["error"]["code"] == "backend_unavailable"
        assert "it is broken" in said[-1]["error"]["message"]
        whole = server.http.post("/v1/model/load", json={"name": "broken.toy", "stream": False})
        assert whole.status_code == 503
        assert server.http.post(CHAT, json=BODY).json()["model"] == "a"
        card = server.http.get("/v1/models/broken.toy").json()
        assert (card["state"], card["error"]) == ("failed", "it is broken")


def test_a_load_goes_on_when_the_client_leaves(house: House) -> None:
    with house.serve() as server:
        house.go_on.clear()
        with server.http.stream("POST", "/v1/model/load", json={"name": "one.toy"}) as answer:
            next(answer.iter_lines())
        house.go_on.set()
        assert server.http.post(CHAT, json=BODY).json()["model"] == "one.toy"


def test_unloading(house: House) -> None:
    with house.serve({"name": "a"}) as server:
        card = server.http.post("/v1/model/unload").json()
        assert (card["id"], card["state"], card["memory"]) == ("a", "unloaded", None)
        for request in (
            server.http.get("/v1/model"),
            server.http.post("/v1/model/unload"),
            server.http.post(CHAT, json=BODY),
        ):
            assert request.status_code == 503
            assert "load it again" in request.json()["error"]["message"]
        assert server.http.get("/health").json()["state"] == "ok"


def test_beside_the_others(house: House) -> None:
    with house.serve({"name": "a"}, {"name": "x/b", "load": "command"}) as server:
        body = {"options": {"context_length": 100}, "stream": False}
        assert server.http.post("/v1/models/x/b/load", json=body).json()["model"] == "x/b"
        assert house.settings[-1].options.context_length == 100
        assert server.http.post("/v1/models/one.toy/load").status_code == 200
        cards = server.http.get("/v1/models").json()["data"]
        assert {card["id"]: card["state"] for card in cards} == dict.fromkeys(
            ["a", "x/b", "one.toy"], "ready"
        )
        assert server.http.get("/v1/model").json()["id"] == "a"
        for name in ("x/b", "one.toy"):
            assert server.http.post(f"/v1/models/{name}/unload").json()["state"] == "unloaded"
        assert server.http.post("/v1/models/x/b/load", json={"stream": False}).status_code == 200
        assert house.settings[-1].options.context_length is None  # as configured again
        assert server.http.post("/v1/models/nobody/unload").status_code == 404


def test_embedding_models(house: House) -> None:
    with house.serve({"name": "a"}) as server:
        assert server.http.get("/v1/model/embedding").status_code == 503
        listed = server.http.get("/v1/model/embedding/list").json()["data"]
        assert [each["id"] for each in listed][-2:] == ["one.toy", "two.toy"]
        body = {"embedding_model_name": "embed.toy", "embeddings_device": "auto"}
        answer = server.http.post("/v1/model/embedding/load", json=body)
        assert answer.json()["model_type"] == "embedding_model"
        assert "x-unsupported-params" not in answer.headers
        assert server.http.get("/v1/model/embedding").json()["id"] == "embed.toy"
        assert server.http.get("/v1/model").json()["id"] == "a"
        text = server.http.post("/v1/model/embedding/load", json={"name": "one.toy"})
        assert (text.status_code, text.json()["error"]["param"]) == (400, "name")
        assert server.http.get("/v1/models/one.toy").status_code == 404
        assert server.http.post("/v1/model/embedding/unload").json()["id"] == "embed.toy"
        assert server.http.post("/v1/model/embedding/unload").status_code == 503


def test_dummy_names_are_the_default_model(house: House) -> None:
    names = ["gpt-4o", "gpt-3.5-turbo"]
    with house.serve({"name": "a"}, use_dummy_models=True, dummy_model_names=names) as server:
        cards = server.http.get("/v1/models").json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("a", None),
            ("gpt-4o", "a"),
            ("gpt-3.5-turbo", "a"),
        ]
        assert server.http.post(CHAT, json={"model": "gpt-4o", **BODY}).json()["model"] == "a"
        server.http.post("/v1/model/load", json={"name": "one.toy"})
        answer = server.http.post(CHAT, json={"model": "gpt-4o", **BODY}).json()
        assert answer["model"] == "one.toy"
    with house.serve({"name": "a"}) as server:
        assert server.http.post(CHAT, json={"model": "gpt-3.5-turbo", **BODY}).status_code == 404


def test_what_cards_say(house: House) -> None:
    model = {"name": "a", "aliases": ["first"], "pinned": True}
    with house.serve(model, {"name": "b", "like": "a", "load": "request"}) as server:
        before = server.http.get("/v1/models/first").json()
        assert before["last_used"] is None
        server.http.post(CHAT, json={"model": "first", **BODY})
        a, b = server.http.get("/v1/models").json()["data"]
        assert (a["id"], a["state"], a["progress"], a["pinned"]) == ("a", "ready", 1, True)
        assert (a["aliases"], a["parent"], a["requests"]) == (["first"], None, 0)
        assert a["context_length"] == a["max_model_len"] == 4096
        assert a["loaded_at"] <= a["last_used"]
        assert a["memory"]["ram"] >= 0
        assert (b["state"], b["load"], b["parent"], b["aliases"]) == (
            "unloaded",
            "request",
            "a",
            [],
        )
        assert b["memory"] is None
        assert server.http.get("/v1/models/c").status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_fails_when_it_may_not_finish(house: House, stream: bool) -> None:
    # TAB-89 WIRE-8
    endless = ScriptedEngine(lambda prompt, index: iter(lambda: "a", ""), context_length=10**9)
    house._engine = lambda settings: endless  # type: ignore[method-assign]
    with house.serve({"name": "a"}) as server:
        ended = threading.Event()
        answers: list[str] = []

        def ask() -> None:
            with server.http.stream("POST", CHAT, json={**BODY, "stream": stream}) as answer:
                answers.append(answer.read().decode())
            ended.set()

        thread = threading.Thread(target=ask)
        thread.start()
        while not endless._choices or not endless._choices[0].token_ids:
            pass
        server.http.post("/v1/model/unload", json={"skip_queue": True})
        assert ended.wait(60)
        thread.join()
        assert "model_unloaded" in answers[0]
        assert '"finish_reason":"' not in answers[0]
