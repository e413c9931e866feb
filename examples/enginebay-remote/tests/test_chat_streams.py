"""What servers of many kinds are documented to stream, cut anywhere."""

import asyncio
import itertools
from typing import Any

import pytest
from chat_events import OPENING, called, event, joined, read, request, usage
from enginebay_remote.chat_reading import ChatReader, says_something
from enginebay_remote.failures import NONSENSE
from fake import DONE, events
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay import (
    ContentDelta,
    Part,
    ReasoningDelta,
    RefusalDelta,
    ServingError,
    TokenCounts,
    ToolCallDelta,
)

STREAMS: dict[str, tuple[bytes, list[Part], str, TokenCounts | None]] = {
    "comments, and an event of several lines": (
        b": ping\n\ndata:\n\nevent: message\n"
        b'data: {"choices":\ndata: [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
        + DONE,
        [ContentDelta("x")],
        "stop",
        None,
    ),
    "characters cut in two, and halves that stand alone": (
        events(
            event({"content": "\ud83d"}),
            event({"content": "\ude00 \ude00"}),
            event({"tool_calls": [called(0, "1", "get\ud83d", '"\ud83d')]}),
            event({"tool_calls": [called(0, None, None, '\ude00\ud83d"')]}, "stop"),
        ),
        [
            ContentDelta("\U0001f600 \ufffd"),
            ToolCallDelta(0, "get\ufffd", '"\U0001f600\ufffd"', "1"),
        ],
        "stop",
        None,
    ),
    "vLLM": (
        events(
            OPENING,
            event({"reasoning": "Hm", "reasoning_content": "Hm"}),
            event({"reasoning": ".", "reasoning_content": "."}),
            event({"content": "Hel"}),
            event({"content": "lo"}),
            event({"tool_calls": [called(0, "chatcmpl-tool-1", "get", None)]}),
            event({"tool_calls": [called(0, None, None, '{"a"')]}),
            event({"tool_calls": [called(0, None, None, ": 1}")]}),
            event({"tool_calls": [called(1, "chatcmpl-tool-2", "get", "{}")]}),
            event({"content": ""}, "tool_calls", stop_reason=None),
            {"choices": [], "usage": usage(prompt_tokens_details=None)},
        ),
        [
            ReasoningDelta("Hm."),
            ContentDelta("Hello"),
            ToolCallDelta(0, "get", '{"a": 1}', "chatcmpl-tool-1"),
            ToolCallDelta(1, "get", "{}", "chatcmpl-tool-2"),
        ],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7),
    ),
    "SGLang": (
        events(
            event({"role": "assistant", "content": "", "reasoning_content": None}),
            event({"content": None, "reasoning_content": "Hm.", "tool_calls": None}),
            event({"content": "Hello", "reasoning_content": None}),
            event({"tool_calls": [called(0, "call_1", "get", "")]}),
            event({"tool_calls": [{**called(0, None, None, "{}"), "id": None}]}),
            event({}, "tool_calls", matched_stop=None),
            {"choices": [], "usage": usage(reasoning_tokens=2)},
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello"), ToolCallDelta(0, "get", "{}", "call_1")],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7, reasoning_tokens=2),
    ),
    "DeepSeek": (
        b": keep-alive\n\n"
        + events(
            event({"role": "assistant", "content": None, "reasoning_content": ""}),
            event({"content": None, "reasoning_content": "Hm."}),
            event({"content": "Hello", "reasoning_content": None}),
            event({"content": "", "reasoning_content": None}, "length")
            | {
                "usage": usage(
                    prompt_cache_hit_tokens=3,
                    prompt_cache_miss_tokens=2,
                    completion_tokens_details={"reasoning_tokens": 4},
                )
            },
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello")],
        "length",
        TokenCounts(prompt_tokens=5, completion_tokens=7, cached_tokens=3, reasoning_tokens=4),
    ),
    "OpenRouter": (
        b": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n"
        + events(
            event({"role": "assistant", "content": "", "reasoning": None}),
            event(
                {
                    "content": "",
                    "reasoning": "Hm.",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
                }
            ),
            event({"content": "Hello"}, native_finish_reason=None),
            event({"content": ""}, "stop", native_finish_reason="end_turn"),
            {"choices": [], "usage": usage(cost=0.1, prompt_tokens_details={"cached_tokens": 1})},
        ),
        [ReasoningDelta("Hm."), ContentDelta("Hello")],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7, cached_tokens=1),
    ),
    "OpenAI": (
        events(
            event({"role": "assistant", "content": None, "refusal": None}),
            event({"refusal": "I "}) | {"usage": None},
            event({"refusal": "won't."}),
            event({}, "content_filter"),
            {
                "choices": [],
                "usage": usage(
                    prompt_tokens_details={
                        "cached_tokens": 2,
                        "audio_tokens": 0,
                        "image_tokens": 4,
                    },
                    completion_tokens_details={"reasoning_tokens": 0},
                ),
            },
        ),
        [RefusalDelta("I won't.")],
        "content_filter",
        TokenCounts(
            prompt_tokens=5,
            completion_tokens=7,
            cached_tokens=2,
            reasoning_tokens=0,
            media_tokens={"image": 4},
        ),
    ),
    "Mistral": (
        events(
            event({"role": "assistant", "content": ""}),
            event(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
            ),
            event({"content": [{"type": "text", "text": "Hello"}]}),
            event(
                {
                    "tool_calls": [
                        called(0, "a1B2c3D4e", "get", "{}"),
                        called(1, "f5G6h7I8j", "get", '{"a": 1}'),
                    ]
                },
                "tool_calls",
            )
            | {"usage": usage()},
        ),
        [
            ReasoningDelta("Hm."),
            ContentDelta("Hello"),
            ToolCallDelta(0, "get", "{}", "a1B2c3D4e"),
            ToolCallDelta(1, "get", '{"a": 1}', "f5G6h7I8j"),
        ],
        "stop",
        TokenCounts(prompt_tokens=5, completion_tokens=7),
    ),
    "calls without an index, one as an object": (
        events(
            event({"tool_calls": [called(None, "1", "get", {"a": "\u00e6"})]}),
            event({"tool_calls": [called(None, "2", "get", "{")]}),
            event({"tool_calls": [called(None, None, None, "}")]}, "stop"),
        ),
        [ToolCallDelta(0, "get", '{"a": "\u00e6"}', "1"), ToolCallDelta(1, "get", "{}", "2")],
        "stop",
        None,
    ),
    "calls all of index 0, and a name that comes late and again": (
        events(
            event({"tool_calls": [called(0, "1", None, "{")]}),
            event({"tool_calls": [called(0, None, "get", "}")]}),
            event({"tool_calls": [called(0, "1", "get", " ")]}),
            event({"tool_calls": [called(0, "2", "get", "{}")]}, "stop"),
        ),
        [ToolCallDelta(0, "get", "{} ", "1"), ToolCallDelta(1, "get", "{}", "2")],
        "stop",
        None,
    ),
    "the old names": (
        events(
            event({"function_call": {"name": "get", "arguments": ""}}),
            event({"function_call": {"arguments": "{}"}}),
            event({}, "function_call"),
        ),
        [ToolCallDelta(0, "get", "{}")],
        "stop",
        None,
    ),
}


@pytest.mark.parametrize(("stream", "parts", "reason", "told"), STREAMS.values(), ids=list(STREAMS))
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_streams(
    stream: bytes, parts: list[Part], reason: str, told: TokenCounts | None, data: st.DataObject
) -> None:
    """Cut anywhere, with either kind of line end."""
    if data.draw(st.booleans()):
        stream = stream.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    deltas = asyncio.run(read(pieces))
    assert joined(deltas) == parts
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [reason]
    assert (deltas[-1].finish_reason, deltas[-1].usage) == (reason, told)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "choices",
                        "delta",
                        "index",
                        "content",
                        "reasoning",
                        "tool_calls",
                        "function",
                    ),
                    *("name", "arguments", "id", "finish_reason", "usage", "logprobs"),
                    *("prompt_tokens_details", "token", "type", "thinking", "error"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["choices", "usage"]), JSON, max_size=2))
def test_nonsense_is_an_error_of_the_kinds_that_are_expected(said: dict[str, Any]) -> None:
    """Which the backend makes a 503 of, as below."""
    try:
        says_something(said, request())
        list(ChatReader(request()).deltas(said))
    except (*NONSENSE, ServingError):
        pass
