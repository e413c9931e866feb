"""Whatever is sent to `/v1/responses`: a 4xx with OpenAI's error, and a server that answers."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay_responses.request_bodies import ResponsesRequest
from tests.api.test_bad_input import NAMES, NOT_JSON, WRONG
from tests.apis.response_events import PATH, Saying, checked, error_of, saying

AS_JSON = {"Content-Type": "application/json"}
CALL = {"type": "function_call", "call_id": "c", "name": "f"}
TOOL = {"type": "function", "name": "f"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture(scope="module")
def at() -> Iterator[Saying]:
    with saying(engine={"context_length": 2000}) as server:
        yield server


def still_answers(at: Saying) -> None:
    assert at.whole("hi")["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [None]}, "input[0]"),
        ({"input": [{}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["hi"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        (
            {
                "instructions": "x",
                "input": [{"role": "user", "content": [{"type": "input_file"}]}],
            },
            "input[0].content[0]",
        ),
        ({"input": [{"type": "made_up"}]}, "input[0]"),
        ({"input": [{"type": 3}]}, "input[0]"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name"),
        ({"input": [{**CALL, "arguments": [3]}]}, "input[0].arguments"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
        ),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
        (
            {
                "input": [
                    CALL,
                    {"type": "function_call_output", "call_id": "c", "output": [{"type": "x"}]},
                ]
            },
            "input[1].output[0].type",
        ),
        ({"input": "hi", "model": 3}, "model"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "hi", "max_output_tokens": "many"}, "max_output_tokens"),
        ({"input": "hi", "temperature": -1}, "temperature"),
        ({"input": "hi", "temperature": "hot"}, "temperature"),
        ({"input": "hi", "top_p": 2}, "top_p"),
        ({"input": "hi", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "hi", "min_p": 3}, "min_p"),
        ({"input": "hi", "stream": "perhaps"}, "stream"),
        ({"input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
            "text.format.schema",
        ),
        ({"input": "hi", "reasoning": {"effort": ""}}, "reasoning.effort"),
        ({"input": "hi", "reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"input": "hi", "truncation": "always"}, "truncation"),
        ({"input": "hi", "overflow": "always"}, "overflow"),
        ({"input": "hi", "metadata": {"a": 3}}, "metadata.a"),
        ({"input": "hi", "metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"input": "hi", "metadata": {"a" * 65: ""}}, "metadata." + "a" * 65),
        ({"input": "hi", "metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"input": "hi", "tools": {}}, "tools"),
        ({"input": "hi", "tools": [{}]}, "tools[0].type"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "hi", "tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters"),
        (
            {"input": "hi", "tools": [TOOL, {**TOOL, "parameters": {"type": "object"}}]},
            "tools[1].name",
        ),
        ({"input": "hi", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        (
            {"input": "hi", "tools": [{"type": "namespace", "name": "n", "tools": [{}]}]},
            "tools[0].tools[0].type",
        ),
        ({"input": "hi", "tool_choice": "perhaps"}, "tool_choice"),
        ({"input": "hi", "tool_choice": 3}, "tool_choice"),
        ({"input": "hi", "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ({"input": "hi", "include": "all"}, "include"),
        ({"input": "hi", "previous_response_id": 3}, "previous_response_id"),
        ({"input": "hi", "chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_wrong_bodies(at: Saying, body: Any, param: str) -> None:
    for path in (PATH, f"{PATH}/input_tokens"):
        if path != PATH and param in ("text.format.schema", "top_p", "min_p", "tools[1].name"):
            continue  # which are seen only where an answer is planned
        error = error_of(at.server.http.post(path, json=body))
        assert error["param"] == param
        assert "messages" not in error["message"]
    error_of(at.server.http.post(PATH, json={**body, "stream": body.get("stream", True)}))
    still_answers(at)


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"role": "user", "content": "hi", "made_up": float("nan")}]},
        {"input": "hi", "tools": [{**TOOL, "parameters": {"a": float("inf")}}]},
        {"input": "hi", "text": {"a": nested(700)}},
        {"input": "hi", "tools": [{**TOOL, "parameters": {"a": nested(300)}}]},
        {"input": [{"role": "user", "content": "hi", "made_up": nested(300)}]},
    ],
)
def test_what_cannot_be_sent_back(at: Saying, body: Any) -> None:
    for stream in (False, True):
        content = json.dumps({**body, "stream": stream})
        error_of(at.server.http.post(PATH, content=content, headers=AS_JSON))


@pytest.mark.parametrize("path", [PATH, f"{PATH}/input_tokens"])
def test_wrong_values_of_every_field(at: Saying, path: str) -> None:
    """Errors are about the field that is wrong."""
    for name in ResponsesRequest.model_fields:
        for value in WRONG:
            content = json.dumps({"input": "hi", name: value})
            response = at.server.http.post(path, content=content, headers=AS_JSON)
            assert response.status_code == 200 or 400 <= response.status_code < 500, (name, value)
            if response.status_code == 400:
                param = error_of(response)["param"]
                # A prompt that is too long is the whole input's fault.
                assert param is None or re.split(r"[.\[]", param)[0] in (name, "input"), param
    still_answers(at)


@pytest.mark.parametrize("path", [PATH, f"{PATH}/input_tokens"])
def test_what_is_no_object(at: Saying, path: str) -> None:
    for content in NOT_JSON:
        error_of(at.server.http.post(path, content=content, headers=AS_JSON))


def test_wrong_names_in_paths_and_queries(at: Saying) -> None:
    for name in NAMES:
        for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            response = at.server.http.request(method, f"{PATH}/{name}{rest}")
            assert "x-a" not in response.headers
            assert 400 <= response.status_code < 500
            error_of(response, response.status_code)
        for query in ("limit", "order", "after", "stream", "include[]", name):
            path = f"{PATH}/resp_nobody/input_items?{query}={name}"
            response = at.server.http.get(path)
            assert 400 <= response.status_code < 500


@pytest.mark.parametrize("depth", range(246, 256))
def test_what_is_just_deep_enough_is_answered(at: Saying, depth: int) -> None:
    is_answered(at, {"input": "hi", "text": {"a": nested(depth)}})
    is_answered(at, {"input": "hi", "text": {"a": nested(depth)}, "stream": True})


def test_unknown_model(at: Saying) -> None:
    assert error_of(at.post("hi", model="nobody"), 404)["code"] == "model_not_found"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KINDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "item_reference", "web_search_call", "made_up"),
    ]
)
TEXTS = st.text(max_size=3) | JSON
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image", "x"])},
    optional=dict.fromkeys(("text", "refusal", "image_url", "detail", "annotations"), TEXTS),
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]),
        "content": st.lists(PARTS, max_size=2) | TEXTS,
        "summary": st.lists(PARTS, max_size=2) | JSON,
        "call_id": st.just("c") | JSON,
        "name": st.just("f") | JSON,
        **dict.fromkeys(("id", "encrypted_content", "arguments", "input", "output"), TEXTS),
        **dict.fromkeys(("status", "phase", "namespace", "made_up"), JSON),
    },
)
TOOLS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["function", "custom", "namespace", "web_search"]),
        "name": st.sampled_from(["f", "g", ""]),
        "tools": st.lists(st.fixed_dictionaries({}, optional={"type": KINDS, "name": JSON})),
        **dict.fromkeys(("parameters", "format", "description", "strict"), JSON),
    },
)
FIELDS = st.sampled_from(sorted(ResponsesRequest.model_fields))


def is_answered(at: Saying, body: dict[str, Any]) -> None:
    content = json.dumps(body)
    for path in (PATH, f"{PATH}/input_tokens"):
        response = at.server.http.post(path, content=content, headers=AS_JSON)
        if response.status_code == 200:
            if "event-stream" in response.headers["content-type"]:
                checked(response.text)
            else:
                response.json()
        else:
            assert 400 <= response.status_code < 500, (body, response.text)
            error_of(response, response.status_code)


@given(st.dictionaries(FIELDS, JSON, max_size=3), st.just("hi") | JSON)
def test_any_json_is_answered(at: Saying, fields: dict[str, Any], input: Any) -> None:
    is_answered(at, {"input": input, **fields})


@given(st.lists(ITEMS, max_size=3), st.lists(TOOLS, max_size=2), st.booleans())
def test_any_items_and_tools_are_answered(at: Saying, items: Any, tools: Any, stream: bool) -> None:
    is_answered(at, {"input": items, "tools": tools, "stream": stream, "max_output_tokens": 5})


@given(st.text(max_size=20), st.sampled_from(["", "/input_items", "/cancel"]))
def test_any_id_is_answered(at: Saying, id: str, rest: str) -> None:
    path = f"{PATH}/{quote(id or 'x', safe='', errors='replace')}{rest}"
    for method in ("GET", "DELETE", "POST"):
        response = at.server.http.request(method, path)
        assert 400 <= response.status_code < 500 or response.status_code == 307
