"""What the bodies of `/v1/messages` come to: the chat that the template sees, and its settings."""

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest
from enginebay.testing import ScriptedEngine
from enginebay.testing.media import MEDIA
from tests.apis.messages_stream import MESSAGES, USER, ask
from tests.media.samples import picture
from tests.support import Server, engine_backend, plugins_with, scripted, scripted_config, serve

# Shows all it is given, a JSON value a line.
TEMPLATE = (
    "{% for message in messages %}{{ message | tojson }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{{ [enable_thinking | default(none), reasoning_effort | default(none)] | tojson }}\n"
    "{% if add_generation_prompt %}>{% endif %}"
)
ROLES = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Echo(ScriptedEngine):
    """Says its prompt, and remembers what it was asked."""

    asked: GenerationRequest

    def __init__(self, template: str) -> None:
        super().__init__(lambda prompt, index: [prompt], chat_template=template, media=["image"])

    def add_request(self, request: GenerationRequest) -> None:
        self.asked = request
        super().add_request(request)


@pytest.fixture(scope="module")
def engine() -> Echo:
    return Echo(TEMPLATE)


@pytest.fixture(scope="module")
def server(engine: Echo) -> Iterator[Server]:
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    with serve(scripted_config(reasoning="think"), plugins) as running:
        yield running


@pytest.fixture(scope="module")
def by_roles() -> Iterator[Server]:
    plugins = plugins_with(scripted=engine_backend(lambda: Echo(ROLES)))
    with serve(scripted_config(), plugins) as running:
        yield running


def prompt(server: Server, **body: Any) -> list[Any]:
    """The values that the template was given."""
    text = ask(server, **body)["content"][0]["text"]
    return [json.loads(line) for line in text.splitlines() if line != ">"]


def chat(server: Server, *messages: tuple[str, Any], **body: Any) -> list[Any]:
    """The messages that the template was given for these."""
    sent = [{"role": role, "content": content} for role, content in messages]
    return prompt(server, messages=sent, **body)[:-1]


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.", "Be brief."),
        ([{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}], "Be\nbrief."),
        ("", None),
        ([], None),
        (None, None),
        # MSG-17
        ("x-anthropic-billing-header: cc_version=2; cch=a1;\nBe brief.", "Be brief."),
        (
            [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=b2;"},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            ],
            "Be brief.",
        ),
        ("x-anthropic-billing-header: a", None),
        ("About x-anthropic-billing-header: a", "About x-anthropic-billing-header: a"),
    ],
)
def test_system(server: Server, system: Any, text: str | None) -> None:
    # MSG-16
    expected = [{"role": "system", "content": text}] if text else []
    assert chat(server, ("user", "hi"), system=system) == [*expected, *USER]


def test_system_in_the_middle(server: Server) -> None:
    # MSG-16
    sent = [("user", "a"), ("system", "b"), ("user", [{"type": "text", "text": "c"}])]
    assert chat(server, *sent) == [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_neighbours_of_a_role_are_one_turn(server: Server) -> None:
    sent = [("user", "a"), ("user", [{"type": "text", "text": "b"}]), ("assistant", "c")]
    assert chat(server, *sent, ("assistant", "d"), ("user", "e")) == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c\n\nd"},
        {"role": "user", "content": "e"},
    ]


RESULT = {"type": "tool_result", "tool_use_id": "t1"}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}, "caller": {"type": "x"}}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": "ok"}, "ok"),
        ({"content": [{"type": "text", "text": "o"}, {"type": "text", "text": "k"}]}, "ok"),
        ({}, ""),
        ({"content": []}, ""),
        ({"is_error": True}, "error"),
        ({"is_error": True, "content": ""}, "error"),
        ({"is_error": True, "content": "it broke"}, "it broke"),
        (
            {"content": [{"type": "search_result", "source": "s", "title": "T", "content": []}]},
            "T\n",
        ),
    ],
)
def test_results_of_tools(server: Server, result: dict[str, Any], text: str) -> None:
    # MSG-15
    block = {"type": "tool_result", "tool_use_id": "t1", **result}
    turn = [{"type": "text", "text": "and"}, block]
    sent = chat(server, ("user", "go"), ("assistant", [CALL]), ("user", turn))
    function = {"name": "f", "arguments": {"a": 1}}
    assert sent[1]["tool_calls"] == [{"id": "t1", "type": "function", "function": function}]
    assert sent[2] == {"role": "tool", "tool_call_id": "t1", "name": "f", "content": text}
    assert sent[3:] == [{"role": "user", "content": "and"}]
    assert chat(server, ("user", "go"), ("assistant", [CALL]), ("user", [block]))[2:] == [sent[2]]


TEXTS = st.text("abc\n", min_size=1, max_size=3)
BLOCKS = {
    "user": st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
        st.builds(lambda text: {**RESULT, "content": text}, TEXTS),
    ),
    "assistant": st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
        st.builds(lambda text: {"type": "thinking", "thinking": text}, TEXTS),
        st.just(CALL),
    ),
    "system": st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
}
CONVERSATIONS = st.lists(
    st.sampled_from(list(BLOCKS)).flatmap(
        lambda role: st.tuples(
            st.just(role), TEXTS | st.lists(BLOCKS[role], min_size=1, max_size=3)
        )
    ),
    max_size=5,
)


def texts(content: Any) -> str:
    """All texts of a content, without white space."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "".join("".join(b["text"] for b in blocks if b["type"] == "text").split())


@given(sent=CONVERSATIONS)
def test_all_that_is_said_reaches_the_template_in_its_order(
    server: Server, sent: list[tuple[str, Any]]
) -> None:
    got = chat(server, *sent, ("user", "end"), max_tokens=4000)
    for role in ("user", "assistant", "system"):
        said = "".join(texts(content) for who, content in sent if who == role)
        said += "end" if role == "user" else ""
        assert "".join(texts(m.get("content", "")) for m in got if m["role"] == role) == said
    blocks = [b for _, content in sent if isinstance(content, list) for b in content]
    assert sum(len(m.get("tool_calls", ())) for m in got) == blocks.count(CALL)
    results = [b["content"] for b in blocks if b["type"] == "tool_result"]
    assert [m["content"] for m in got if m["role"] == "tool"] == results
    thought = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
    assert "".join(m.get("reasoning_content", "") for m in got) == thought
    roles = [m["role"] for m in got if m["role"] != "tool"]
    assert all(a != b for a, b in pairwise(roles)) or results


def test_thinking_is_taken_back(server: Server) -> None:
    # MSG-12
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": "whatever"},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "text", "text": "Yes.", "citations": None},
    ]
    response = server.http.post(
        MESSAGES,
        json={
            "model": "scripted",
            "max_tokens": 999,
            "messages": [*USER, {"role": "assistant", "content": answer}, *USER],
        },
    )
    [_, sent, *_] = map(json.loads, response.json()["content"][0]["text"].splitlines()[:2])
    assert (sent["reasoning_content"], sent["content"]) == ("Hm.", "Yes.")
    assert "x-unsupported-params" not in response.headers


@pytest.mark.parametrize(
    ("last", "end"),
    [
        ("It is", "<assistant>It is"),
        ([{"type": "text", "text": "It"}, {"type": "text", "text": " is"}], "<assistant>It is"),
        ("", "<assistant>"),
        ([], "<assistant>"),
        ([{"type": "redacted_thinking", "data": ""}], "<assistant>"),
    ],
)
def test_an_answer_that_was_begun_goes_on(by_roles: Server, last: Any, end: str) -> None:
    # MSG-18
    messages = [*USER, {"role": "assistant", "content": last}]
    text = ask(by_roles, messages=messages)["content"][0]["text"]
    assert text == f"<user>hi\n{end}"
    counted = {"model": "scripted", "messages": messages}
    response = by_roles.http.post(f"{MESSAGES}/count_tokens", json=counted)
    assert response.json() == {"input_tokens": len(text)}  # MSG-5


def test_pictures(server: Server) -> None:
    data = base64.b64encode(picture("PNG")).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    block = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
    [sent] = chat(server, ("user", [block, {"type": "text", "text": "?"}]))
    assert sent["content"].endswith("?")
    assert MEDIA in sent["content"]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    sent = chat(server, ("user", "go"), ("assistant", [CALL]), ("user", [result]))
    assert MEDIA in sent[2]["content"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "words"}, "words\n"),
        ({"type": "content", "content": "words"}, "words\n"),
        ({"type": "content", "content": [{"type": "text", "text": "words"}]}, "words"),
        ({"type": "base64", "media_type": "text/plain", "data": "d29yZHM="}, "words"),
    ],
)
def test_documents_of_text(server: Server, source: Any, text: str) -> None:
    document = {"type": "document", "source": source}
    [sent] = chat(server, ("user", [document, {"type": "text", "text": "?"}]))
    assert sent["content"] == f"{text}?"
    titled = {**document, "title": "T", "context": "C"}
    [sent] = chat(server, ("user", [titled]))
    assert sent["content"] == f"T\nC\n{text}"


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "between_tools"}, True),
        ({"type": "enabled", "budget_tokens": 5}, True),
        ({"type": "enabled", "budget_tokens": 5, "display": "summarized"}, True),
    ],
)
def test_thinking_is_off_unless_asked_for(
    server: Server, engine: Echo, thinking: Any, shown: bool
) -> None:
    # MSG-11 MSG-13
    assert prompt(server, thinking=thinking)[-1] == [shown, None]
    budget = engine.asked.sampling.reasoning_budget
    assert (budget and budget.tokens) == (thinking or {}).get("budget_tokens")
    assert prompt(server, output_config={"effort": "low"}, thinking=thinking)[-1] == [shown, "low"]


def test_what_cannot_be_told_to_be_off_is_not_named(by_roles: Server) -> None:
    body = {"model": "scripted", "max_tokens": 99, "messages": USER}
    for thinking in (None, {"type": "disabled"}):
        response = by_roles.http.post(MESSAGES, json={**body, "thinking": thinking})
        assert "x-unsupported-params" not in response.headers
    response = by_roles.http.post(MESSAGES, json={**body, "thinking": {"type": "adaptive"}})
    assert response.headers["x-unsupported-params"] == "thinking"


def test_thinking_that_the_config_forces_is_left_out_and_not_named() -> None:
    config = scripted_config(force_template_vars={"enable_thinking": True}, reasoning="think")
    said = scripted(["<think>Hm.</think>Yes."], chat_template=TEMPLATE)
    body = {"model": "scripted", "max_tokens": 99, "messages": USER}
    with serve(config, plugins_with(scripted=said)) as server:
        response = server.http.post(MESSAGES, json=body)
    assert response.json()["content"] == [{"type": "text", "text": "Yes."}]
    assert "x-unsupported-params" not in response.headers


def test_settings(server: Server, engine: Echo) -> None:
    ask(server, max_tokens=77, stop_sequences=["@@"], stop=["@"])
    assert engine.asked.sampling.max_tokens == 77
    assert engine.asked.sampling.stop == ("@@",)


WITHOUT_EFFECT: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "service_tier": "standard_only",
    "speed": "fast",
    "inference_geo": "eu",
    "diagnostics": {"previous_message_id": None},
    "user_profile_id": "u",
    "container": None,
    "mcp_servers": [],
    "metadata": {"user_id": "me"},
    "tools": [
        {
            "name": "f",
            "input_schema": {"type": "object"},
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
            "eager_input_streaming": True,
            "defer_loading": False,
        }
    ],
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
        }
    ],
}


@pytest.mark.parametrize("query", ["", "?beta=true"])
def test_cache_marks_and_betas_change_nothing(server: Server, query: str) -> None:
    # MSG-22
    tool = {"name": "f", "input_schema": {"type": "object"}}
    plain = prompt(server, system="s", tools=[tool])
    body = {"model": "scripted", "max_tokens": 1000, **WITHOUT_EFFECT}
    headers = {"anthropic-beta": "not-known-2030-01-01", "anthropic-version": "anything"}
    response = server.http.post(MESSAGES + query, json=body, headers=headers)
    assert "x-unsupported-params" not in response.headers
    lines = response.json()["content"][0]["text"].splitlines()
    assert [json.loads(line) for line in lines if line != ">"] == plain


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"container": "c_1"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"metadata": {"user_id": "a", "team": "b"}}, "metadata.team"),
        ({"output_config": {"task_budget": {"total": 5}}}, "output_config.task_budget"),
        ({"temperature": 0.5}, "temperature"),  # by this engine
        ({"n": 2, "logprobs": True}, "n, logprobs"),
        ({"made_up": 1, "chat_template_kwargs": {"b": 2}}, "made_up, chat_template_kwargs.b"),
        ({"thinking": {"type": "adaptive", "x": 1}}, "thinking.x"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        (
            {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]},
            "tools[0].input_examples",
        ),
        (
            {
                "messages": [
                    *USER,
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "server_tool_use", "id": "s", "name": "n", "input": {}},
                            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                            {"type": "text", "text": "so", "made_up": 1},
                        ],
                    },
                    *USER,
                ]
            },
            "messages[1].content[0], messages[1].content[1], messages[1].content[2].made_up",
        ),
    ],
)
def test_what_has_no_effect_is_named(server: Server, fields: Any, named: str) -> None:
    # MSG-23
    body = {"model": "scripted", "max_tokens": 1000, "messages": USER, **fields}
    response = server.http.post(MESSAGES, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-unsupported-params"] == named


def test_extra_fields_reach_the_chat(server: Server) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    assert prompt(server, **body)[-1] == [True, None]
