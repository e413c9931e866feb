"""Checks of `tool_choice`: forced and restricted calls."""

import json

from enginebay_conformance.answers import SUM
from enginebay_conformance.endpoint import CHAT, Endpoint, Json
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check
from enginebay_conformance.tools import ASKED as WITH_WEATHER
from enginebay_conformance.tools import WEATHER, put_together

CLOCK: Json = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a time zone",
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"type": "string", "enum": ["UTC", "CET"]},
                "seconds": {"type": "boolean"},
            },
            "required": ["zone", "seconds"],
            "additionalProperties": False,
        },
    },
}
ASKED: Json = {
    "messages": [{"role": "user", "content": "Good morning."}],
    "tools": [WEATHER, CLOCK],
    "max_tokens": 300,
}
WEATHER_ASKED = WITH_WEATHER["messages"]
REQUIRED: Json = {**ASKED, "tool_choice": "required"}
NAMED: Json = {**ASKED, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}


@check("VLLM-52", "VLLM-89", optional="grammars")
def required_calls_are_made(server: Endpoint) -> None:
    """With `required` there are calls of offered tools, valid ones, and nothing beside them."""
    for fields in ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 1.5, "seed": 4}):
        choice = server.chat(**REQUIRED, **fields)["choices"][0]
        _expect_valid(_calls(choice))
        expect(not choice["message"]["content"], f"content is {choice['message']['content']!r}")
        expect(choice["finish_reason"] == "tool_calls", f"it ends {choice['finish_reason']!r}")


@check("VLLM-53", "VLLM-54", "VLLM-55", "VLLM-56", "VLLM-57", optional="grammars")
def streamed_required_calls_are_the_whole_ones(server: Endpoint) -> None:
    """Streamed, a required call has its name at once and once, then nothing but its arguments."""
    calls = _calls(server.chat(**REQUIRED)["choices"][0])
    stream = server.stream(**REQUIRED)
    streamed = [put_together(stream, index) for index in range(len(calls))]
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    expect(streamed == whole, f"streamed they are {streamed}, whole {whole}")
    expect(not stream.joined(), f"streamed there is content: {stream.joined()!r}")
    pieces = [piece for delta in stream.deltas() for piece in delta.get("tool_calls") or []]
    begun: set[int] = set()
    for piece in pieces:
        named = bool(piece["function"].get("name"))
        expect(named == (piece["index"] not in begun), f"a piece is {piece}")
        begun.add(piece["index"])


@check("VLLM-50", "VLLM-87", "VLLM-88", optional="grammars")
def named_function_is_called(server: Endpoint) -> None:
    """With a named function there is one valid call of it, no content, and the end is `stop`."""
    choice = server.chat(**NAMED)["choices"][0]
    [name] = [call["function"]["name"] for call in _expect_valid(_calls(choice))]
    expect(name == "get_time", f"it calls {name!r}")
    expect(not choice["message"]["content"], f"content is {choice['message']['content']!r}")
    expect(choice["finish_reason"] == "stop", f"it ends {choice['finish_reason']!r}")
    expect(server.stream(**NAMED).finish_reason() == "stop", "streamed it ends otherwise")


@check("VLLM-51", optional="grammars")
def reasoning_comes_before_forced_calls(server: Endpoint) -> None:
    """A forced call does not keep a model from reasoning first, and reasoning is not in it."""
    for asked in ({**REQUIRED, "messages": SUM}, {**NAMED, "messages": SUM}):
        message = server.chat(**asked)["choices"][0]["message"]
        if not message.get("reasoning_content"):
            raise NotShown("the model did not reason")
        calls = message.get("tool_calls") or []
        expect("think>" not in json.dumps(calls), f"there is reasoning in {calls}")
        deltas = server.stream(**asked).deltas()
        calling = [bool(delta.get("tool_calls")) for delta in deltas]
        thinking = [bool(delta.get("reasoning_content")) for delta in deltas]
        expect(any(calling) and any(thinking), "streamed there is no call, or no reasoning")
        late = calling.index(True) < len(thinking) - thinking[::-1].index(True)
        expect(not late, "streamed, reasoning comes after a call")


@check(optional="grammars")
def parallel_calls_can_be_forbidden(server: Endpoint) -> None:
    """With `parallel_tool_calls: false` there is one call at most, required or not."""
    for asked in (REQUIRED, {**ASKED, "messages": WEATHER_ASKED}):
        choice = server.chat(**asked, parallel_tool_calls=False)["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        expect(len(calls) <= 1, f"there are {len(calls)} calls")


@check("TAB-58")
def calls_of_free_answers_are_valid(server: Endpoint) -> None:
    """What a model calls of its own accord has an offered name and valid arguments."""
    choice = server.chat(**{**ASKED, "messages": WEATHER_ASKED})["choices"][0]
    _expect_valid(_calls(choice))


@check()
def calls_that_cannot_be_are_refused(server: Endpoint) -> None:
    """A tool that is not offered, or `required` without tools, is a 400."""
    unknown = {"type": "function", "function": {"name": "no_such_tool"}}
    for fields in (
        {"tools": [WEATHER], "tool_choice": unknown},
        {"tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": "perhaps"},
    ):
        response = server.post(CHAT, server.chat_body(**fields))
        expect(response.status_code == 400, f"{fields} gave {response.status_code}")


def _calls(choice: Json) -> list[Json]:
    if choice["finish_reason"] == "length":
        raise NotShown("the model's call has no end")
    calls: list[Json] | None = choice["message"].get("tool_calls")
    expect(bool(calls), f"the answer is {choice['message'].get('content')!r}")
    return calls or []


def _expect_valid(calls: list[Json]) -> list[Json]:
    for call in calls:
        name = call["function"]["name"]
        arguments = json.loads(call["function"]["arguments"])
        if name == "get_weather":
            valid = isinstance(arguments.get("city"), str)
        else:
            expect(name == "get_time", f"it calls {name!r}")
            in_schema = set(arguments) == {"zone", "seconds"}
            valid = in_schema and arguments["zone"] in ("UTC", "CET")
            valid = valid and type(arguments["seconds"]) is bool
        expect(valid, f"{name} is called with {arguments}")
    return calls


CHECKS = (
    required_calls_are_made,
    streamed_required_calls_are_the_whole_ones,
    named_function_is_called,
    reasoning_comes_before_forced_calls,
    parallel_calls_can_be_forbidden,
    calls_of_free_answers_are_valid,
    calls_that_cannot_be_are_refused,
)
