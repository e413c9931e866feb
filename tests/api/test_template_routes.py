"""Listing and switching chat templates, and what the server tells about itself."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract.types import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

OWN = "own: {{ messages[0].content }}"
RAG = "rag: {{ messages[0].content }}"
THINKING = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
)
USER: list[Any] = [{"role": "user", "content": "hi"}]


def parrot() -> ScriptedEngine:
    """Says its prompt, has two templates and decodes three choices at once."""
    engine = ScriptedEngine(lambda prompt, index: [prompt])
    known = {name: getattr(engine.info, name) for name in ModelInfo.__dataclass_fields__}
    changed = {"chat_template": OWN, "chat_templates": {"rag": RAG}, "max_batch_size": 3}
    engine.info = ModelInfo(**known | changed)
    return engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config's folder, with a folder of templates."""
    (tmp_path / "templates").mkdir()
    for name, source in (("mine", "mine: {{ messages[0].content }}"), ("thinking", THINKING)):
        (tmp_path / "templates" / f"{name}.jinja").write_text(source, encoding="utf-8")
    (tmp_path / "templates" / "broken.jinja").write_text("{% if %}", encoding="utf-8")
    (tmp_path / "beside.jinja").write_text("beside: {{ messages[0].content }}", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(server: Server, **body: Any) -> Any:
    answer = server.http.post("/v1/chat/completions", json={"messages": USER, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_templates_are_switched_and_unloaded(folder: Path, prefix: str) -> None:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(parrot))) as server:
        http = server.http
        listed = http.get(f"{prefix}/template/list").json()
        assert listed == http.get(f"{prefix}/templates").json()
        assert listed["object"] == "list"
        assert set(listed["data"]) == {
            "default", "rag", "mine", "thinking", "broken", "beside", "chatml", "llama3",
        }  # fmt: skip
        assert said(server)["content"] == "own: hi"
        for body, text in (
            ({"prompt_template_name": "mine"}, "mine: hi"),
            ({"name": "mine.jinja"}, "mine: hi"),
            ({"name": "beside"}, "beside: hi"),  # EVE-6
            ({"name": "beside.jinja"}, "beside: hi"),
            ({"name": "rag", "model": "scripted"}, "rag: hi"),
            ({"prompt_template_name": "default"}, "own: hi"),
        ):
            switched = http.post(f"{prefix}/template/switch", json=body)
            assert switched.status_code == 200, switched.text
            assert said(server)["content"] == text
        assert http.post(f"{prefix}/template/switch", json={"name": "mine"}).is_success
        assert http.get("/props").json()["chat_template"].startswith("mine:")
        unloaded = http.post(f"{prefix}/template/unload")
        assert unloaded.json()["data"] == ["default"]
        assert said(server)["content"] == "own: hi"


def test_formats_follow_the_template(folder: Path) -> None:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(parrot))) as server:
        messages = [{"role": "user", "content": "<think>so</think>then"}]
        assert said(server, messages=messages)["content"] == "own: <think>so</think>then"
        assert server.http.post("/v1/template/switch", json={"name": "thinking"}).is_success
        answer = said(server, messages=messages)
        assert answer["reasoning_content"] == "so"
        assert answer["content"] == "[user]then"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt_template_name", "required"),
        ({"name": ""}, "name", "at least 1 character"),
        ({"name": "other"}, "prompt_template_name", "there is no chat template 'other'"),
        ({"name": "../secret"}, "prompt_template_name", "there is no chat template"),
        ({"name": "secret.txt"}, "prompt_template_name", "there is no chat template"),
        ({"name": "config.yml"}, "prompt_template_name", "there is no chat template"),
        ({"name": "broken"}, None, "does not compile: line 1"),
    ],
)
def test_templates_that_are_none(
    folder: Path, body: dict[str, Any], param: str | None, message: str
) -> None:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(parrot))) as server:
        answer = server.http.post("/v1/template/switch", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert message in error["message"]
        assert said(server)["content"] == "own: hi"


def test_a_model_without_templates(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], engine={"chat_template": None})
    assert "default" not in server.http.get("/v1/template/list").json()["data"]
    assert "chat_template" not in server.http.get("/props").json()
    assert server.http.post("/v1/template/switch", json={"name": "chatml"}).is_success
    assert said(server)["content"] == "x"
    assert server.http.post("/v1/template/unload", json={}).json()["data"] == []
    refused = server.http.post("/v1/chat/completions", json={"messages": USER})
    assert refused.status_code == 400


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_props(prefix: str) -> None:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(parrot))) as server:
        props = server.http.get(f"{prefix}/props").json()
        # SillyTavern compares this hash with those of templates it knows
        digest = hashlib.sha256(props["chat_template"].encode()).hexdigest()
        assert digest == hashlib.sha256(OWN.encode()).hexdigest()
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert props["total_slots"] == 3
        assert props["modalities"] == {"vision": False, "audio": False, "video": False}
        assert server.http.get(f"{prefix}/props", params={"model": "no"}).status_code == 404


@pytest.mark.parametrize(("max_running", "slots"), [(2, 2), (9, 3)])
def test_props_tell_how_many_may_run(max_running: int, slots: int) -> None:
    config = scripted_config(max_running=max_running)
    with serve(config, plugins_with(scripted=engine_backend(parrot))) as server:
        assert server.http.get("/props").json()["total_slots"] == slots


def test_an_engine_tells_its_slots(demo: Server) -> None:
    props = demo.http.get("/props").json()
    assert props["total_slots"] > 1
    assert props["eos_token"] == "<|im_end|>"


def test_service_info_needs_no_key(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"], server={"api_keys": ["secret"]})
    info = server.http.get("/.well-known/serviceinfo").json()
    assert info["version"] == "0.2"
    assert info["software"]["name"] == "Enginebay"
    assert info["software"]["version"] == server.app.version
    assert info["software"]["homepage"].startswith("http")
    assert info["software"]["repository"].startswith("http")
    assert info["api"]["openai"]["rel_url"] == info["api"]["openai"]["relative_url"] == "/v1"
    for path in ("/version", "/props", "/v1/auth/permission", "/v1/template/list"):
        assert server.http.get(path).status_code == 401
        headers = {"x-api-key": "secret"}
        assert server.http.get(path, headers=headers).status_code == 200, path


def test_version_and_permission(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x"])
    assert server.http.get("/version").json() == {"version": server.app.version}
    assert server.http.get("/v1/auth/permission").json() == {"permission": "admin"}


def test_an_undefined_name_is_a_mistake_and_no_variable(caplog: pytest.LogCaptureFixture) -> None:
    # EVE-7
    source = (
        "{% for m in mesages or messages %}{{ m.content }}{% endfor %}\n{{ foo }}"
        "{% if add_generation_promt %}{{ mood | default('ok') }}{% endif %}"
        "{% if thinking %}{{ thinking }}{% endif %}"
    )

    def create() -> ScriptedEngine:
        return ScriptedEngine(["ok"], chat_template=source)

    with serve(scripted_config(), plugins_with(scripted=engine_backend(create))) as server:
        found = server.http.get("/v1/models/scripted/inspect").json()["template"]
        assert found["variables"] == ["mood", "thinking"]
        assert found["mistakes"] == [
            "line 1: 'mesages' is undefined; did you mean 'messages'?",
            "line 2: 'foo' is undefined",
            "line 2: 'add_generation_promt' is undefined; did you mean 'add_generation_prompt'?",
        ]
    assert "chat template (the model's): line 2: 'foo' is undefined" in caplog.text
    config = scripted_config(template_vars={"foo": 1})
    with serve(config, plugins_with(scripted=engine_backend(create))) as server:
        found = server.http.get("/v1/models/scripted/inspect").json()["template"]
        assert len(found["mistakes"]) == 2
