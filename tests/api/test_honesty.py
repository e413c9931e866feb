"""Whatever a request asks for and does not get is said, in a header or as an error."""

import logging
from typing import Any

import pytest

from tests.conftest import ServeScripted

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"messages": USER}


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"metadata": {"a": "b"}},
        {"service_tier": "flex"},
        {"prediction": {"type": "content", "content": "x"}},
        {"banned_strings": ["no"]},
        {"bad_words": ["no"]},
        {"banned_tokens": [5]},
        {"allowed_token_ids": [5]},
        {"spaces_between_special_tokens": True},
    ],
)
def test_what_has_no_effect_is_named(serve_scripted: ServeScripted, fields: dict[str, Any]) -> None:
    [name] = fields
    answer = serve_scripted(["ok"]).http.post(CHAT, json={**BODY, **fields})
    assert answer.status_code == 200
    assert answer.headers["x-unsupported-params"] == name
    strict = serve_scripted(["ok"], server={"strict_params": True})
    refused = strict.http.post(CHAT, json={**BODY, **fields})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "metadata": {}, "service_tier": "auto", "modalities": ["text"]},
        {"stream_options": {}, "functions": None, "banned_strings": [], "user": "me"},
        {"custom_token_bans": "", "api_type": "tabby", "api_server": "http://x", "num_ctx": 8192},
        {"json_schema": {}, "negative_prompt": "", "guidance_scale": 1, "max_tokens_second": 0},
        {"skip_special_tokens": True, "echo": False, "prompt_logprobs": 0},
    ],
)
def test_what_asks_for_nothing_is_not(serve_scripted: ServeScripted, fields: Any) -> None:
    server = serve_scripted(["ok"], server={"strict_params": True})
    answer = server.http.post(CHAT, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-unsupported-params" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_max_tokens_beyond_the_context(serve_scripted: ServeScripted, path: str) -> None:
    prompt = {"prompt": "x" * 20} if path == TEXT else BODY
    tokens = 20
    server = serve_scripted(["a"] * 99, engine={"context_length": 64})
    answer = server.http.post(path, json={**prompt, "max_tokens": 5000})
    tokens = answer.json()["usage"]["prompt_tokens"]
    assert answer.headers["x-clamped-params"] == f"max_tokens={64 - tokens}"
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["total_tokens"] == 64
    unsaid = server.http.post(path, json=prompt)
    assert "x-clamped-params" not in unsaid.headers
    strict = serve_scripted(["a"], engine={"context_length": 64}, server={"strict_params": True})
    refused = strict.http.post(path, json={**prompt, "max_tokens": 5000})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"
    fits = strict.http.post(path, json={**prompt, "max_tokens": 64 - tokens})
    assert fits.status_code == 200


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, 5),
        ({"truncate_prompt_tokens": -1, "max_tokens": 60}, 4),
        ({"truncate_prompt_tokens": -1}, 48),
        ({"truncate_prompt_tokens": -1, "max_tokens": 500}, 1),
    ],
)
def test_truncated_prompts(serve_scripted: ServeScripted, fields: Any, kept: int) -> None:
    # VLLM-23
    server = serve_scripted(lambda prompt, index: [prompt], engine={"context_length": 64})
    text = "".join(chr(ord("A") + i % 26) for i in range(100))
    whole = f"<user>{text}\n<assistant>"
    for path, body, sent in (
        (TEXT, {"prompt": text}, text),
        (TEXT, {"prompt": [ord(c) for c in text]}, text),
        (CHAT, {"messages": [{"role": "user", "content": text}]}, whole),
    ):
        answer = server.http.post(path, json={**body, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-truncated-prompt-tokens"] == str(len(sent) - kept)
        choice = answer.json()["choices"][0]
        said = choice["text"] if path == TEXT else choice["message"]["content"]
        assert said == sent[-kept:][: 64 - kept]
    short = server.http.post(TEXT, json={"prompt": "abc", **fields})
    assert ("x-truncated-prompt-tokens" in short.headers) == (kept < 3)


def test_a_prompt_too_long_even_to_be_truncated(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], engine={"context_length": 64})
    body = {"prompt": "x" * 10_000, "truncate_prompt_tokens": 5}
    error = server.http.post(TEXT, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    error = server.http.post(TEXT, json={"prompt": "x" * 99, "truncate_prompt_tokens": 90}).json()
    assert error["error"]["code"] == "context_length_exceeded"


def test_the_log(serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture) -> None:
    # TAB-78 TAB-90 VLLM-33 VLLM-77
    caplog.set_level(logging.INFO, "core")
    server = serve_scripted(["secret answer"])
    body = {"messages": [{"role": "user", "content": "secret question"}], "max_tokens": 99}
    headers = {"X-Request-Id": "id-1"}
    server.http.post(CHAT, json=body, headers=headers)
    lines = [r.getMessage() for r in caplog.records if "id-1" in r.getMessage()]
    assert len(lines) == 2
    assert "'max_tokens': 99" in lines[0]
    assert "33 prompt and 14 completion tokens, finished" in lines[1]
    assert not any("secret" in record.getMessage() for record in caplog.records)
    caplog.clear()
    server = serve_scripted(["secret answer"], server={"log_prompts": True})
    server.http.post(CHAT, json=body, headers=headers)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "chatcmpl-id-1 asks: '<user>secret question\\n<assistant>'" in text
    assert "answers in choice 0: 'secret answer'" in text


def test_sampling_defaults_are_logged_with_their_source(
    serve_scripted: ServeScripted, caplog: pytest.LogCaptureFixture
) -> None:
    # VLLM-7
    caplog.set_level(logging.INFO, "core")
    serve_scripted(["ok"], sampling={"temperature": 0.25})
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "sampling defaults: temperature=0.25 (config)" in text
