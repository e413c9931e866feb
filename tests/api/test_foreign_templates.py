"""Templates that came with model files, as a stranger may have written them. SEC-9"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.render_process import RenderProcess
from tests.api.test_template_bos import CHATML
from tests.bystander import Bystander, bystander, paused
from tests.support import plugins_with, scripted, scripted_config
from tests.template.test_bounds import ENDLESS

USER: list[Any] = [{"role": "user", "content": "hi"}]
POWERS = "{% for i in range(99999) %}{% set x = 3 ** 60000 %}{% endfor %}{{ messages[0].content }}"
PLACES: dict[str, Callable[[Bystander], Any]] = {
    "chat": lambda at: at.server.http.post("/v1/chat/completions", json=chat()),
    "explain": lambda at: at.server.http.post("/v1/chat/completions/explain", json=chat()),
    "tokenize": lambda at: at.server.http.post("/tokenize", json=chat()),
    "messages": lambda at: at.server.http.post("/v1/messages", json={**chat(), "max_tokens": 9}),
    "inspect": lambda at: at.server.http.get("/v1/models/scripted/inspect"),
}


def chat() -> dict[str, Any]:
    return {"model": "scripted", "messages": USER}


@pytest.mark.parametrize("source", [ENDLESS, POWERS])
def test_expensive_templates_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model loads, with no format, and each of its chats gets an error."""
    quick = partial(ForeignTemplates, seconds=0.5)
    monkeypatch.setattr("enginebay.models.template.chat_formats.ForeignTemplates", quick)
    plugins = plugins_with(scripted=scripted(["ok"], chat_template=source))
    with bystander(scripted_config(load="request"), plugins) as watching:
        with watching.measured() as turns:
            refused = PLACES["chat"](watching)
            watching.advance(3)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "chat_template_error"
        assert "was stopped: it takes longer" in refused.json()["error"]["message"]
        assert turns.longest < 0.1
        completion = {"model": "scripted", "prompt": "x"}
        assert watching.server.http.post("/v1/completions", json=completion).is_success
    assert "was stopped: it takes longer than 5 seconds; no format was detected" in caplog.text


@pytest.mark.wing("messages")
@pytest.mark.parametrize("place", PLACES)
def test_other_streams_go_on_while_it_renders(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    plugins = plugins_with(scripted=scripted(["ok"]))
    with bystander(scripted_config(), plugins) as watching:
        answers: list[Any] = []
        with paused(monkeypatch, RenderProcess, "do") as pause:
            thread = threading.Thread(target=lambda: answers.append(PLACES[place](watching)))
            thread.start()
            pause.entered()
            watching.advance(3)
            pause.go_on()
            thread.join()
        assert answers[0].status_code == 200, answers[0].text


@pytest.mark.wing("llama_server")
def test_shipped_templates_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[RenderProcess] = []
    monkeypatch.setattr(RenderProcess, "__init__", started.append)
    plugins = plugins_with(scripted=scripted(lambda prompt, index: [prompt], chat_template=None))
    with bystander(scripted_config(chat_template="chatml"), plugins) as watching:
        applied = watching.server.http.post("/apply-template", json=chat())
    assert applied.json()["prompt"] == CHATML
    assert not started


def test_processes_end_with_their_model() -> None:
    plugins = plugins_with(scripted=scripted(["ok"]))
    with bystander(scripted_config(), plugins) as watching:
        entry = watching.server.app.state.services.models.find("scripted")
        [process] = entry.served().templates._foreign._idle
        assert process.alive
        assert watching.server.http.post("/v1/models/scripted/unload").is_success
        assert entry.state == "unloaded"
        assert not process.alive
