"""Whatever is sent to `/v1/messages`: a 4xx as Anthropic has them, and a server that answers on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.keys import Key
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from tests.apis.messages_stream import MESSAGES, USER
from tests.support import Server, plugins_with, scripted, scripted_config, serve

COUNT = f"{MESSAGES}/count_tokens"
BODY = {"model": "scripted", "max_tokens": 9, "messages": USER}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all of them: none of these requests may do it harm."""
    plugins = plugins_with(scripted=scripted(["ok"], context_length=200))
    with serve(scripted_config(), plugins) as running:
        yield running


def check(response: httpx2.Response, status: int = 400, kind: str = "invalid_request_error") -> str:
    # MSG-19
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    assert response.headers["request-id"] == body["request_id"]
    assert body["request_id"].startswith("req_")
    message: str = body["error"]["message"]
    assert message
    return message


def still_answers(server: Server) -> None:
    response = server.http.post(MESSAGES, json=BODY)
    assert response.json()["content"] == [{"type": "text", "text": "ok"}]


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [*USER, {"role": role, "content": [*blocks]}]}


SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
        (said(3), "messages[1].content[0]"),
        (said({}), "messages[1].content[0]"),
        (said({"type": None}), "messages[1].content[0]"),
        (said({"type": ["text"]}), "messages[1].content[0]"),
        (said({"type": "robot"}), "messages[1].content[0]"),
        (said({"type": "text"}), "messages[1].content[0].text"),
        (said({"type": "text", "text": 5}), "messages[1].content[0].text"),
        (said({"type": "image"}), "messages[1].content[0].source"),
        (said({"type": "image", "source": {}}), "messages[1].content[0].source"),
        (said({"type": "image", "source": {"type": "x"}}), "messages[1].content[0].source"),
        (said({"type": "image", "source": {**SOURCE, "media_type": "a b"}}), "messages[1]"),
        (said({"type": "image", "source": {**SOURCE, "data": ""}}), "messages[1].content[0]"),
        (said({"type": "image", "source": SOURCE}), "messages[1].content[0]"),
        (said({"type": "image", "source": {"type": "url", "url": "x"}}), "messages[1].content[0]"),
        (
            said({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[1].content[0].source: this server keeps no files",
        ),
        (
            said({"type": "document", "source": {"type": "url", "url": "http://a.b/c.pdf"}}),
            "messages[1].content[0].source: this server neither fetches",
        ),
        (
            said({"type": "document", "source": {"type": "file", "file_id": "f"}}),
            "messages[1].content[0].source",
        ),
        (
            said({"type": "document", "source": {**SOURCE, "data": "JVBERi0AAA=="}}),
            "messages[1].content[0]",
        ),
        (
            said({"type": "document", "source": {"type": "content", "content": [CALL]}}),
            "messages[1].content[0].source.content[0]",
        ),
        (said({"type": "search_result"}), "messages[1].content[0].source"),
        (said(CALL), "messages[1].content[0].type: a tool_use block cannot be in a message"),
        (said({"type": "thinking", "thinking": "x"}), "messages[1].content[0].type"),
        (said(RESULT, role="assistant"), "messages[1].content[0].type"),
        (said(RESULT, role="system"), "messages[1].content[0].type"),
        (said({"type": "tool_result"}), "messages[1].content[0].tool_use_id"),
        (said({**RESULT, "content": 5}), "messages[1].content[0].content"),
        (said({**RESULT, "content": [CALL]}), "messages[1].content[0].content[0]"),
        (said({**CALL, "input": None}, role="assistant"), "messages[1].content[0].input"),
        (said({**CALL, "input": "{}"}, role="assistant"), "messages[1].content[0].input"),
        (said({**CALL, "id": ""}, role="assistant"), "messages[1].content[0].id"),
        (said({**CALL, "name": None}, role="assistant"), "messages[1].content[0].name"),
        (said(CALL, role="assistant"), "messages[1]: an answer cannot go on behind calls"),
        (
            said({"type": "text", "text": "a"}, CALL, role="assistant"),
            "messages[1]: an answer cannot go on behind calls",
        ),
        (
            said({"type": "thinking", "thinking": "x"}, role="assistant"),
            "messages[1]: an answer cannot go on behind thinking",
        ),
        ({"system": 5}, "system"),
        ({"system": {}}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [5]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"stream": "maybe"}, "stream"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
        ({"output_config": 5}, "output_config"),
        ({"output_config": {"effort": ""}}, "output_config.effort"),
        ({"output_config": {"effort": 5}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": 5}}, "output_format.schema"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"min_p": 5}, "min_p"),
        ({"seed": "x"}, "seed"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": "x" * 500}]},
            "prompt is too long: 518 tokens > 200 maximum",
        ),
    ],
)
def test_wrong_bodies(server: Server, body: dict[str, Any], place: str) -> None:
    # MSG-19
    for stream in (False, True):
        message = check(server.http.post(MESSAGES, json={**BODY, "stream": stream, **body}))
        assert message.startswith(place)
    still_answers(server)


@pytest.mark.parametrize("content", ["", [], [{"type": "redacted_thinking", "data": "x"}]])
def test_messages_that_say_nothing(server: Server, content: Any) -> None:
    messages = [{"role": "assistant", "content": content}]
    for path in (MESSAGES, COUNT):
        response = server.http.post(path, json={**BODY, "messages": messages})
        assert check(response) == "messages: none of them says anything"


@pytest.mark.parametrize("field", ["tool_choice", "thinking", "metadata", "messages[0]"])
def test_what_is_no_object(server: Server, field: str) -> None:
    body = {"messages": [3]} if field == "messages[0]" else {field: 3}
    message = check(server.http.post(MESSAGES, json={**BODY, **body}))
    assert message == f"{field}: Input should be an object"


@pytest.mark.parametrize("field", ["model", "messages", "max_tokens"])
def test_what_is_required(server: Server, field: str) -> None:
    # MSG-26
    body = {name: value for name, value in BODY.items() if name != field}
    assert check(server.http.post(MESSAGES, json=body)).startswith(field)
    response = server.http.post(COUNT, json=body)
    if field == "max_tokens":
        assert response.json().keys() == {"input_tokens"}
    else:
        assert check(response).startswith(field)


def test_counting_has_the_same_errors_and_no_limit_of_length(server: Server) -> None:
    assert check(server.http.post(COUNT, json={**BODY, **said({})})).startswith("messages[1]")
    assert check(server.http.post(COUNT, json={**BODY, "system": 5})).startswith("system")
    long = {**BODY, "messages": [{"role": "user", "content": "x" * 500}]}
    assert server.http.post(COUNT, json=long).json()["input_tokens"] > 500
    longer = {**BODY, "messages": [{"role": "user", "content": "x" * 50_000}]}
    check(server.http.post(COUNT, json=longer))


def test_places_in_a_chat_are_told_as_places_of_the_request(server: Server) -> None:
    picture = {"type": "image", "source": SOURCE}
    blocks = [{"type": "text", "text": "a"}, {**RESULT, "content": [picture]}]
    messages = [*USER, {"role": "assistant", "content": [CALL]}, {"role": "user"}]
    messages[2]["content"] = [{"type": "text", "text": "b"}]
    messages.append({"role": "user", "content": blocks})
    response = server.http.post(MESSAGES, json={**BODY, "system": "s", "messages": messages})
    assert check(response).startswith("messages[3].content[1].content[0]: ")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/batches", 404, "not_found_error"),
        ("GET", f"{MESSAGES}/batches/x", 404, "not_found_error"),
        ("POST", f"{MESSAGES}/count", 404, "not_found_error"),
    ],
)
def test_other_routes(server: Server, method: str, path: str, status: int, kind: str) -> None:
    check(server.http.request(method, path), status, kind)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_unknown_models(server: Server, path: str) -> None:
    check(server.http.post(path, json={**BODY, "model": "gone"}), 404, "not_found_error")


def test_every_answer_has_its_id_in_a_header(server: Server) -> None:
    for path in (MESSAGES, f"{MESSAGES}?beta=true", "/messages", COUNT):
        headers = {"X-Request-Id": "mine"}
        response = server.http.post(path, json=BODY, headers=headers)
        assert response.headers["request-id"] == "req_mine"
    streamed = server.http.post(MESSAGES, json={**BODY, "stream": True})
    assert streamed.headers["request-id"].startswith("req_")


KEY = "key-" * 8


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    plugins = plugins_with(scripted=scripted(["ok"]))
    keys = KeyStore(Path("none"), [Key("me", digest_of(KEY), requests_per_minute=3)])
    config = scripted_config(server={"auth": "required", "max_request_bytes": 2000})
    with serve(config, plugins, keys=keys) as running:
        yield running


def test_keys_and_limits(guarded: Server) -> None:
    # MSG-19 MSG-20
    check(guarded.http.post(MESSAGES, json=BODY), 401, "authentication_error")
    wrong = {"x-api-key": "wrong"}
    check(guarded.http.post(MESSAGES, json=BODY, headers=wrong), 401, "authentication_error")
    for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert guarded.http.post(MESSAGES, json=BODY, headers=headers).status_code == 200
        for _ in range(5):
            counted = guarded.http.post(COUNT, json=BODY, headers=headers)
            assert counted.status_code == 200
    headers = {"x-api-key": KEY}
    guarded.http.post(MESSAGES, json=BODY, headers=headers)
    limited = guarded.http.post(MESSAGES, json=BODY, headers=headers)
    check(limited, 429, "rate_limit_error")
    assert limited.headers["retry-after"]
    large = {**BODY, "system": "x" * 3000}
    check(guarded.http.post(COUNT, json=large, headers=headers), 413, "request_too_large")


def test_what_has_no_effect_is_refused_where_the_config_says_so() -> None:
    plugins = plugins_with(scripted=scripted(["ok"]))
    with serve(scripted_config(server={"strict_params": True}), plugins) as server:
        assert server.http.post(MESSAGES, json=BODY).status_code == 200
        search = {"type": "web_search_20250305", "name": "web_search"}
        body = {**BODY, **said({"type": "text", "text": "a", "made_up": 1}), "tools": [search]}
        message = check(server.http.post(MESSAGES, json=body))
    assert "messages[1].content[0].made_up, tools[0]" in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe\x00",
        b'{"model":"scripted","max_tokens":5,"messages":[{"role":"user","content":"\xff"}]}',
        b'{"model": "scripted", "max_tokens": 5, "messages": '
        + b"[" * 50_000
        + b"]" * 50_000
        + b"}",
        b'{"model": "scripted", "max_tokens": ' + b"9" * 5000 + b', "messages": []}',
    ],
)
def test_broken_json(server: Server, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (MESSAGES, COUNT):
        check(server.http.post(path, content=content, headers=headers))
    still_answers(server)


@pytest.mark.parametrize("depth", [50, 400, 850, 900, 950, 990, 2000])
def test_nested_input(server: Server, depth: int) -> None:
    nested = '{"a": ' * depth + "1" + "}" * depth
    call = f'{{"type": "tool_use", "id": "t", "name": "f", "input": {nested}}}'
    result = json.dumps({"role": "user", "content": [RESULT]})
    content = (
        f'{{"model": "scripted", "max_tokens": 5, "messages": [{json.dumps(USER[0])}, '
        f'{{"role": "assistant", "content": [{call}]}}, {result}]}}'
    )
    response = server.http.post(MESSAGES, content=content)
    if response.status_code != 200:
        check(response)


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
ANY = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(
    [
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "server_tool_use", "base64", "url", "content", "file"),
        *("custom", "auto", "any", "tool", "none", "enabled", "adaptive", "json_schema"),
    ]
)
KEYS = st.sampled_from(
    [
        *("text", "source", "content", "thinking", "id", "name", "input", "tool_use_id", "data"),
        *("media_type", "url", "is_error", "title", "input_schema", "budget_tokens", "schema"),
        *("cache_control", "citations", "format", "effort", "user_id", "strict"),
    ]
)
OBJECTS = st.recursive(
    st.builds(lambda kind, more: {**more, "type": kind}, TYPES, st.dictionaries(KEYS, ANY)),
    lambda inner: st.builds(
        lambda kind, more: {**more, "type": kind},
        TYPES,
        st.dictionaries(KEYS, inner | st.lists(inner, max_size=2), max_size=4),
    ),
    max_leaves=4,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text() | st.lists(OBJECTS, max_size=3),
    }
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE, max_size=4) | ANY,
        "max_tokens": st.integers(-2, 5) | ANY,
        "system": st.text() | st.lists(OBJECTS, max_size=2) | ANY,
        "stop_sequences": st.lists(st.text(), max_size=2) | ANY,
        "tools": st.lists(OBJECTS, max_size=3) | ANY,
        "tool_choice": OBJECTS | ANY,
        "thinking": OBJECTS | ANY,
        "output_config": st.dictionaries(KEYS, OBJECTS | ANY, max_size=2) | ANY,
        "output_format": OBJECTS | ANY,
        "metadata": ANY,
        "stream": st.booleans(),
        "temperature": ANY,
    },
)


@given(fields=FIELDS, counts=st.booleans())
def test_any_body_is_answered_or_refused(
    server: Server, fields: dict[str, Any], counts: bool
) -> None:
    content = json.dumps({**BODY, **fields})
    response = server.http.post(COUNT if counts else MESSAGES, content=content)
    if response.status_code != 200:
        check(response)


@given(body=ANY)
def test_any_json_is_answered_or_refused(server: Server, body: Any) -> None:
    for path in (MESSAGES, COUNT):
        check(server.http.post(path, content=json.dumps(body)))
