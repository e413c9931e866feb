"""Answers of `/v1/messages`: blocks, why they end, usage; whole, and streamed however cut."""

import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    ContentDelta,
    Delta,
    GenerationRequest,
    ReasoningDelta,
    RefusalDelta,
    ServingError,
    ToolCallDelta,
)
from enginebay.contract.errors import EngineDeadError
from enginebay.contract.types import EngineFinishReason
from enginebay.testing import ScriptedChat, ScriptedEngine
from tests.apis.messages_stream import MESSAGES, USER, accumulated, ask, unvaried
from tests.apis.named_events import named_events
from tests.conftest import ServeScripted
from tests.support import (
    InlineBackend,
    Server,
    engine_backend,
    plugins_with,
    scripted_config,
    serve,
)

ON = {"type": "adaptive"}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
THOUGHT = "<think>one two</think>Hello"
FULL = f"<think>one</think>\n\nText.{CALL}\n<think>two</think>{CALL}"


class Said:
    """What the engines of the shared server say next."""

    pieces: Sequence[str] = ()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    said = lambda prompt, index: Said.pieces  # noqa: E731
    create = lambda settings: InlineBackend(ScriptedEngine(said, constraints=False))  # noqa: E731
    config = scripted_config(reasoning="think", tools="hermes")
    with serve(config, plugins_with(scripted=create)) as running:
        yield running


def say(*pieces: str) -> None:
    Said.pieces = pieces


def test_a_text(server: Server) -> None:
    say("Hel", "lo")
    message = ask(server)
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == (
        "message",
        "assistant",
        "scripted",
    )
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


def test_an_empty_answer_has_no_blocks(server: Server) -> None:
    say()
    assert ask(server)["content"] == []


def test_without_thinking_there_is_none_in_the_answer(server: Server) -> None:
    # MSG-11
    say(THOUGHT)
    for thinking in (None, {"type": "disabled"}):
        message = ask(server, thinking=thinking)
        assert message["content"] == [{"type": "text", "text": "Hello"}]
        assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_thinking_is_signed(server: Server) -> None:
    # MSG-10
    say(*THOUGHT)
    for kind in ("adaptive", "between_tools", "enabled"):
        thought, text = ask(server, thinking={"type": kind})["content"]
        assert thought["thinking"] == "one two"
        assert thought["signature"]
        assert text == {"type": "text", "text": "Hello"}


def test_thought_that_is_cut_is_signed_too(server: Server) -> None:
    say(*THOUGHT)
    message = ask(server, thinking=ON, max_tokens=12)
    [thought] = message["content"]
    assert thought["thinking"]
    assert thought["signature"]
    assert message["stop_reason"] == "max_tokens"


def test_omitted_thought_is_a_block_without_text(server: Server) -> None:
    say(*THOUGHT)
    thought, text = ask(server, thinking={**ON, "display": "omitted"})["content"]
    assert thought["thinking"] == ""
    assert thought["signature"]
    assert text["text"] == "Hello"


def test_calls_and_thought_are_blocks_in_their_order(server: Server) -> None:
    """What looks like a second thought is text: the first one has ended (ANS-3)."""
    # MSG-1 MSG-8
    say(*FULL)
    message = ask(server, thinking=ON, tools=TOOLS)
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "text", "tool_use"]
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    assert [call["input"] for call in calls] == [{"a": "x"}] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert message["stop_reason"] == "tool_use"


@given(data=st.data())
def test_any_cut_gives_the_same(server: Server, data: st.DataObject) -> None:
    """But for the share of thought in one piece that is several tokens, which can only be guessed.

    MSG-1 MSG-2 MSG-3
    """
    cuts = sorted(data.draw(st.sets(st.integers(1, len(FULL) - 1))))
    fields = data.draw(st.sampled_from([{}, {"thinking": ON}, {"max_tokens": 70}]))
    say(*FULL)
    expected = ask(server, tools=TOOLS, **fields)
    say(*(FULL[a:b] for a, b in zip([0, *cuts], [*cuts, len(FULL)], strict=True)))
    message = ask(server, tools=TOOLS, **fields)
    for each in (message, expected):
        del each["usage"]["output_tokens_details"]
    assert unvaried(message) == unvaried(expected)


@given(
    said=st.lists(
        st.sampled_from(
            ["Hello ", "\n", " ", "<think>", "</think>", CALL, "<tool_call>", "{", '"f"', "é🙂"]
        ),
        max_size=8,
    ),
    thinks=st.booleans(),
    limit=st.integers(1, 60),
)
def test_every_stream_obeys_the_grammar(
    server: Server, said: list[str], thinks: bool, limit: int
) -> None:
    # MSG-1
    say(*said)
    ask(server, tools=TOOLS, thinking=ON if thinks else None, max_tokens=limit)


def test_the_start_knows_the_prompt_and_the_end_everything(server: Server) -> None:
    # MSG-3 MSG-5
    say("a", "b")
    body = {"model": "scripted", "max_tokens": 9, "messages": USER, "stream": True}
    events = named_events(server.http.post(MESSAGES, json=body).text)
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    started, ended = events[0]["message"]["usage"], events[-2]["usage"]
    counted = server.http.post(f"{MESSAGES}/count_tokens", json=body).json()["input_tokens"]
    assert started["input_tokens"] == ended["input_tokens"] == counted > 0
    assert started["output_tokens"] == 1
    assert ended["output_tokens"] == 3  # with the end of sequence


def test_a_stop_sequence_is_told_and_not_in_the_text(server: Server) -> None:
    # MSG-6
    say("one ST", "OP two")
    message = ask(server, stop_sequences=["END", "STOP"])
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")


def test_stops_that_were_not_asked_for_are_not_told() -> None:
    backend = engine_backend(lambda: ScriptedEngine(["one STOP two"]))
    config = scripted_config(sampling={"stop": ["STOP"]})
    with serve(config, plugins_with(scripted=backend)) as server:
        message = ask(server)
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["content"][0]["text"] == "one "


def test_length(server: Server) -> None:
    # MSG-7
    say("one two three")
    message = ask(server, max_tokens=3)
    assert (message["stop_reason"], message["content"][0]["text"]) == ("max_tokens", "one")
    assert message["usage"]["output_tokens"] == 3


def test_a_full_context_is_told_apart(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["x" * 100], engine={"context_length": 30})
    message = ask(server)
    assert message["stop_reason"] == "model_context_window_exceeded"
    room = message["usage"]["output_tokens"]
    assert ask(server, max_tokens=room)["stop_reason"] == "max_tokens"
    assert ask(server, max_tokens=room + 1)["stop_reason"] == "model_context_window_exceeded"


def test_no_tokens_only_read_the_prompt(server: Server) -> None:
    say("never")
    message = ask(server, max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    assert message["usage"]["input_tokens"] > 0


def test_a_call_cut_by_length_has_what_could_be_read(server: Server) -> None:
    # MSG-7 MSG-8
    say(*'<tool_call>\n{"name": "f", "arguments": {"a": "xyz", "b": [1, 2, 3]}}\n</tool_call>')
    seen = []
    for limit in range(1, 75):
        message = ask(server, tools=TOOLS, max_tokens=limit)
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        assert (message["stop_reason"] == "max_tokens") == (limit < 73) or calls
        seen += [str(call["input"]) for call in calls]
    assert {"{}", "{'a': 'xyz'}", "{'a': 'xyz', 'b': [1, 2, 3]}"} <= set(seen)


class Cached(ScriptedEngine):
    """Says that it still had half of the prompt."""

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        for id, delta in super().step():
            if isinstance(delta, Delta) and delta.prefill_tokens:
                half = delta.prefill_tokens // 2
                rest = delta.prefill_tokens - half
                delta = replace(delta, prefill_tokens=rest, cached_tokens=half)
            yield id, delta


def test_cached_tokens_are_no_input_tokens() -> None:
    # MSG-4 MSG-5
    backend = engine_backend(lambda: Cached(["a"]))
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        message = ask(server)
        assert (message["content"][0]["text"], message["stop_reason"]) == ("a", "end_turn")
        usage = message["usage"]
        body = {"model": "scripted", "messages": USER}
        counted = server.http.post(f"{MESSAGES}/count_tokens", json=body).json()
    read, rest = usage["cache_read_input_tokens"], usage["input_tokens"]
    assert read > 0
    assert rest > 0
    assert read + rest + usage["cache_creation_input_tokens"] == counted["input_tokens"]


@pytest.mark.parametrize(
    ("parts", "finish", "reason", "kinds"),
    [
        (["No."], "content_filter", "refusal", ["text"]),
        ([RefusalDelta("No.")], "stop", "refusal", ["text"]),
        ([ReasoningDelta("Hm."), ContentDelta("Yes.")], "stop", "end_turn", ["text"]),
        ([ToolCallDelta(0, "f", "")], "stop", "max_tokens", ["tool_use"]),
        ([ToolCallDelta(0, "f", "{}", id="mine")], "stop", "tool_use", ["tool_use"]),
    ],
)
def test_answers_of_models_that_take_messages(
    parts: list[Any], finish: EngineFinishReason, reason: str, kinds: list[str]
) -> None:
    backend = engine_backend(lambda: ScriptedChat(parts, finish_reason=finish))
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        message = ask(server, tools=TOOLS)
        assert message["stop_reason"] == reason
        assert [block["type"] for block in message["content"]] == kinds
        if kinds == ["tool_use"]:
            assert message["content"][0]["input"] == {}
        body = {"model": "scripted", "messages": USER}
        counted = server.http.post(f"{MESSAGES}/count_tokens", json=body)
        assert counted.status_code == 400
        assert counted.json()["error"]["type"] == "invalid_request_error"


def test_pings_are_events_while_nothing_else_comes() -> None:
    # MSG-25
    go_on = threading.Event()

    class Waiting(ScriptedEngine):
        def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
            if any(choice.token_ids for choice in self._choices):
                assert go_on.wait(60)
            return super().step()

    config = scripted_config(server={"ping_interval": 0.01})
    plugins = plugins_with(scripted=engine_backend(lambda: Waiting(["a", "b"])))
    body = {"model": "scripted", "max_tokens": 9, "messages": USER, "stream": True}
    text = ""
    with (
        serve(config, plugins) as server,
        server.http.stream("POST", MESSAGES, json=body) as response,
    ):
        for piece in response.iter_text():
            text += piece
            if text.count("event: ping") >= 3:
                go_on.set()
    assert accumulated(named_events(text))["content"][0]["text"] == "ab"


class Dying(InlineBackend):
    """Says something, then raises this."""

    def __init__(self, error: Exception) -> None:
        super().__init__(ScriptedEngine(["ok"]))
        self._error = error

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="o", token_ids=(1,), prefill_tokens=len(request.prompt_token_ids))
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServingError("it broke"), "api_error"),
        (RuntimeError("a secret"), "api_error"),
        (EngineDeadError("the engine died"), "overloaded_error"),
    ],
)
def test_a_failure_in_mid_stream_is_an_event(error: Exception, kind: str) -> None:
    # MSG-24
    body = {"model": "scripted", "max_tokens": 9, "messages": USER, "stream": True}
    plugins = plugins_with(scripted=lambda settings: Dying(error))
    with serve(scripted_config(), plugins) as server:
        events = named_events(server.http.post(MESSAGES, json=body).text)
    assert events[-1]["error"]["type"] == kind
    assert "a secret" not in str(events[-1])
    assert [event["type"] for event in events] == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "error")
    ]


@pytest.mark.parametrize("streams", [False, True])
def test_a_failure_before_that_is_a_status(streams: bool) -> None:
    # MSG-19
    class DyingAtOnce(Dying):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
            raise self._error
            yield Delta()

    body = {"model": "scripted", "max_tokens": 9, "messages": USER, "stream": streams}
    error = EngineDeadError("the engine died")
    plugins = plugins_with(scripted=lambda settings: DyingAtOnce(error))
    with serve(scripted_config(), plugins) as server:
        response = server.http.post(MESSAGES, json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


def test_models_that_take_messages_and_cannot_be_told_not_to_think() -> None:
    # MSG-11
    said = [ReasoningDelta("Hm."), ContentDelta("Yes.")]
    backend = engine_backend(lambda: ScriptedChat(said, lacks=["enable_thinking"]))
    body = {"model": "scripted", "max_tokens": 9, "messages": USER}
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        response = server.http.post(MESSAGES, json=body)
        assert response.json()["content"] == [{"type": "text", "text": "Yes."}]
        assert "x-unsupported-params" not in response.headers
        response = server.http.post(MESSAGES, json={**body, "thinking": ON})
        assert response.headers["x-unsupported-params"] == "thinking"


def test_models_that_take_messages_continue_none() -> None:
    backend = engine_backend(lambda: ScriptedChat(["Hello"]))
    messages = [*USER, {"role": "assistant", "content": "Hel"}]
    body = {"model": "scripted", "max_tokens": 9, "messages": messages}
    with serve(scripted_config(), plugins_with(scripted=backend)) as server:
        response = server.http.post(MESSAGES, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("messages[1] is not supported")
        assert ask(server, max_tokens=0)["content"] == []


def test_an_aborted_answer_ends_with_what_there_is() -> None:
    held = threading.Event()

    class Held(ScriptedEngine):
        def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
            if any(choice.token_ids for choice in self._choices):
                held.wait(60)
            return super().step()

    plugins = plugins_with(scripted=engine_backend(lambda: Held(["a", "b", "c"])))
    body = {"model": "scripted", "max_tokens": 9, "messages": USER, "stream": True}
    text = ""
    with (
        serve(scripted_config(), plugins) as server,
        server.http.stream("POST", MESSAGES, json=body) as response,
    ):
        for piece in response.iter_text():
            text += piece
            if "text_delta" in text and not held.is_set():
                id = named_events(text[: text.index("event: ping")])[0]["message"]["id"]
                assert server.http.post(f"/v1/requests/{id}/cancel").status_code == 200
                held.set()
    message = accumulated(named_events(text))
    assert message["stop_reason"] == "end_turn"
    assert message["content"][0]["text"] == "a"
