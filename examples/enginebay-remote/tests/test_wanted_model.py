"""CLU-4: which of the models of a server answers requests."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import serving
from enginebay_remote.servers import Wanted
from ruamel.yaml import YAML

from enginebay import BackendUnavailableError

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "several-servers.md"
SAYS_ITS_NAME = """
from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl


@hookimpl
def register_backends(register):
    register("scripted", lambda settings: EngineBackend(lambda: ScriptedEngine([settings.name])))
"""


def listed(*names: str, **aliases: list[str]) -> dict[str, dict[str, Any]]:
    return {name: {"id": name, "aliases": aliases.get(name, [])} for name in names}


@pytest.mark.parametrize(
    ("wanted", "cards", "chosen"),
    [
        (Wanted(names=["tick"]), listed("chat", "tick"), "tick"),
        (Wanted(names=["a"], aliases=["tick"]), listed("chat", "tick"), "tick"),
        (Wanted(names=["a"], aliases=["b", "c"]), listed("c", "b"), "b"),
        (Wanted(names=["a"], aliases=["chat"]), listed("chat", "a"), "a"),
        (Wanted(names=["a"]), listed("chat", "x", x=["a"]), "x"),
        (Wanted(names=["a", "b"]), listed("chat", "b"), "b"),
        (Wanted(names=["a"]), listed("chat"), "chat"),
        (Wanted(model="x", names=["a"]), listed("a", "x"), "x"),
        (Wanted(model="x", names=["a"]), listed("a", "b", b=["x"]), "b"),
    ],
)
def test_the_model_that_is_meant(
    wanted: Wanted, cards: dict[str, dict[str, Any]], chosen: str
) -> None:
    assert wanted.choose(cards) == chosen


@pytest.mark.parametrize(
    ("wanted", "cards", "said"),
    [
        (
            Wanted(names=["tick"], aliases=["tock"]),
            listed("chat", "talk"),
            r"has no model 'tick' or 'tock'; it has: chat, talk\. Set the option `model`",
        ),
        (Wanted(names=["tick"]), listed(), "it has: none"),
        (Wanted(model="tick"), listed("chat"), "has no model 'tick'; it has: chat"),
        (
            Wanted(names=["chat", "tick"]),
            listed("chat", "tick"),
            "chat, tick share one engine because of `like`.*Set the option `model`",
        ),
    ],
)
def test_no_other_model_answers(
    wanted: Wanted, cards: dict[str, dict[str, Any]], said: str
) -> None:
    with pytest.raises(BackendUnavailableError, match=said):
        wanted.choose(cards)


def test_the_guides_front_of_two_models(tmp_path: Path) -> None:
    """Each request is answered by the model that it names; an unknown one does not load."""
    if not GUIDE.is_file():
        pytest.skip("the guide is part of Enginebay's repository")
    front = GUIDE.read_text(encoding="utf-8").partition("## In front")[2]
    config = YAML(typ="safe").load(front.partition("```yaml")[2].partition("```")[0])
    models = [{"name": name, "backend": "scripted", "path": "."} for name in ("chat", "tick")]
    there = json.dumps({"server": {"port": 0}, "models": models})
    with (
        serving(tmp_path / "a", there, {"says": SAYS_ITS_NAME}) as a,
        serving(tmp_path / "b", there, {"says": SAYS_ITS_NAME}) as b,
    ):
        config["server"] = {"port": 0}
        config["models"].append({**config["models"][0], "name": "other"})
        text = json.dumps(config).replace("http://a:5000/v1", a).replace("http://b:5000/v1", b)
        with serving(tmp_path / "front", text, {}) as url:
            for name in ("chat", "tick"):
                answer = _asked(url, name).json()
                assert (answer["model"], answer["choices"][0]["message"]["content"]) == (name, name)
            refused = _asked(url, "other")
            assert refused.status_code == 503
            message = refused.json()["error"]["message"]
            assert "has no model 'other'; it has: chat, tick" in message
            assert "option `model`" in message


def _asked(url: str, model: str) -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    return httpx2.post(f"{url}/chat/completions", json=body, timeout=60)
