"""EVE-4: models of a backend that reads no file or folder."""

from pathlib import Path
from typing import Any

import pytest

from enginebay.config.load import load_config
from enginebay.config.schema import Config
from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import BackendSettings
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from tests.support import plugins_with, scripted, serve


def plugins(seen: list[str] | None = None) -> Plugins:
    def create(settings: BackendSettings) -> Backend:
        if seen is not None:
            seen.append(settings.path)
        return scripted(["Hello"])(settings)

    made = plugins_with(reads=scripted(["Hello"]))
    made.backends("pathless", create, needs_path=False)
    return made


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"backend": "pathless"}, None),
        ({"backend": "pathless", "path": "."}, None),
        ({"backend": "pathless", "path": "nope"}, "there is no file or folder"),
        ({"backend": "reads"}, "path: is missing; set it to the file or folder of the model 'm'"),
        pytest.param(
            {"backend": "reads", "cluster": {}},
            "path: is missing",
            marks=pytest.mark.wing("cluster"),
        ),
        ({"backend": "hf"}, "path: is missing"),
        ({"backend": "llamacpp"}, "path: is missing"),
    ],
)
def test_the_config_check(tmp_path: Path, entry: dict[str, Any], problem: str | None) -> None:
    lines = "".join(f"\n    {key}: {value}" for key, value in entry.items())
    file = tmp_path / "config.yml"
    file.write_text(f"models:\n  - name: m{lines}\n", encoding="utf-8")
    found = [str(each) for each in check_config(load_config(file), plugins())]
    of_path = [each for each in found if "path" in each]
    assert len(of_path) == (problem is not None)
    assert not problem or problem in of_path[0]


def test_an_entry_that_is_like_another_inherits_its_path() -> None:
    models = [{"name": "a", "backend": "reads", "path": "."}, {"name": "b", "like": "a"}]
    assert check_config(Config.model_validate({"models": models}), plugins()) == []


@pytest.mark.wing("ollama")
def test_a_model_without_a_path_is_served(tmp_path: Path) -> None:
    (tmp_path / "a.toy").touch()
    seen: list[str] = []
    made = plugins(seen)
    made.backends("toys", scripted(["Toy"]), serves=lambda path: path.suffix == ".toy")
    models = [{"name": "m", "backend": "pathless"}, {"name": "n", "like": "m"}]
    config = Config.model_validate(
        {
            "models": models,
            "server": {"model_dir": str(tmp_path)},
            "loading": {"max_ram": 100, "check_memory": True},
        }
    )
    with serve(config, made) as server:
        assert seen == [""]
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        listed = [card["id"] for card in server.http.get("/v1/models").json()["data"]]
        assert listed == ["m", "n", "a.toy"]
        assert server.http.get("/api/tags").json()["models"][0]["size"] == 0
        assert server.http.post("/api/show", json={"model": "m"}).status_code == 200
        assert server.http.get("/v1/models/m/memory").status_code == 200
