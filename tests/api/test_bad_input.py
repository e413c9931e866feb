"""Whatever is sent: a 4xx with OpenAI's error object, and a server that still answers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ServeScripted
from tests.support import Server, plugins_with, scripted, scripted_config, serve

USER = [{"role": "user", "content": "hi"}]
AS_JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all of them: none of these requests may do it harm."""
    plugins = plugins_with(scripted=scripted(["ok"], context_length=64))
    with serve(scripted_config(), plugins) as running:
        yield running


def check(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def still_answers(server: Server) -> None:
    answer = server.openai.chat.completions.create(model="scripted", messages=USER)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "ok"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}, 3]}, "messages[1]"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": None, "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*USER, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"messages": USER, "n": 0}, "n"),
        ({"messages": USER, "n": -1}, "n"),
        ({"messages": USER, "n": 1000}, "n"),
        ({"messages": USER, "n": "many"}, "n"),
        ({"messages": USER, "temperature": -1}, "temperature"),
        ({"messages": USER, "temperature": "hot"}, "temperature"),
        ({"messages": USER, "top_p": 1.5}, "top_p"),
        ({"messages": USER, "top_k": -7}, "top_k"),
        ({"messages": USER, "max_tokens": 0}, "max_tokens"),
        ({"messages": USER, "max_tokens": -3}, "max_tokens"),
        ({"messages": USER, "max_tokens": 1.5}, "max_tokens"),
        ({"messages": USER, "max_completion_tokens": -2}, "max_completion_tokens"),
        ({"messages": USER, "n_predict": -2}, "n_predict"),
        ({"messages": USER, "max_tokens": 5, "n_predict": -2}, "n_predict"),
        ({"messages": USER, "max_completion_tokens": 5, "max_tokens": -2}, "max_tokens"),
        ({"messages": USER, "logprobs": True, "top_logprobs": 100}, "top_logprobs"),
        ({"messages": USER, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": USER, "presence_penalty": 3}, "presence_penalty"),
        ({"messages": USER, "typical": 1.1}, "typical"),
        ({"messages": USER, "top_n_sigma": -2}, "top_n_sigma"),
        ({"messages": USER, "xtc_probability": 2}, "xtc_probability"),
        ({"messages": USER, "xtc_threshold": "low"}, "xtc_threshold"),
        ({"messages": USER, "dry_base": 0.5}, "dry_base"),
        ({"messages": USER, "dry_range": -2}, "dry_range"),
        ({"messages": USER, "dry_sequence_breakers": "[1"}, "dry_sequence_breakers"),
        ({"messages": USER, "dry_sequence_breakers": [3]}, "dry_sequence_breakers"),
        ({"messages": USER, "dry_sequence_breakers": {"a": 1}}, "dry_sequence_breakers"),
        ({"messages": USER, "mirostat_mode": 3}, "mirostat_mode"),
        ({"messages": USER, "min_temp": 2, "max_temp": 1}, "min_temp"),
        ({"messages": USER, "dynatemp_low": 2}, "dynatemp_low"),  # EVE-7
        ({"messages": USER, "adaptive_decay": 1}, "adaptive_decay"),
        ({"messages": USER, "repeat_last_n": -3}, "repeat_last_n"),
        ({"messages": USER, "grammar_string": 5}, "grammar_string"),
        ({"messages": USER, "seed": 1.5}, "seed"),  # WebLLM's trap
        ({"messages": USER, "seed": "x"}, "seed"),
        ({"messages": USER, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": USER, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"messages": USER, "stream_options": {"include_usage": "x"}}, "stream_options"),
        ({"messages": USER, "request_id": "x" * 129}, "request_id"),
        ({"messages": USER, "request_id": 5}, "request_id"),
        ({"messages": USER, "user": {}}, "user"),
        ({"messages": USER, "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"messages": USER, "truncate_prompt_tokens": 0}, None),
        ({"messages": USER, "truncate_prompt_tokens": 2**40}, "truncate_prompt_tokens"),
        ({"messages": USER, "return_tokens_as_token_ids": "x"}, "return_tokens_as_token_ids"),
        ({"messages": USER, "return_token_ids": 3}, "return_token_ids"),
        ({"messages": USER, "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"messages": USER, "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"messages": USER, "allowed_token_ids": "a"}, "allowed_token_ids"),
        ({"messages": USER, "allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"messages": USER, "allowed_token_ids": [5], "banned_tokens": [5]}, "allowed_token_ids"),
        ({"messages": USER, "custom_token_bans": "1,,x"}, "custom_token_bans"),
        ({"messages": USER, "custom_token_bans": "9" * 5000}, "custom_token_bans"),
        ({"messages": USER, "banned_tokens": {"1": 2}}, "banned_tokens"),
        ({"messages": USER, "banned_tokens": [10**7]}, "banned_tokens"),
        ({"messages": USER, "allowed_token_ids": [10**7]}, "allowed_token_ids"),
        ({"messages": USER, "stop_token_ids": [10**7]}, "stop_token_ids"),
        ({"messages": USER, "logit_bias": {str(10**7): 1}}, "logit_bias"),
        ({"messages": USER, "include_stop_str_in_output": "x"}, "include_stop_str_in_output"),
        ({"messages": USER, "skip_special_tokens": 7}, "skip_special_tokens"),
        ({"messages": USER, "echo": "x"}, "echo"),
        ({"messages": USER, "modalities": ["text", "audio"]}, "modalities"),
        ({"messages": USER, "modalities": "text"}, "modalities"),
        ({"messages": USER, "web_search_options": {}}, "web_search_options"),
        ({"messages": USER, "functions": {}}, "functions"),
        ({"messages": USER, "functions": [{}]}, "functions[0].name"),
        ({"messages": USER, "functions": [{"name": "f"}], "tools": []}, "functions"),
        ({"messages": USER, "function_call": "auto"}, "function_call"),
        ({"messages": USER, "functions": [{"name": "f"}], "function_call": {}}, "function_call"),
        ({"messages": [{"role": "assistant", "function_call": "f"}]}, "messages[0].function_call"),
        ({"messages": USER, "logit_bias": {"x": 1}}, None),
        ({"messages": USER, "logit_bias": {"1": 101}}, None),
        ({"messages": USER, "stop": [1, -2]}, "stop"),
        ({"messages": USER, "stop": ["x", True]}, "stop"),
        ({"messages": USER, "stop": 5}, "stop"),
        ({"messages": USER, "stop": [10**7]}, "stop"),
        ({"messages": USER, "logprobs": 21}, "logprobs"),
        ({"messages": USER, "logprobs": -1}, "logprobs"),
        ({"messages": USER, "do_sample": "x"}, "do_sample"),
        ({"messages": USER, "think": ""}, "think"),
        ({"messages": USER, "truncation_length": "x"}, "truncation_length"),
        ({"messages": USER, "functions": [{"a": 1}], "function_call": "auto"}, "function_call"),
        ({"messages": USER, "stop": ["a"] * 65}, "stop"),
        ({"messages": USER, "seed": 2**70}, None),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": USER, "tools": {}}, "tools"),
        ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
        ({"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": USER, "response_format": {}}, "response_format.type"),
        ({"messages": USER, "response_format": []}, "response_format"),
        ({"messages": USER, "stream": "maybe"}, "stream"),
        ({"messages": USER, "stream_options": []}, "stream_options"),
    ],
)
def test_wrong_chat_bodies(server: Server, body: Any, param: str | None) -> None:
    error = check(server.http.post(CHAT, json=body))
    if param:
        assert error["param"] is not None
        assert error["param"].startswith(param)
    still_answers(server)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [""]},
        {"prompt": {}},
        {"prompt": 3},
        {"prompt": [-1]},
        {"prompt": [2**40]},
        {"prompt": [1, "a"]},
        {"prompt": "x" * 64},
        {"prompt": [120] * 64},
        {"prompt": "x", "logprobs": 100},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": -2, "echo": True},
        {"prompt": "x", "best_of": 0},
        {"prompt": "x", "best_of": 129},
        {"prompt": "x", "best_of": 1, "n": 2},
        {"prompt": "x", "best_of": 2, "stream": True},
        {"prompt": "x", "echo": "maybe"},
        {"prompt": "x", "echo": True, "logprobs": 1, "suffix": "y"},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "suffix": 5},
        {"prompt": "x", "suffix": "y" * 100_000},
        {"prompt": "x", "add_bos_token": "x"},
    ],
)
def test_wrong_completion_bodies(server: Server, body: Any) -> None:
    check(server.http.post(TEXT, json=body))
    still_answers(server)


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, lambda size: {"prompt": [{}] * size}),
        (TEXT, lambda size: {"prompt": [[{}]] * size}),
        (TEXT, lambda size: {"prompt": ["a"] * (size + 300)}),
        (CHAT, lambda size: {"messages": [5] * size}),
        (CHAT, lambda size: {"messages": USER, "stop_token_ids": ["x"] * size}),
        (CHAT, lambda size: {"messages": USER, "logit_bias": {f"x{i}": 1 for i in range(size)}}),
        (CHAT, lambda size: {"messages": [{"role": "user", "content": [5] * size}]}),
        (CHAT, lambda size: {"messages": USER, "tools": [5] * size}),
        (CHAT, lambda size: {"messages": USER, "functions": [5] * size}),
        (CHAT, lambda size: {"messages": USER, "modalities": [5] * size}),
        (CHAT, lambda size: {"messages": USER, "banned_tokens": ["x"] * size}),
        (CHAT, lambda size: {"messages": USER, "allowed_token_ids": [-1] * size}),
        (
            "/v1/sampling/override/switch",
            lambda size: {"overrides": {f"x{i}": {"override": 1} for i in range(size)}},
        ),
    ],
)
def test_one_problem_is_told_however_many_there_are(
    server: Server, path: str, body: Any, size: int
) -> None:
    """Collecting them all would cost seconds and gigabytes."""
    response = server.http.post(path, json=body(size))
    error = check(response)
    assert len(response.content) < 1500
    assert error["param"].split("[")[0].split(".")[0] in body(1)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": USER, "model": "x" * 1_000_000}, 400),
        (CHAT, {"messages": USER, "model": "x" * 1_000}, 404),
        (CHAT, {"messages": USER, "logit_bias": {"x" * 1_000_000: 1}}, 400),
        ("/v1/sampling/override/switch", {"overrides": {"x" * 1_000_000: {"override": 1}}}, 400),
        ("/v1/model/load", {"name": "x" * 1_000_000}, 400),
    ],
)
def test_errors_quote_no_more_than_people_read(
    server: Server, path: str, body: Any, status: int
) -> None:
    response = server.http.post(path, json=body)
    check(response, status)
    assert len(response.content) < 6000


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": 5}, "prompt", "must be a string, a list of strings, token ids"),
        ({"prompt": []}, "prompt", "the prompt is empty"),
        ({"prompt": [True]}, "prompt", "must be a string"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", "'a' is not a token id"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
        ({"messages": USER, "tool_choice": "bogus"}, "tool_choice", "'none', 'auto' or 'required'"),
        (
            {"messages": [{"role": "user", "content": {"a": 1}}]},
            "messages[0].content",
            "a string or a list",
        ),
        ({"messages": [{"role": "x"}]}, "messages[0].role", "'system'"),
        ({"messages": [{"role": "user", "content": [{}]}]}, None, "has no `text`"),
        ({"messages": USER, "tool_choice": {}}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, None, "has no `text`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "needs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            None,
            "there is no content part",
        ),
    ],
)
def test_errors_name_the_place_and_the_reason(
    server: Server, body: Any, param: str | None, message: str
) -> None:
    error = check(server.http.post(TEXT if "prompt" in body else CHAT, json=body))
    assert message in error["message"]
    assert param is None or error["param"] == param


def test_values_that_mean_no_limit(server: Server) -> None:
    for field in ("max_tokens", "n_predict", "seed", "top_k"):
        assert server.http.post(TEXT, json={"prompt": "x", field: -1}).status_code == 200


@pytest.mark.parametrize("depth", [2000, 200_000])
def test_nested_arguments_in_the_history_are_text(server: Server, depth: int) -> None:
    call = {"function": {"name": "f", "arguments": "[" * depth}}
    messages = [*USER, {"role": "assistant", "tool_calls": [call]}]
    assert server.http.post(CHAT, json={"messages": messages}).status_code == 200


@pytest.mark.parametrize("depth", range(800, 1000, 20))
def test_nested_arguments_as_an_object_are_no_error_of_the_server(
    server: Server, depth: int
) -> None:
    call = '{"function": {"name": "f", "arguments": ' + '{"a": ' * depth + "1" + "}" * (depth + 2)
    history = f'{{"role": "assistant", "tool_calls": [{call}]}}'
    content = f'{{"messages": [{json.dumps(USER[0])}, {history}]}}'
    assert server.http.post(CHAT, content=content).status_code in (200, 400)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"text"',
        b"null",
        b'{"messages": [}',
        b"\xff\xfe\x00",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_broken_json(server: Server, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = server.http.post(CHAT, content=content, headers=headers)
    check(response)
    still_answers(server)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_body_that_is_not_utf_8(server: Server, encoding: str) -> None:
    headers = {"Content-Type": "application/json"}
    content = json.dumps({"messages": USER}).encode(encoding)
    for body in (content, (bytes([byte]) for byte in content)):  # also one byte at a time
        error = check(server.http.post(CHAT, content=body, headers=headers))
        assert error["message"] == "the body is not UTF-8, as JSON has to be"
    still_answers(server)


def test_a_missing_content_type_is_forgiven(server: Server) -> None:
    content = json.dumps({"messages": USER}).encode()
    assert server.http.post(CHAT, content=content).status_code == 200
    error = check(
        server.http.post(
            CHAT, content=content, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    )
    assert "Content-Type: application/json" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(server: Server, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 64}], "stream": stream}
    error = check(server.http.post(CHAT, json=body))
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 64 tokens" in error["message"]


def test_ten_megabytes(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 10_000_000}]}
    assert check(server.http.post(CHAT, json=body))["code"] == "context_length_exceeded"
    still_answers(server)


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_over_the_limit(serve_scripted: ServeScripted, chunked: bool) -> None:
    server = serve_scripted(["ok"], server={"max_request_bytes": 1000})
    content = json.dumps({"messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    pieces = (content[at : at + 100] for at in range(0, len(content), 100))
    response = server.http.post(
        CHAT,
        content=pieces if chunked else content,
        headers={"Content-Type": "application/json"},
    )
    assert check(response, 413)["code"] == "request_too_large"
    still_answers(server)


def test_openai_exceptions(server: Server) -> None:
    # MLC-5 VLLM-8
    with pytest.raises(openai.NotFoundError, match="available: scripted"):
        server.openai.chat.completions.create(model="nobody", messages=USER)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.chat.completions.create(model="scripted", messages=[])
    assert caught.value.param == "messages"


def test_unknown_routes_and_methods(server: Server) -> None:
    assert "no route" in check(server.http.get("/v1/nothing"), 404)["message"]
    assert "does not allow" in check(server.http.get(CHAT), 405)["message"]
    check(server.http.get("/v1/models/nobody"), 404)


def test_unknown_fields_are_named(serve_scripted: ServeScripted) -> None:
    body = {"messages": USER, "tfs": 0.5, "dry_multiplier": 0, "typical_p": 1, "seed": -1}
    server = serve_scripted(["ok"])
    response = server.http.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.headers["x-unsupported-params"] == "tfs"
    response = server.http.post(CHAT, json={"messages": USER, "temperature": 0.5})
    assert response.headers["x-unsupported-params"] == "temperature"


def test_unknown_fields_are_refused_when_strict(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"strict_params": True})
    error = check(server.http.post(CHAT, json={"messages": USER, "mirostat_mode": 2}))
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == "mirostat_mode"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "model",
        "n",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "logit_bias",
        "tools",
        "tool_choice",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "stop_token_ids",
        "response_format",
        "chat_template_kwargs",
        "user",
        "request_id",
        "stream_options",
        "functions",
        "function_call",
        "echo",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "banned_tokens",
        "allowed_token_ids",
        "include_stop_str_in_output",
        "modalities",
        "parallel_tool_calls",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "grammar",
        "json_schema",
        "do_sample",
        "think",
        "reasoning",
        "truncation_length",
        "bad_words",
    ]
)


@given(st.dictionaries(FIELDS, JSON, max_size=3), JSON | st.just(USER))
def test_any_json_is_answered(server: Server, fields: dict[str, Any], messages: Any) -> None:
    content = json.dumps({"messages": messages, **fields})
    headers = {"Content-Type": "application/json"}
    response = server.http.post(CHAT, content=content, headers=headers)
    assert response.status_code == 200 or 400 <= response.status_code < 500
    if response.status_code != 200:
        check(response, response.status_code)


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "input_text", "thinking", "reasoning", "refusal", "file"]),
        **dict.fromkeys(("text", "thinking", "reasoning", "summary", "content", "refusal"), JSON),
        "cache_control": JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"content": st.text(max_size=3) | st.lists(PARTS, max_size=3)},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        **dict.fromkeys(("images", "audio", "attachments", "name", "reasoning_content"), JSON),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"function": st.fixed_dictionaries({"name": st.just("f")}, optional={"x": JSON})},
                optional={"index": JSON, "extra": JSON},
            ),
            max_size=2,
        ),
    },
)


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.lists(st.dictionaries(st.text(), JSON)))
def test_any_message_is_answered(server: Server, messages: Any, functions: Any) -> None:
    # FIX-2 FIX-17
    content = json.dumps({"messages": messages, "functions": functions})
    response = server.http.post(f"{CHAT}/explain", content=content, headers=AS_JSON)
    assert response.status_code == 200 or 400 <= response.status_code < 500
    if response.status_code != 200:
        check(response, response.status_code)


# Every route there is: one that is new has to say here what it takes.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/apply-template": {"messages": USER},
    "/v1/chat/completions": {"messages": USER},
    "/v1/chat/completions/explain": {"messages": USER},
    "/v1/chat/completions/input_tokens": {"messages": USER},
    "/v1/completions": {"prompt": "x"},
    "/v1/config/reload": {},
    "/v1/detokenize": {"tokens": [65]},
    "/v1/download": {"repo_id": "nobody/nothing"},
    "/v1/classify": {"input": "x"},
    "/v1/infill": {"input_prefix": "x", "input_suffix": "y"},
    "/v1/embed": {"inputs": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/lora/load": {"loras": [{"name": "x"}]},
    "/v1/lora/unload": {},
    "/v1/model/embedding/load": {"name": "scripted"},
    "/v1/model/embedding/unload": {},
    "/v1/model/load": {"name": "scripted"},
    "/v1/model/unload": {"name": "nobody"},
    "/v1/models/{model_id}/load": {},
    "/v1/models/{model_id}/unload": {},
    "/v1/requests/{request_id}/cancel": {},
    "/v1/requests/{request_id}/end_reasoning": {},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v2/rerank": {"query": "x", "documents": ["y"]},
    "/v1/score": {"queries": "x", "documents": ["y"]},
    "/v1/score/evaluation": {"messages": ["x"]},
    "/v1/sampling/override/switch": {"overrides": {}},
    "/v1/sampling/override/unload": {},
    "/v1/template/switch": {"prompt_template_name": "default"},
    "/v1/template/unload": {},
    "/v1/token/decode": {"tokens": [65]},
    "/v1/token/encode": {"text": "x"},
    "/v1/tokenize": {"prompt": "x"},
}
WRONG = [
    *(None, True, -1, 0, 1.5, 10**400, -(2**63) - 1, float("nan"), float("-inf"), "", "x" * 70_000),
    *("\0", "\ud800", "../../etc/passwd", "C:\\x", "a\nb", "{{ 7 * 7 }}", "ｓｃｒｉｐｔｅｄ"),
    *([], [None], [[]], ["x", 1], [{}], {}, {"": None}, {"\ud800": {"x": [1]}}, {"1": "\0"}),
]
NOT_JSON = [
    *(b"{", b"\xff\xfe", b"[" * 50_000, b'{"a": ' * 2000, b"\0", b'{"model": -}'),
    *(b"[]", b"3", b'"x"', b"true"),
]
NAMES = [
    *("nobody", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "%0d%0aX-A:%20b", "%ff", "a%2Fb"),
    *("x" * 20_000, "%ED%A0%80", "%EF%BD%93", "%25", "a//b", "load", "cancel", "inspect"),
]


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[Server]:
    """Nobody needs a key, so every route is reached; downloads lead nowhere.

    Other APIs have errors of their own, and suites in `tests/apis`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        config = scripted_config(server={"auth": "none", "apis": []})
        with serve(config, plugins_with(scripted=scripted(["ok"], context_length=64))) as server:
            yield server


def answered(server: Server, method: str, path: str, sent: object = None, **args: Any) -> Any:
    """The answer to what is JSON, or bytes; it has to be one that clients understand."""
    if sent is not None:
        args["content"] = sent if isinstance(sent, bytes) else json.dumps(sent)
        args.setdefault("headers", {"Content-Type": "application/json"})
    response = server.http.request(method, path, **args)
    assert response.status_code != 500, (path, response.text[:500])
    if response.status_code >= 400 and not path.startswith("/health"):
        check(response, response.status_code)
        assert len(response.content) < 6000
    return response


def operations(server: Server) -> list[tuple[str, str]]:
    paths: dict[str, dict[str, Any]] = server.app.openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.mark.wing("llama_server", "tei")
def test_bodies_of_all_routes(open_to_all: Server) -> None:
    """Of whatever the new route is, `BODIES` has one that it takes."""
    routes = operations(open_to_all)
    assert {method for method, _ in routes} == {"GET", "POST"}
    assert {path for method, path in routes if method == "POST"} == set(BODIES)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_object(open_to_all: Server, path: str) -> None:
    path = path.format(model_id="nobody", request_id="nobody")
    for content in NOT_JSON:
        assert 400 <= answered(open_to_all, "POST", path, content).status_code < 600
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "a/b/c"):
        answered(open_to_all, "POST", path, b"a=1", headers={"Content-Type": kind})


@pytest.mark.wing("llama_server", "page", "tei")
@pytest.mark.parametrize("path", BODIES)
def test_wrong_values_of_every_field(open_to_all: Server, path: str) -> None:
    """Errors are about the field that is wrong, or about one that is missing then."""
    body, names = BODIES[path], fields_of(open_to_all, path)
    assert names >= body.keys()
    path = path.format(model_id="nobody", request_id="nobody")
    for name in sorted(names):
        for value in WRONG:
            response = answered(open_to_all, "POST", path, {**body, name: value})
            if response.status_code != 400:
                continue
            param = response.json()["error"]["param"]
            place = param and param.split("[")[0].split(".")[0]
            known = names | body.keys() | {"max_tokens"}  # which has other names, too
            assert place is None or place in known, (name, value, param)
    answered(open_to_all, "POST", "/v1/models/scripted/load", {"stream": False})
    still_answers(open_to_all)


def fields_of(server: Server, path: str) -> set[str]:
    """Names of the fields of a route's body."""
    document = server.app.openapi()
    body = document["paths"][path]["post"].get("requestBody")
    if body is None:
        return set()
    schema = body["content"]["application/json"]["schema"]
    branches = schema.get("anyOf", [schema])
    name = branches[0]["$ref"].rpartition("/")[2]
    return set(document["components"]["schemas"][name]["properties"])


def test_wrong_names_in_paths_and_queries(open_to_all: Server) -> None:
    for method, path in operations(open_to_all):
        for name in NAMES:
            asked = path.format(model_id=name, request_id=name)
            response = answered(open_to_all, method, asked)
            assert "x-a" not in response.headers
            if method == "GET":
                for prefix in ("model=", "model=a&model=", "model[]=", name + "="):
                    answered(open_to_all, "GET", f"{asked}?{prefix}{name}")
