"""Adapters as models of their own, and what else a request tells the scheduler."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from openai import NotFoundError

from enginebay import GenerationRequest
from enginebay.testing import ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve


class TellingEngine(ScriptedEngine):
    """Says what it was asked beside the prompt."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, index: [self.told])
        self.told = ""
        self.info = replace(self.info, adapters=("pirate", "poet"))

    def add_request(self, request: GenerationRequest) -> None:
        self.told = f"{request.adapter} {request.priority} {request.cache_salt}"
        super().add_request(request)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plugins = plugins_with(scripted=engine_backend(TellingEngine))
    with serve(scripted_config(name="base"), plugins) as running:
        yield running


@pytest.mark.parametrize("name", ["pirate", "poet"])
def test_an_adapter_is_asked_by_its_name(server: Server, name: str) -> None:
    # VLLM-10
    answer = server.openai.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "Hi"}]
    )
    assert answer.model == name
    assert answer.choices[0].message.content == f"{name} 0 None"
    text = server.openai.completions.create(model=name, prompt="Hi")
    assert (text.model, text.choices[0].text) == (name, f"{name} 0 None")


def test_the_base_model_has_no_adapter(server: Server) -> None:
    assert server.openai.completions.create(model="base", prompt="Hi").choices[0].text == (
        "None 0 None"
    )


def test_adapters_are_listed_with_their_model(server: Server) -> None:
    cards = server.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [
        ("base", None),
        ("pirate", "base"),
        ("poet", "base"),
    ]
    assert server.http.get("/v1/models/poet").json()["parent"] == "base"


def test_an_unknown_adapter_is_an_unknown_model(server: Server) -> None:
    with pytest.raises(NotFoundError, match="'parrot' does not exist"):
        server.openai.completions.create(model="parrot", prompt="Hi")


def test_priority_and_cache_salt_reach_the_engine(server: Server) -> None:
    # VLLM-35
    answer = server.openai.completions.create(
        model="base", prompt="Hi", extra_body={"priority": -3, "cache_salt": "mine"}
    )
    assert answer.choices[0].text == "None -3 mine"
    sent = server.http.post("/v1/completions", json={"prompt": "Hi", "priority": 1})
    assert "x-unsupported-params" not in sent.headers
