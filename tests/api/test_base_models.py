"""Models that are not expected to end by themselves have a default limit. ANS-10"""

import logging
from itertools import repeat
from typing import Any

import pytest

from tests.conftest import ServeScripted
from tests.support import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LIMIT = 1024
ASKED: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "x"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/api/generate": {"prompt": "x", "raw": True, "stream": False},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}], "stream": False},
}


def endless(serve_scripted: ServeScripted, template: str | None = None, **model: Any) -> Server:
    return serve_scripted(lambda *_: repeat("a"), engine={"chat_template": template}, **model)


def length(server: Server, path: str = TEXT, **fields: Any) -> int:
    body = {"model": "scripted", **ASKED[path], **fields}
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    usage = said.get("usage", {})
    return int(
        usage.get("completion_tokens") or usage.get("output_tokens") or said.get("eval_count") or 0
    )


@pytest.mark.wing("ollama", "responses")
@pytest.mark.parametrize("path", ASKED)
def test_every_api_has_the_limit(serve_scripted: ServeScripted, path: str) -> None:
    server = endless(serve_scripted, chat_template="chatml")
    assert length(server, path) == LIMIT


def test_whoever_sets_a_limit_gets_that(
    serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        server = endless(serve_scripted)
    assert "answers end after 1024 tokens; `sampling.max_tokens` sets another limit" in caplog.text
    assert length(server, max_tokens=7) == 7
    assert length(server, max_tokens=2000) == 2000
    assert length(server, max_tokens=-1) == 4095
    assert length(server, truncate_prompt_tokens=-1, prompt="x" * 9000) == LIMIT


@pytest.mark.parametrize(("limit", "tokens"), [(30, 30), (-1, 4095)])
def test_the_config_sets_another(serve_scripted: ServeScripted, limit: int, tokens: int) -> None:
    assert length(endless(serve_scripted, sampling={"max_tokens": limit})) == tokens


def test_a_short_context(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(
        lambda *_: repeat("a"), engine={"chat_template": None, "context_length": 100}
    )
    assert length(server) == 25


def test_a_model_with_a_template_has_no_limit(serve_scripted: ServeScripted) -> None:
    server = endless(serve_scripted, "{{ messages[0].content }}")
    assert length(server) == 4095
    explained = server.http.post(f"{CHAT}/explain", json=ASKED[CHAT]).json()
    assert explained["sampling"]["max_tokens"] == {"value": None, "source": "default"}


def test_explain_names_the_source(serve_scripted: ServeScripted) -> None:
    server = endless(serve_scripted, chat_template="chatml")
    explained = server.http.post(f"{CHAT}/explain", json=ASKED[CHAT]).json()
    assert explained["sampling"]["max_tokens"] == {"value": LIMIT, "source": "model"}
