"""Models that take chats: messages go to the backend as they are, parts come back."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from openai import ContentFilterFinishReasonError

from enginebay import (
    BackendSettings,
    Chat,
    ContentDelta,
    Delta,
    EngineBackend,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenCounts,
    ToolCallDelta,
)
from enginebay.config.schema import Config
from enginebay.engine.streams import merged_deltas
from enginebay.testing import ScriptedChat
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT = "/v1/chat/completions"
USER: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {}}},
}
OTHER: Any = {"type": "function", "function": {"name": "put"}}
SAID: list[str | Part] = [
    ReasoningDelta("Hm"),
    ReasoningDelta("."),
    "Let me ",
    "see.",
    ToolCallDelta(0, "get", '{"a"', "call_1"),
    ToolCallDelta(0, None, ": 1}"),
    ToolCallDelta(1, "get", "{}"),
]


class Asked:
    """A script that remembers the chats it is asked."""

    def __init__(self, said: Sequence[str | Part]) -> None:
        self.said = said
        self.chats: list[Chat] = []

    def __call__(self, chat: Chat, index: int) -> Sequence[str | Part]:
        self.chats.append(chat)
        return self.said


@contextmanager
def serving(
    said: Sequence[str | Part] = SAID, *, model: dict[str, Any] | None = None, **engine: Any
) -> Iterator[tuple[Server, Asked]]:
    script = Asked(said)
    create = engine_backend(lambda: ScriptedChat(script, **engine))
    with serve(scripted_config(**(model or {})), plugins_with(scripted=create)) as server:
        yield server, script


@pytest.fixture(scope="module")
def said() -> Iterator[tuple[Server, Asked]]:
    with serving(media=["image"]) as both:
        yield both


@pytest.fixture
def server(said: tuple[Server, Asked]) -> Server:
    return said[0]


@pytest.fixture
def chats(said: tuple[Server, Asked]) -> list[Chat]:
    said[1].chats.clear()
    return said[1].chats


def ask(server: Server, **body: Any) -> Any:
    answer = server.http.post(CHAT, json={"messages": USER, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_parts_are_the_answer(server: Server) -> None:
    """Whole: reasoning, content and calls apart, usage as the backend tells it."""
    answer: Any = server.openai.chat.completions.create(
        model="scripted", messages=USER, tools=[TOOL], n=2
    )
    for choice in answer.choices:
        assert choice.message.content == "Let me see."
        assert choice.message.reasoning_content == "Hm."
        assert choice.message.tool_calls
        first, second = choice.message.tool_calls
        assert (first.id, first.function.name, first.function.arguments) == (
            "call_1",
            "get",
            '{"a": 1}',
        )
        assert second.id.startswith("call_")
        assert second.id != first.id
        assert choice.finish_reason == "tool_calls"
    length = len("Hm.Let me see.") + len('{"a": 1}{}')
    assert answer.usage
    assert answer.usage.prompt_tokens == len("hi")
    assert answer.usage.completion_tokens == 2 * length
    assert answer.usage.completion_tokens_details
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2 * len("Hm.")


def test_streamed_and_whole_are_the_same(server: Server) -> None:
    whole: Any = server.openai.chat.completions.create(
        model="scripted", messages=USER, tools=[TOOL]
    )
    with server.openai.chat.completions.stream(
        model="scripted", messages=USER, tools=[TOOL], stream_options={"include_usage": True}
    ) as stream:
        final: Any = stream.get_final_completion()
    mine, theirs = final.choices[0].message, whole.choices[0].message
    assert mine.content == theirs.content
    assert mine.reasoning_content == theirs.reasoning_content
    assert [call.function.arguments for call in mine.tool_calls or ()] == [
        call.function.arguments for call in theirs.tool_calls or ()
    ]
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    assert final.usage
    assert whole.usage
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_the_chat_arrives_as_it_was_sent(server: Server, chats: list[Chat]) -> None:
    """Images among it, and with what clients leave out."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "3"},
    ]
    body = {
        "messages": messages,
        "tools": [TOOL, OTHER],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "strict": True, "schema": {"type": "array"}},
        },
        "reasoning_effort": "high",
        "reasoning_budget": 7,
        "chat_template_kwargs": {"language": "nb"},
        "temperature": 1,
    }
    answer = ask(server, **body)
    [chat] = chats
    assert chat.messages[:2] == tuple(messages[:2])
    call = {"id": "call_2_0", "type": "function"}
    assert chat.messages[2]["tool_calls"] == [
        {**call, "function": {"name": "get", "arguments": '{"a": 1}'}}
    ]
    assert chat.messages[2]["content"] is None
    assert chat.messages[3]["tool_call_id"] == "call_2_0"
    assert chat.tools == (TOOL, OTHER)
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("auto", False)
    assert chat.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "it", "strict": True, "schema": {"type": "array"}},
    }
    assert (chat.reasoning_effort, chat.enable_thinking, chat.reasoning_budget) == ("high", True, 7)
    assert chat.chat_template_kwargs["language"] == "nb"
    assert chat.chosen_params == {"temperature"}
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert len(calls) == 1  # the server made two, and the client takes one


@pytest.mark.parametrize(
    ("choice", "names", "sent"),
    [
        ("none", ["get", "put"], "none"),
        ("required", ["get", "put"], "required"),
        (
            {"type": "function", "function": {"name": "get"}},
            ["get"],
            {"type": "function", "function": {"name": "get"}},
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "put"}}],
                },
            },
            ["put"],
            "required",
        ),
    ],
)
def test_tool_choice(
    server: Server, chats: list[Chat], choice: Any, names: list[str], sent: Any
) -> None:
    answer = ask(server, tools=[TOOL, OTHER], tool_choice=choice)
    assert [tool["function"]["name"] for tool in chats[0].tools] == names
    assert chats[0].tool_choice == sent
    named = isinstance(choice, dict) and choice["type"] == "function"
    assert answer["choices"][0]["finish_reason"] == ("stop" if named else "tool_calls")


@pytest.mark.parametrize(
    ("body", "form", "other"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, {"type": "json_object"}, None),
        (
            {"guided_json": {"type": "integer"}},
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "integer"}},
            },
            None,
        ),
        ({"guided_regex": "[a-z]+"}, None, {"regex": "[a-z]+"}),
        ({"guided_choice": ["a", "b"]}, None, {"choice": ["a", "b"]}),
        ({"grammar": 'root ::= "a"'}, None, {"grammar": 'root ::= "a"'}),
    ],
)
def test_forms_of_answers(
    server: Server, chats: list[Chat], body: dict[str, Any], form: Any, other: Any
) -> None:
    ask(server, **body)
    assert (chats[0].response_format, chats[0].structured_outputs) == (form, other)


def test_the_old_names(server: Server) -> None:
    answer = ask(server, functions=[TOOL["function"]])
    message = answer["choices"][0]["message"]
    assert message["function_call"] == {"name": "get", "arguments": '{"a": 1}'}
    assert answer["choices"][0]["finish_reason"] == "function_call"


def test_reasoning_goes_where_it_is_wanted(server: Server) -> None:
    merged = ask(server, separate_reasoning=False)["choices"][0]["message"]
    assert merged["content"] == "<think>Hm.</think>Let me see."
    left_out = ask(server, include_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in left_out
    assert left_out["content"] == "Let me see."


def test_stops_and_limits_are_the_backends(server: Server) -> None:
    answer = ask(server, stop="me")
    assert answer["choices"][0]["message"]["content"] == "Let "
    assert answer["choices"][0]["finish_reason"] == "stop"
    answer = ask(server, max_tokens=5)
    assert answer["choices"][0]["message"]["content"] == "Le"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": "hi", "suffix": "ho"}),
        ("/v1/chat/completions/explain", {"messages": USER}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/rerank", {"query": "hi", "documents": ["ho"]}),
    ],
)
def test_what_needs_a_prompt_is_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"
    assert "scripted" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, None),
    ],
)
def test_what_cannot_be_is_refused(server: Server, body: dict[str, Any], param: str) -> None:
    answer = server.http.post(CHAT, content=json.dumps({"messages": USER, **body}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_what_has_no_effect_is_named(server: Server) -> None:
    body = {
        "logit_bias": {"5": 1},
        "seed": 3,
        "documents": [{"text": "x"}],
        "truncate_prompt_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "made_up": "x",
    }
    answer = server.http.post(CHAT, json={"messages": USER, **body})
    assert answer.status_code == 200
    assert set(answer.headers["x-unsupported-params"].split(", ")) == {
        *("logit_bias", "seed", "documents", "truncate_prompt_tokens", "made_up"),
        "stream_options.continuous_usage_stats",
    }


def test_unknown_keys_are_passed_on(server: Server, chats: list[Chat]) -> None:
    # FIX-1 FIX-2: whether they mean anything is the other server's to say
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    messages = [
        {**USER[0], "attachments": [1]},
        {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0, "extra": 1}]},
        {"role": "tool", "content": "y", "tool_call_id": "1"},
    ]
    tool = {**TOOL, "cost": 1}
    body = {"messages": messages, "tools": [tool], "stream": True, "stream_options": {"x": 1}}
    answer = server.http.post(CHAT, json=body)
    assert answer.headers["x-unsupported-params"] == "stream_options.x"
    [chat] = chats
    calls = [{**call, "extra": 1}]
    assert chat.messages == (messages[0], {**messages[1], "tool_calls": calls}, messages[2])
    assert chat.tools == (tool,)


def test_variables_that_the_config_forces() -> None:
    # FIX-4
    model = {"force_template_vars": {"enable_thinking": True, "mood": "sad"}}
    with serving(["ok"], model=model) as (server, asked):
        for fields, named in (
            ({"think": False}, "think"),
            ({"enable_thinking": True, "chat_template_kwargs": {"mood": "sad"}}, None),
            ({"chat_template_kwargs": {"mood": "glad"}}, "chat_template_kwargs.mood"),
            ({"functions": [{"free": 1}]}, "functions"),
            ({"truncation_length": 9}, "truncation_length"),
        ):
            answer = server.http.post(CHAT, json={"messages": USER, **fields})
            assert answer.status_code == 200
            assert answer.headers.get("x-unsupported-params") == named
        assert asked.chats[0].enable_thinking is False


def test_a_backend_says_what_it_takes() -> None:
    lacks = {
        *("tools", "response_format", "structured_outputs", "reasoning_effort"),
        *("enable_thinking", "reasoning_budget", "chat_template_kwargs"),
    }
    body = {
        "tools": [TOOL],
        "reasoning_effort": "low",
        "enable_thinking": True,
        "think": True,
        "reasoning_budget": 5,
        "chat_template_kwargs": {"a": 1},
    }
    with serving(["ok"], lacks=lacks) as (server, asked):
        answer = server.http.post(CHAT, json={"messages": USER, **body})
        assert answer.status_code == 200
        assert set(answer.headers["x-unsupported-params"].split(", ")) == {
            *("tools", "reasoning_effort", "enable_thinking", "think", "reasoning_budget"),
            "chat_template_kwargs.a",
        }
        assert (asked.chats[0].tools, asked.chats[0].tool_choice) == ((), None)
        for wanted, param in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"guided_choice": ["a"]}, "guided_choice"),
            ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ):
            refused = server.http.post(CHAT, json={"messages": USER, **wanted})
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "unsupported_parameter"
            assert refused.json()["error"]["param"] == param


def test_what_cannot_be_told_not_to_call_gets_no_tools() -> None:
    with serving(["ok"], lacks={"tool_choice"}) as (server, asked):
        for choice, tools in ("auto", 1), ("none", 0):
            ask(server, tools=[TOOL], tool_choice=choice)
            assert len(asked.chats.pop().tools) == tools


def test_refusals_and_filters() -> None:
    said = [RefusalDelta("I "), RefusalDelta("won't.")]
    with serving(said, finish_reason="content_filter") as (server, _):
        answer: Any = server.openai.chat.completions.create(model="scripted", messages=USER)
        [choice] = answer.choices
        assert (choice.message.content, choice.message.refusal) == (None, "I won't.")
        assert choice.finish_reason == "content_filter"
        streaming = server.openai.chat.completions.stream(model="scripted", messages=USER)
        with streaming as stream, pytest.raises(ContentFilterFinishReasonError):
            stream.get_final_completion()
    with serving(said) as (server, _):
        with server.openai.chat.completions.stream(model="scripted", messages=USER) as stream:
            final: Any = stream.get_final_completion()
        assert final.choices[0].message.refusal == "I won't."


def test_a_refusal_ends_thought_that_stands_in_the_content() -> None:
    with serving([ReasoningDelta("Hm."), RefusalDelta("No.")]) as (server, _):
        message = ask(server, separate_reasoning=False)["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == ("<think>Hm.</think>", "No.")


def test_settings_that_nothing_comes_of_are_an_error() -> None:
    model = {"reasoning": "think", "chat_template": "chatml", "template_vars": {"a": 1}}
    with serving(model=model, lacks=["chat_template_kwargs"]) as (server, _):
        [card] = server.http.get("/v1/models").json()["data"]
        health = server.http.get("/health").json()["models"]["scripted"]
    assert card["state"] == "failed"
    assert "chat_template, reasoning, template_vars" in health["error"]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_model_that_fails_behind_its_start_is_unloaded(breaks: bool) -> None:
    """And others are loaded, even if that fails as well."""
    closed: list[str] = []

    class Watched(EngineBackend):
        def __init__(self, settings: BackendSettings) -> None:
            super().__init__(lambda: ScriptedChat(["ok"]))
            self.name = settings.name

        async def close(self) -> None:
            await super().close()
            closed.append(self.name)
            if breaks and self.name == "one":
                raise RuntimeError("no")

    models = [
        {"name": "one", "backend": "chat", "path": ".", "reasoning": "think"},
        {"name": "two", "backend": "chat", "path": "."},
    ]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(chat=Watched)) as server:
        states = [card["state"] for card in server.http.get("/v1/models").json()["data"]]
        assert states == ["failed", "ready"]
        assert closed == ["one"]


def test_what_is_known_of_it() -> None:
    """A context of 0 is one that nobody knows."""
    engine = ScriptedChat(["ok"])
    engine.info = replace(engine.info, context_length=0)
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    with serve(scripted_config(), plugins) as server:
        [card] = server.http.get("/v1/models").json()["data"]
        report = server.http.get("/v1/models/scripted/inspect").json()
    assert (card["state"], card["context_length"]) == ("ready", None)
    assert "chats" in report["capabilities"]
    assert "text" not in report["capabilities"]
    assert report["template"] is None


def test_answers_end_with_an_error_when_the_model_is_unloaded() -> None:
    endless = ScriptedChat(lambda chat, index: iter(lambda: "on ", ""), context_length=10**9)
    plugins = plugins_with(scripted=engine_backend(lambda: endless))
    with serve(scripted_config(), plugins) as server:
        body = {"messages": USER, "stream": True}
        with server.http.stream("POST", CHAT, json=body) as answer:
            lines = answer.iter_lines()
            while "on " not in next(lines):
                pass
            server.run(server.app.state.services.models.close())
            ends = [line for line in lines if line]
    assert '"code":"model_unloaded"' in ends[-2]
    assert ends[-1] == "data: [DONE]"


def test_usage_and_parts_of_joined_deltas_are_kept() -> None:
    """Deltas are joined while a client is slow."""
    counts = TokenCounts(prompt_tokens=1, completion_tokens=2, reasoning_tokens=1)
    deltas = [
        Delta(parts=(ReasoningDelta("a"),)),
        Delta(parts=(ContentDelta("b"),), finish_reason="stop", usage=counts),
    ]
    [joined] = merged_deltas(deltas)
    assert isinstance(joined, Delta)
    assert joined.parts == (ReasoningDelta("a"), ContentDelta("b"))
    assert (joined.usage, joined.finish_reason) == (counts, "stop")
