"""Checks of tool calls."""

import json

from enginebay_conformance.endpoint import Endpoint, Json, Stream
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASKED: Json = {
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
    "tools": [WEATHER],
    "max_tokens": 200,
}


@check("MLC-34", "TAB-41", "VLLM-16")
def tools_reach_the_model(server: Endpoint) -> None:
    """Tools are taken, with `tool_choice: auto` too, and make the prompt longer."""
    without = server.chat(messages=ASKED["messages"], max_tokens=1)["usage"]["prompt_tokens"]
    for choice in ({}, {"tool_choice": "auto"}):
        usage = server.chat(**{**ASKED, "max_tokens": 1, **choice})["usage"]
        longer = usage["prompt_tokens"] > without
        expect(longer, f"{usage['prompt_tokens']} prompt tokens with tools, {without} without")


@check("TAB-53", "VLLM-90")
def no_calls_with_choice_none(server: Endpoint) -> None:
    """With `tool_choice: none` there are no calls, whatever the model writes."""
    choice = server.chat(**ASKED, tool_choice="none")["choices"][0]
    expect(not choice["message"].get("tool_calls"), "there are calls")
    expect(choice["finish_reason"] in ("stop", "length"), f"it ends {choice['finish_reason']!r}")
    stream = server.stream(**ASKED, tool_choice="none")
    expect(not any(delta.get("tool_calls") for delta in stream.deltas()), "streamed there are")


@check("MLC-22", "MLC-35", "TAB-57", "VLLM-68")
def calls_are_complete(server: Endpoint) -> None:
    """A call has an id, a type, an offered name, JSON text as arguments; the finish says so."""
    choice = server.chat(**ASKED)["choices"][0]
    for call in _calls(choice):
        expect(bool(call.get("id")) and call.get("type") == "function", f"a call is {call}")
        expect(call["function"]["name"] == "get_weather", f"it calls {call['function']}")
        arguments = call["function"]["arguments"]
        expect(isinstance(arguments, str), f"arguments are {arguments!r}")
        expect(isinstance(json.loads(arguments), dict), f"arguments are {arguments!r}")
    expect(choice["finish_reason"] == "tool_calls", f"it ends {choice['finish_reason']!r}")


@check("TAB-51", "TAB-56", "VLLM-66", "VLLM-67", "LF-25")
def streamed_calls_are_the_whole_ones(server: Endpoint) -> None:
    """Streamed, a call has its index, id and name once, arguments piece by piece."""
    calls = _calls(server.chat(**ASKED)["choices"][0])
    stream = server.stream(**ASKED)
    streamed = [put_together(stream, index) for index in range(len(calls))]
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    expect(streamed == whole, f"streamed they are {streamed}, whole {whole}")
    expect(stream.finish_reason() == "tool_calls", f"the stream ends {stream.finish_reason()!r}")


@check("MLC-35", "VLLM-91")
def finish_says_calls_only_if_there_are_some(server: Endpoint) -> None:
    """`finish_reason` is never `tool_calls` without a call, nor `tool_calls` an empty list."""
    for fields in (ASKED, {"tools": [WEATHER]}):
        choice = server.chat(**fields)["choices"][0]
        calls = choice["message"].get("tool_calls")
        expect(calls is None or bool(calls), "tool_calls is an empty list")
        says = choice["finish_reason"] == "tool_calls"
        expect(bool(calls) or not says, "it ends with tool_calls and has none")


def _calls(choice: Json) -> list[Json]:
    calls: list[Json] | None = choice["message"].get("tool_calls")
    if not calls:
        raise NotShown("the model made no call")
    if choice["finish_reason"] == "length":
        raise NotShown("the model's call has no end")
    return calls


def put_together(stream: Stream, index: int) -> tuple[str, str]:
    """Name and arguments of a call in a stream, whose pieces must fit together."""
    pieces = [piece for delta in stream.deltas() for piece in delta.get("tool_calls") or []]
    expect(all(type(piece.get("index")) is int for piece in pieces), "a piece has no index")
    mine = [piece for piece in pieces if piece["index"] == index]
    expect(bool(mine), f"there is no call with index {index}")
    ids = [piece["id"] for piece in mine if piece.get("id")]
    names = [name for piece in mine if (name := piece["function"].get("name"))]
    expect(len(ids) == 1, f"call {index} has the ids {ids}")
    expect(len(names) == 1, f"call {index} has the names {names}")
    expect(bool(mine[0].get("id")), "the id comes late")
    return names[0], "".join(piece["function"].get("arguments") or "" for piece in mine)


CHECKS = (
    tools_reach_the_model,
    no_calls_with_choice_none,
    calls_are_complete,
    streamed_calls_are_the_whole_ones,
    finish_says_calls_only_if_there_are_some,
)
