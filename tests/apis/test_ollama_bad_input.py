"""Whatever is sent to Ollama's API: a 4xx with its error, which is a text, and no harm done."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.test_bad_input import JSON, NAMES, NOT_JSON, WRONG
from tests.apis.ollama_support import CHAT, GENERATE, ask, key_store, ollama_server, refused, user
from tests.support import Server

AS_JSON = {"Content-Type": "application/json"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "scripted", "messages": user("hi")},
    GENERATE: {"model": "scripted", "prompt": "hi"},
    "/api/show": {"model": "scripted"},
    "/api/pull": {"model": "scripted"},
    "/api/embed": {"model": "scripted", "input": "x"},
    "/api/embeddings": {"model": "scripted", "prompt": "x"},
}
FIELDS: dict[str, list[str]] = {
    CHAT: [
        *("model", "messages", "tools", "stream", "format", "think", "options", "keep_alive"),
        *("logprobs", "top_logprobs", "truncate", "template", "context", "shift"),
        *("temperature", "response_format", "max_tokens", "stop", "chat_template_kwargs"),
    ],
    GENERATE: [
        *("model", "prompt", "system", "suffix", "raw", "images", "stream", "format", "think"),
        *("options", "keep_alive", "logprobs", "top_logprobs", "truncate", "template", "context"),
    ],
    "/api/show": ["model", "name", "verbose"],
    "/api/pull": ["model", "name", "stream", "insecure"],
    "/api/embed": ["model", "input", "truncate", "dimensions", "options", "keep_alive", "user"],
    "/api/embeddings": ["model", "prompt", "options", "keep_alive"],
}
OPTIONS = [
    *("num_predict", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty"),
    *("repeat_last_n", "presence_penalty", "frequency_penalty", "typical_p", "tfs_z", "mirostat"),
    *("mirostat_tau", "mirostat_eta", "num_ctx", "num_keep", "", "foo", "logit_bias"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Downloads lead nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with ollama_server(engine={"context_length": 256}) as running:
            yield running


def post(server: Server, path: str, sent: object, **args: Any) -> httpx2.Response:
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    response = server.http.post(path, content=content, headers=AS_JSON, **args)
    assert response.status_code != 500, (path, sent, response.text)
    if response.status_code >= 400:
        error = refused(response, response.status_code)
        assert error
        assert len(response.content) < 6000
    return response


def still_answers(server: Server) -> None:
    assert ask(server, "hi")["message"]["content"] == "Hello, world"


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_object(server: Server, path: str) -> None:
    # OLL-6
    for content in NOT_JSON:
        assert post(server, path, content).status_code == 400
    assert refused(server.http.get(path), 405)
    for kind in ("text/plain", "multipart/form-data"):
        answer = server.http.post(path, content=b"a=1", headers={"Content-Type": kind})
        assert refused(answer, 400)


@pytest.mark.parametrize("path", BODIES)
def test_wrong_values_of_every_field(server: Server, path: str) -> None:
    for name in FIELDS[path]:
        for value in WRONG:
            if name == "keep_alive" and value == 0:
                continue
            post(server, path, {**BODIES[path], name: value})
    still_answers(server)


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_wrong_options_are_named_as_options(server: Server, path: str) -> None:
    for name in OPTIONS:
        for value in WRONG:
            body = {**BODIES[path], "options": {name: value}, "stream": False}
            answer = post(server, path, body)
            if answer.status_code == 400 and "JSON" not in answer.text:
                assert f"options.{name}" in answer.json()["error"], (name, value)
    still_answers(server)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"messages": 3}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "images": "x"}]}, "messages[0].images"),
        ({"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, "image"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_name": 3}]}, "messages[0].tool_name"),
        ({"messages": user("x"), "tools": {}}, "tools"),
        ({"messages": user("x"), "tools": [{}]}, "tools[0].function"),
        ({"messages": user("x"), "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"messages": user("x"), "format": "yaml"}, "format"),
        ({"messages": user("x"), "format": {"type": 3}}, "format"),
        ({"messages": user("x"), "think": "very"}, "think"),
        ({"messages": user("x"), "options": []}, "options"),
        ({"messages": user("x"), "options": {"num_predict": 1.5}}, "options.num_predict"),
        ({"messages": user("x"), "options": {"stop": [{}]}}, "options.stop"),
        ({"messages": user("x"), "keep_alive": {}}, "keep_alive"),
        ({"messages": user("x"), "overflow": "always"}, "overflow"),
        ({"messages": user("x"), "truncate": "perhaps"}, "truncate"),
        (
            {"messages": user("x"), "repetition_detection": {"max_pattern_size": 5}},
            "repetition_detection.min_count",
        ),
        ({"messages": user("x"), "top_logprobs": 21}, "top_logprobs"),
        ({"messages": user("x"), "top_logprobs": 2}, "top_logprobs"),
        ({"messages": user("x" * 1000)}, "maximum context length"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_say_what_is_wrong(
    server: Server, fields: dict[str, Any], error: str, stream: bool
) -> None:
    answer = post(server, CHAT, {"model": "scripted", "stream": stream, **fields})
    assert error in refused(answer, 400)
    assert "response_format" not in answer.text
    assert "max_tokens" not in answer.text


def test_unknown_routes_and_methods(server: Server) -> None:
    # OLL-6
    assert "no route" in refused(server.http.get("/api/nothing"), 404)
    assert "does not allow" in refused(server.http.put("/api/tags"), 405)
    assert "does not allow" in refused(server.http.post("/api/version"), 405)


def test_refusals_in_front_of_all_routes() -> None:
    # OLL-6
    settings = {"auth": "required", "max_request_bytes": 1000}
    with ollama_server(server=settings, keys=key_store()) as server:
        for path in (*BODIES, "/api/tags"):
            assert refused(server.http.get(path), 401)
        long = {"model": "scripted", "messages": user("x" * 2000)}
        answer = server.http.post(CHAT, json=long, headers={"x-api-key": "user"})
        assert refused(answer, 413)
        answer = server.http.post(CHAT, json=BODIES[CHAT], headers={"x-api-key": "other"})
        assert refused(answer, 404) == "model 'scripted' not found; available: none"


def test_unsupported_fields_are_refused_where_the_config_says_so() -> None:
    # OLL-18
    with ollama_server(server={"strict_params": True}) as server:
        for path, body in BODIES.items():
            field = (
                {"surprise": 1} if path in ("/api/show", "/api/pull") else {"options": {"foo": 1}}
            )
            answer = server.http.post(path, json={**body, **field})
            name = "surprise" if "surprise" in field else "options.foo"
            assert refused(answer) == f"unsupported parameters: {name}"
        loading = {**BODIES[CHAT], "options": {"num_ctx": 1}, "stream": False}
        assert server.http.post(CHAT, json=loading).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_any_name_of_a_model(server: Server, path: str) -> None:
    for name in (
        *NAMES,
        "hf.co/",
        "hf.co/a",
        "hf.co/a/b/c:d",
        "hf.co/../x",
        "hf.co/a/b:\0",
        ":latest",
    ):
        for stream in (False, True):
            answer = post(server, path, {**BODIES[path], "model": name, "stream": stream})
            assert answer.status_code >= 400 or '"error"' in answer.text


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_any_json_is_answered(server: Server, path: str, data: st.DataObject) -> None:
    fields = data.draw(st.dictionaries(st.sampled_from(FIELDS[path]), JSON, max_size=3))
    post(server, path, {**BODIES[path], **fields})


CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "function": st.fixed_dictionaries(
            {"name": JSON}, optional={"arguments": JSON, "index": JSON}
        ),
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional={
        "content": st.text(max_size=3) | JSON,
        "tool_calls": st.lists(CALLS, max_size=2),
        **dict.fromkeys(("thinking", "images", "tool_name", "tool_call_id", "x"), JSON),
    },
)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.dictionaries(st.sampled_from(OPTIONS), JSON))
def test_any_message_is_answered(server: Server, messages: Any, options: Any) -> None:
    post(server, CHAT, {"model": "scripted", "messages": messages, "options": options})
