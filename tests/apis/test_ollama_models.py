"""What Ollama's API says of models."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apis.ollama_support import TEMPLATE, key_store, ollama_server, refused
from tests.support import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server(aliases=["gpt"]) as running:
        yield running


def tags(server: Server, **headers: str) -> dict[str, dict[str, Any]]:
    models = server.http.get("/api/tags", headers=headers).json()["models"]
    return {model["name"]: model for model in models}


def show(server: Server, **body: str) -> dict[str, Any]:
    answer = server.http.post("/api/show", json=body)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def test_tags(server: Server) -> None:
    card = tags(server)["scripted"]
    assert card["model"] == "scripted"
    assert re.fullmatch("[0-9a-f]{64}", card["digest"])
    assert card["capabilities"] == ["completion", "tools", "thinking"]
    assert card["details"] == {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    assert server.http.head("/api/tags").status_code == 200


def test_show(server: Server) -> None:
    # OLL-13
    shown = show(server, model="scripted")
    assert shown == show(server, name="gpt:latest")
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 4096
    assert shown["model_info"]["general.basename"] == "scripted"
    assert "general.parameter_count" not in shown["model_info"]
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["template"] == TEMPLATE
    assert shown["parameters"] == "num_ctx 4096"
    assert shown["modelfile"] == "FROM scripted\nPARAMETER num_ctx 4096"
    answer = server.http.post("/api/show", json={"model": "gpt", "verbose": True, "system": ""})
    assert answer.headers["x-unsupported-params"] == "verbose"


def test_parameters_are_those_of_the_config() -> None:
    with ollama_server(sampling={"repetition_penalty": 1.1, "stop": ["a", "b"]}) as server:
        assert show(server, model="scripted")["parameters"].splitlines() == [
            "num_ctx 4096",
            "repeat_penalty 1.1",
            'stop "a"',
            'stop "b"',
        ]


@pytest.mark.parametrize(
    ("model", "engine", "expected"),
    [
        ({"reasoning": "none"}, {}, ["completion", "tools"]),
        ({"tools": "none"}, {}, ["completion", "thinking"]),
        ({}, {"media": ("image",)}, ["completion", "tools", "thinking", "vision"]),
        ({}, {"chat_template": "{{ messages[0].content }}"}, ["completion", "thinking"]),
    ],
)
def test_capabilities_are_true(
    model: dict[str, str], engine: dict[str, Any], expected: list[str]
) -> None:
    # OLL-13
    with ollama_server(engine=engine, **model) as server:
        assert tags(server)["scripted"]["capabilities"] == expected
        assert show(server, model="scripted")["capabilities"] == expected


def test_ps_lists_what_is_loaded() -> None:
    # OLL-17
    with ollama_server(load="request", idle_timeout=1000) as server:
        assert tags(server)["scripted"]["capabilities"] == []
        assert server.http.get("/api/ps").json() == {"models": []}
        server.http.post("/api/generate", json={"model": "scripted"})
        [card] = server.http.get("/api/ps").json()["models"]
        assert card["name"] == card["model"] == "scripted"
        assert card["digest"] == tags(server)["scripted"]["digest"]
        assert card["size"] >= card["size_vram"] >= 0
        assert card["context_length"] == 4096
        assert re.fullmatch(r"20\d\d-.*Z", card["expires_at"])
        assert tags(server)["scripted"]["capabilities"] == ["completion", "tools", "thinking"]
        server.http.post("/api/generate", json={"model": "scripted", "keep_alive": 0})
        assert server.http.get("/api/ps").json() == {"models": []}
        assert tags(server)["scripted"]["capabilities"] == ["completion", "tools", "thinking"]


def test_a_model_that_stays_expires_far_away(server: Server) -> None:
    [card] = server.http.get("/api/ps").json()["models"]
    assert card["expires_at"] > "2200"


def test_a_model_that_stays_for_thousands_of_years_expires_far_away() -> None:
    with ollama_server(idle_timeout=1e12) as server:
        [card] = server.http.get("/api/ps").json()["models"]
        assert card["expires_at"] == "2300-01-01T00:00:00Z"


def test_keys_see_their_models() -> None:
    with ollama_server(server={"auth": "required"}, keys=key_store()) as server:
        for name, seen in (("user", 1), ("other", 0), ("admin", 1)):
            key = {"Authorization": f"Bearer {name}"}
            assert len(tags(server, **key)) == seen
            assert len(server.http.get("/api/ps", headers=key).json()["models"]) == seen
            answer = server.http.post("/api/show", json={"model": "scripted"}, headers=key)
            assert answer.status_code == (200 if seen else 404)
            if not seen:
                assert "available: none" in refused(answer, 404)
        assert "no API key" in refused(server.http.get("/api/tags"), 401)


def test_version(server: Server) -> None:
    # OLL-19
    version = server.http.get("/api/version").json()["version"]
    numbers = [int(number) for number in version.split(".")]
    assert (0, 13, 4) <= tuple(numbers) < (1,)
