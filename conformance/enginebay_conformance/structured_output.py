"""Checks of structured output: JSON, schemas, choices, regular expressions."""

import json
import math
import re
from contextlib import suppress

from enginebay_conformance.answers import SUM
from enginebay_conformance.endpoint import Endpoint, Json, Stream
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check

PARCEL: Json = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green"]},
        "weight": {"type": "integer"},
        "fragile": {"type": "boolean"},
    },
    "required": ["colour", "weight", "fragile"],
    "additionalProperties": False,
}
COLOURS = ["red", "green"]
DATE = "[0-9]{4}-[0-9]{2}"
ROOM = 300  # tokens, for models that like white space


def json_schema(schema: Json) -> Json:
    """The `response_format` of a schema."""
    named = {"name": "parcel", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


BY_SCHEMA: Json = {"response_format": json_schema(PARCEL), "max_tokens": ROOM}


@check(optional="grammars")
def schemas_are_kept(server: Endpoint) -> None:
    """With a `json_schema` the answer is valid, whole, streamed, and however hot."""
    _expect_parcel(_content(server, **BY_SCHEMA))
    _expect_parcel(_streamed(server.stream(**BY_SCHEMA)))
    ended = 0
    for seed in range(3, 11):  # hot models may write numbers without end
        with suppress(NotShown):
            _expect_parcel(_content(server, **BY_SCHEMA, temperature=1.5, seed=seed))
            ended += 1
        if ended == 2:
            return
    raise NotShown("at temperature 1.5 the model did not come to an end")


@check(optional="grammars")
def schemas_bind_each_choice(server: Endpoint) -> None:
    """With `n` each choice is valid by itself."""
    for choice in server.chat(**BY_SCHEMA, n=2, temperature=1)["choices"]:
        _expect_parcel(_finished(choice))


@check(optional="grammars")
def json_object_is_an_object(server: Endpoint) -> None:
    """With `json_object` the answer is an object."""
    messages = [{"role": "user", "content": "Tell me about a train, as JSON."}]
    asked: Json = {"messages": messages, "response_format": {"type": "json_object"}}
    content = _content(server, **asked, max_tokens=ROOM)
    expect(isinstance(_parsed(content), dict), f"the answer is {content!r}")


@check("TAB-58", optional="grammars")
def constraints_bind_behind_thought(server: Endpoint) -> None:
    """A schema applies to the answer, not to the reasoning before it."""
    choice = server.chat(messages=SUM, **BY_SCHEMA)["choices"][0]
    if not choice["message"].get("reasoning_content"):
        raise NotShown("the model did not reason")
    _expect_parcel(_finished(choice))


@check(optional="grammars")
def torn_json_ends_with_length(server: Endpoint) -> None:
    """JSON that `max_tokens` cuts ends with `length`, streamed too."""
    asked = {**BY_SCHEMA, "max_tokens": 3}
    reasons = [server.chat(**asked)["choices"][0]["finish_reason"]]
    reasons.append(server.stream(**asked).finish_reason())
    expect(reasons == ["length", "length"], f"it ends {reasons}")


@check(optional="grammars")
def answers_are_one_of_the_choices(server: Endpoint) -> None:
    """With vLLM's choices, under both names, the answer is one of them."""
    both = {"guided_choice": COLOURS, "structured_outputs": {"choice": COLOURS}}
    content = _content(server, **both)
    expect(content in COLOURS, f"the answer is {content!r}")
    text = server.complete(**both)["choices"][0]["text"]
    expect(text in COLOURS, f"the completion is {text!r}")


@check(optional="grammars")
def answers_match_regular_expressions(server: Endpoint) -> None:
    """With an expression, under vLLM's and TabbyAPI's names, all of the answer matches."""
    names: Json = {
        "guided_regex": DATE,
        "structured_outputs": {"regex": DATE},
        "regex_pattern": DATE,
    }
    content = _content(server, **names)
    expect(re.fullmatch(DATE, content) is not None, f"the answer is {content!r}")


@check(optional="grammars")
def schemas_have_other_names(server: Endpoint) -> None:
    """A schema is kept as `json_schema` (llama.cpp, TabbyAPI) and as vLLM's `guided_json`."""
    vllm = {"guided_json": PARCEL, "structured_outputs": {"json": PARCEL}}
    for names in ({"json_schema": PARCEL}, vllm):
        _expect_parcel(_content(server, **names, max_tokens=ROOM))


@check(optional="grammars")
def empty_schemas_do_no_harm(server: Endpoint) -> None:
    """An empty schema is any JSON; values that mean nothing constrain nothing."""
    free = server.chat()["choices"][0]["message"]["content"]
    off: Json = {"guided_json": None, "guided_choice": None, "response_format": {"type": "text"}}
    content = server.chat(**off)["choices"][0]["message"]["content"]
    expect(content == free, f"with nothing asked for the answer is {content!r}, not {free!r}")
    _parsed(_content(server, messages=SUM, response_format=json_schema({}), max_tokens=ROOM))


@check("WEB-31", "WEB-32", optional="grammars")
def times_of_grammars_are_numbers(server: Endpoint) -> None:
    """`usage.extra` has the times of a grammar where there was one, and only there."""
    extra = server.chat(**BY_SCHEMA)["usage"].get("extra")
    if extra is None or "grammar_init_s" not in extra:
        raise NotShown("usage has no times of a grammar")  # which may be another server's
    for name in ("grammar_init_s", "grammar_per_token_s"):
        number = extra.get(name)
        fine = isinstance(number, int | float) and math.isfinite(number) and number >= 0
        expect(fine, f"{name} is {number!r}")
        free = server.chat(max_tokens=1)["usage"]["extra"]
        expect(free.get(name) is None, f"{name} is {free.get(name)} without a grammar")


def _content(server: Endpoint, **fields: object) -> str:
    return _finished(server.chat(**fields)["choices"][0])


def _finished(choice: Json) -> str:
    if choice["finish_reason"] == "length":
        raise NotShown("the model did not come to an end")
    expect(choice["finish_reason"] == "stop", f"it ends {choice['finish_reason']!r}")
    content = choice["message"]["content"]
    expect(isinstance(content, str), f"the content is {content!r}")
    return str(content)


def _streamed(stream: Stream) -> str:
    return _finished(
        {"finish_reason": stream.finish_reason(), "message": {"content": stream.joined()}}
    )


def _parsed(content: str) -> object:
    try:
        return json.loads(content)
    except ValueError:
        expect(False, f"it is not JSON: {content!r}")
        raise


def _expect_parcel(content: str) -> None:
    parcel = _parsed(content)
    valid = (
        isinstance(parcel, dict)
        and set(parcel) == {"colour", "weight", "fragile"}
        and parcel["colour"] in COLOURS
        and type(parcel["weight"]) is int
        and type(parcel["fragile"]) is bool
    )
    expect(valid, f"it is not valid: {content!r}")


CHECKS = (
    schemas_are_kept,
    schemas_bind_each_choice,
    json_object_is_an_object,
    constraints_bind_behind_thought,
    torn_json_ends_with_length,
    answers_are_one_of_the_choices,
    answers_match_regular_expressions,
    schemas_have_other_names,
    empty_schemas_do_no_harm,
    times_of_grammars_are_numbers,
)
