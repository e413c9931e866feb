"""Half an emoji anywhere in a request: U+FFFD stands in its place. ANS-5"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.schemas.half_characters import WholeJson, whole, whole_json
from tests.apis.ollama_support import TEMPLATE
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT = "/v1/chat/completions"
HEADER = "X-Unsupported-Params"
AS_JSON = {"Content-Type": "application/json"}
HALVES = ["\ud83d", "\ude00", "a\udfffb", "\ud83dx\ude00"]
USER: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    backend = scripted(lambda prompt, index: [prompt], chat_template=TEMPLATE)
    config = scripted_config(tools="hermes", reasoning="none")
    with serve(config, plugins_with(scripted=backend)) as running:
        yield running


def post(server: Server, path: str, body: Any, *, expect: int = 200) -> Any:
    response = server.http.post(path, content=json.dumps(body), headers=AS_JSON)
    assert response.status_code == expect, response.text
    response.text.encode()
    return response


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(server: Server, half: str, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": f"so {half}"}], "stream": stream}
    response = post(server, CHAT, body)
    assert response.headers[HEADER] == "messages[0].content"
    assert "so " in response.text
    assert "\ufffd" in response.text or "\\ufffd" in response.text


CALL = {"name": "f", "arguments": json.dumps({"a": "\ud83d", "b": "\U0001f600"})}
CHATS: list[tuple[str, Any]] = [
    ("messages[0].content", {"messages": [{"role": "system", "content": "\ud83d"}, *USER]}),
    ("messages[0].name", {"messages": [{**USER[0], "name": "\ud83d"}]}),
    ("messages[0].content[0].text", {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}]}),
    ("messages[0].reasoning_content", {"messages": [
        {"role": "assistant", "content": "x", "reasoning_content": "\ud83d"}, *USER]}),
    ("messages[1].tool_calls[0].function.arguments", {"messages": [
        *USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": CALL}]}]}),
    ("messages[1].tool_calls[0].function.arguments.a", {"messages": [
        *USER, {"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": {"a": "\ud83d"}}}]}]}),
    ("messages[1].tool_calls[0].function.arguments", {"messages": [
        *USER, {"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": {"\ud83d": 1}}}]}]}),
    ("tools[0].function.description", {"messages": USER, "tools": [
        {"function": {"name": "f", "description": "\ud83d"}}]}),
    ("tools[0].function.parameters.properties", {"messages": USER, "tools": [
        {"function": {"name": "f", "parameters": {"type": "object", "properties": {
            "\ud83d": {"type": "string"}}}}}]}),
    ("stop[0]", {"messages": USER, "stop": ["\ud83d"]}),
    ("stop", {"messages": USER, "stop": "\ud83d"}),
    ("metadata.a", {"messages": USER, "metadata": {"a": "\ud83d"}}),
    ("user", {"messages": USER, "user": "\ud83d"}),
    ("guided_choice[0]", {"messages": USER, "guided_choice": ["\ud83d", "b"]}),
    ("guided_json", {"messages": USER, "guided_json": json.dumps({"const": "\ud83d"})}),
    ("json_schema.enum[0]", {"messages": USER, "json_schema": {"enum": ["\ud83d"]}}),
    ("regex_pattern", {"messages": USER, "regex_pattern": "\ud83d"}),
    ("grammar", {"messages": USER, "grammar": 'root ::= "\ud83d"'}),
    ("chat_template_kwargs.x", {"messages": USER, "chat_template_kwargs": {"x": "\ud83d"}}),
    ("response_prefix", {"messages": USER, "response_prefix": "\ud83d"}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "body"), CHATS)
def test_places_of_a_chat(server: Server, place: str, body: Any) -> None:
    response = post(server, f"{CHAT}/explain", body)
    assert place in response.headers[HEADER].split(", ")
    post(server, CHAT, {**body, "max_tokens": 1})


@pytest.mark.wing("kobold", "llama_server", "messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "place", "body"),
    [
        ("/v1/completions", "prompt", {"prompt": "a\ud83d"}),
        ("/v1/completions", "prompt[1]", {"prompt": ["a", "\ud83d"]}),
        ("/tokenize", "messages[0].content", {"messages": [{"content": "\ud83d"}]}),
        ("/tokenize", "prompt", {"prompt": "\ud83d"}),
        ("/tokenize", "content", {"content": "\ud83d"}),
        ("/apply-template", "messages[0].content", {"messages": [{"content": "\ud83d"}]}),
        ("/v1/token/encode", "text", {"text": "\ud83d"}),
        ("/api/v1/generate", "prompt", {"prompt": "\ud83d", "max_length": 1}),
        ("/api/extra/tokencount", "prompt", {"prompt": "\ud83d"}),
        ("/api/generate", "prompt", {"model": "scripted", "prompt": "\ud83d", "stream": False}),
        ("/api/chat", "messages[0].content", {
            "model": "scripted", "messages": [{"role": "user", "content": "\ud83d"}]}),
        ("/v1/responses", "input", {"model": "scripted", "input": "\ud83d"}),
        ("/v1/responses", "instructions", {
            "model": "scripted", "input": "x", "instructions": "\ud83d"}),
        ("/v1/responses", "metadata.a", {
            "model": "scripted", "input": "x", "metadata": {"a": "\ud83d"}}),
        ("/v1/responses", "input[1].arguments", {"model": "scripted", "input": [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "1", **CALL},
            {"type": "function_call_output", "call_id": "1", "output": "y"}]}),
        ("/v1/messages", "system", {
            "model": "scripted", "max_tokens": 9, "messages": USER, "system": "\ud83d"}),
        ("/v1/messages/count_tokens", "system", {
            "model": "scripted", "messages": USER, "system": "\ud83d"}),
        ("/v1/messages", "messages[1].content[0].input.a", {
            "model": "scripted", "max_tokens": 9, "messages": [
                *USER,
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "\ud83d"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "\ud83d"}]}]}),
    ],
)  # fmt: skip
def test_other_routes(server: Server, path: str, place: str, body: Any) -> None:
    assert place in post(server, path, body).headers[HEADER].split(", ")


def test_arguments_keep_everything_else(server: Server) -> None:
    said = json.dumps({"a": "\ud83d", "b": "\U0001f600", "c": "\\ud83d", "d": 1.50, "e": "\ude00"})
    call = {"id": "1", "function": {"name": "f", "arguments": said}}
    body = {"messages": [*USER, {"role": "assistant", "tool_calls": [call]}]}
    prompt = post(server, f"{CHAT}/explain", body).json()["prompt"]
    for kept in ('"a": "\ufffd"', '"b": "\U0001f600"', '"d": 1.5', '"e": "\ufffd"'):
        assert kept in prompt
    assert r'"c": "\\ud83d"' in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_about_escapes_is_unchanged(server: Server, stream: bool) -> None:
    text = r'JSON has {"a": "\ud83d"} and \ude00'
    response = post(server, f"{CHAT}/explain", {"messages": [{"role": "user", "content": text}]})
    assert text in response.json()["prompt"]
    assert HEADER not in response.headers


@pytest.mark.wing("messages", "ollama")
def test_a_call_in_an_answer_loses_nothing() -> None:
    arguments = r'{"a": "\ud83d", "b": "\ud83d\ude00", "c": 1}'
    call = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    backend = scripted([call], chat_template=TEMPLATE, constraints=False)
    expected = {"a": "\ufffd", "b": "\U0001f600", "c": 1}
    function = {"name": "f", "parameters": {"type": "object"}}
    with serve(scripted_config(tools="hermes"), plugins_with(scripted=backend)) as server:
        asked = {"model": "scripted", "messages": USER, "stream": False}
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        said = post(server, "/v1/messages", {**asked, "max_tokens": 999, "tools": tools}).json()
        assert said["content"][-1]["input"] == expected
        tools = [{"type": "function", "function": function}]
        said = post(server, "/api/chat", {**asked, "tools": tools}).json()
        assert said["message"]["tool_calls"][0]["function"]["arguments"] == expected


def test_strict_servers_refuse_it() -> None:
    config = scripted_config(server={"strict_params": True})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        body = {"messages": [{"role": "user", "content": "\ud83d"}]}
        error = post(server, CHAT, body, expect=400).json()["error"]
        assert error["param"] == "messages[0].content"


@pytest.mark.parametrize("raw", [b"\xed\xa0\xbd", b"\xff", b"\xc3"])
def test_a_body_that_is_not_utf8_is_refused(server: Server, raw: bytes) -> None:
    body = b'{"messages": [{"role": "user", "content": "' + raw + b'"}]}'
    response = server.http.post(CHAT, content=body, headers=AS_JSON)
    assert response.status_code == 400
    assert "not valid UTF-8" in response.text


TEXTS = st.text(st.characters(exclude_categories=()), max_size=5)
HALF = st.sampled_from(["\ud83d", "\ude00"])
JSONS = st.recursive(
    st.none() | st.integers() | TEXTS | HALF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | HALF, inner, max_size=3),
)


def size(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(size, parts))


@given(JSONS)
def test_nothing_but_halves_changes(value: Any) -> None:
    sent = json.dumps(value)
    changed, places = whole(json.loads(sent), shared=True)
    json.dumps(changed, ensure_ascii=False).encode()
    assert size(changed) == size(value)
    clean = json.dumps(json.loads(sent), ensure_ascii=False)
    if clean.isascii() and "\\" not in clean:
        assert (changed, places) == (value, [])


@given(st.dictionaries(TEXTS, TEXTS), st.booleans())
def test_json_text_stays_json(value: dict[str, str], ascii: bool) -> None:
    text = whole_json(json.dumps(value, ensure_ascii=ascii))
    text.encode()
    read = json.loads(text)
    json.dumps(read, ensure_ascii=False).encode()
    fixed, _ = whole(value, shared=True)
    assert list(read.values())[-1:] == list(fixed.values())[-1:]


CUTS = r'{"a": "\ud83d", "b": "\ud83d\ude00", "c": "\\ud83d\\", "d": "\u00e9\ude00\ud83d\n"}'


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("end", range(len(CUTS) + 1))
def test_json_in_pieces_is_json_at_once(size: int, end: int) -> None:
    text = CUTS[:end]
    reader = WholeJson()
    pieces = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join([*pieces, reader.finish()]) == whole_json(text)


@pytest.mark.wing("messages")
def test_a_streamed_call_can_be_read() -> None:
    call = f'<tool_call>{{"name": "f", "arguments": {CUTS}}}</tool_call>'
    backend = scripted(list(call), chat_template=TEMPLATE, constraints=False)
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    with serve(scripted_config(tools="hermes"), plugins_with(scripted=backend)) as server:
        client = Anthropic(base_url=server.url, api_key="none", max_retries=0)
        with client.messages.stream(
            model="scripted", max_tokens=999, messages=USER, tools=tools
        ) as stream:
            said = stream.get_final_message()
        client.close()
    [block] = [block for block in said.content if block.type == "tool_use"]
    assert block.input == json.loads(whole_json(CUTS))
