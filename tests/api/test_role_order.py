"""Chats whose roles do not alternate, for a template that wants that, over real HTTP. ANS-6"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Server, plugins_with, scripted, scripted_config, serve
from tests.template.test_template_messages import CHATML, STRICT

HEADER = "X-Unsupported-Params"
SENT: list[Any] = [
    {"role": "system", "content": "s"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "user", "content": "c"},
]


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    backend = scripted(lambda prompt, index: [prompt], chat_template=STRICT)
    with serve(scripted_config(), plugins_with(scripted=backend)) as running:
        yield running


def test_a_chat_is_adapted_and_the_header_says_so(strict: Server) -> None:
    answer = strict.http.post("/v1/chat/completions", json={"messages": SENT})
    assert answer.json()["choices"][0]["message"]["content"] == "s|user:|assistant:a|user:b\n\nc|"
    assert answer.headers[HEADER] == "messages[1].role, messages[3].role"
    explained = strict.http.post("/v1/chat/completions/explain", json={"messages": SENT}).json()
    assert [note.partition(":")[0] for note in explained["notes"]] == [
        "a user message is put in front of the first assistant message",
        "neighboring user messages are joined",
    ]


@pytest.mark.wing("llama_server", "messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"system": "s", "messages": SENT[1:], "max_tokens": 99}),
        ("/api/chat", {"messages": SENT, "stream": False}),
        ("/v1/responses", {"input": SENT}),
        ("/apply-template", {"messages": SENT}),
        ("/tokenize", {"messages": SENT}),
    ],
)
def test_other_routes(strict: Server, path: str, body: Any) -> None:
    answer = strict.http.post(path, json={"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    assert "role" in answer.headers[HEADER]


@pytest.mark.wing("llama_server")
def test_a_message_to_continue(strict: Server) -> None:
    sent = [*SENT[:2], {"role": "assistant", "content": "and so"}]
    body = {"messages": sent, "continue_final_message": True}
    answer = strict.http.post("/apply-template", json=body)
    assert answer.json()["prompt"] == "s|user:|assistant:a\n\nand so"


def test_a_request_can_want_its_roles_as_they_are(strict: Server) -> None:
    body = {"messages": SENT, "strict_roles": True}
    answer = strict.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]


def test_a_server_with_strict_params_refuses() -> None:
    backend = scripted(["ok"], chat_template=STRICT)
    config = scripted_config(server={"strict_params": True})
    with serve(config, plugins_with(scripted=backend)) as server:
        answer = server.http.post("/v1/chat/completions", json={"messages": SENT})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[1].role"


@pytest.mark.wing("llama_server")
def test_other_templates_get_every_message() -> None:
    backend = scripted(["ok"], chat_template=CHATML)
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        answer = server.http.post("/v1/chat/completions", json={"messages": SENT})
        assert HEADER not in answer.headers
        prompt = server.http.post("/apply-template", json={"messages": SENT}).json()["prompt"]
        assert prompt.count("<|im_start|>") == 4
