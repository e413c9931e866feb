"""Checks with the `openai` SDK: its models validate what is sent, its helpers understand it."""

from typing import Any, Literal

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from enginebay_conformance.answers import SUM
from enginebay_conformance.endpoint import STORY, Endpoint, Json
from enginebay_conformance.expect import Mismatch, NotShown, Unsupported, expect
from enginebay_conformance.run_checks import check
from enginebay_conformance.shapes import expect_shape
from enginebay_conformance.tools import ASKED

FIELDS: tuple[Json, ...] = (
    {},
    {"n": 2},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"logprobs": True, "top_logprobs": 2},
    {"messages": SUM, "max_tokens": 200},
    ASKED,
)


class _Parcel(BaseModel):
    colour: Literal["red", "green"]
    weight: int
    fragile: bool


@check("MLC-39")
def whole_answers_validate(server: Endpoint) -> None:
    """The SDK's `ChatCompletion` validates whole answers of all kinds strictly."""
    for fields in FIELDS:
        expect_shape(ChatCompletion, server.chat(**{**fields, "stream_options": None}))


@check("MLC-15", "MLC-39")
def chunks_validate(server: Endpoint) -> None:
    """The SDK's `ChatCompletionChunk` validates every chunk of all kinds of streams strictly."""
    for fields in FIELDS:
        for chunk in server.stream(**fields).chunks:
            expect_shape(ChatCompletionChunk, chunk)


@check(optional="prompts")
def completions_validate(server: Endpoint) -> None:
    """The SDK's `Completion` validates text completions and their chunks."""
    expect_shape(Completion, server.complete(logprobs=2))
    for chunk in server.stream_text(stream_options={"include_usage": True}).chunks:
        for choice in chunk["choices"]:  # the SDK's type has no word for "not yet", the wire null
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        expect_shape(Completion, chunk)


@check("MLC-37")
def models_validate(server: Endpoint) -> None:
    """The SDK lists models, and its `Model` validates each."""
    expect(server.model in [model.id for model in server.openai.models.list()], "it is not listed")
    for card in server.http.get("/v1/models").json()["data"]:
        expect_shape(Model, card)


@check("MLC-32")
def stream_helper_understands_streams(server: Endpoint) -> None:
    """The SDK's stream helper puts together what the whole answer is, calls included."""
    for fields in ({"messages": STORY, "max_tokens": 24}, ASKED):
        asked: dict[str, Any] = {"model": server.model, "temperature": 0, "seed": 1, **fields}
        whole = server.openai.chat.completions.create(**asked).choices[0]
        with server.openai.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            snapshot = stream.current_completion_snapshot.choices[0]
        expect(snapshot.finish_reason == whole.finish_reason, f"{snapshot.finish_reason}")
        expect(snapshot.message.content in (whole.message.content, ""), "the content differs")
        calls = [
            [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
            for message in (snapshot.message, whole.message)
        ]
        expect(calls[0] == calls[1], f"calls are {calls[0]} and {calls[1]}")


@check("MLC-32")
def parse_helper_understands_answers(server: Endpoint) -> None:
    """The SDK's `parse` gives the calls' arguments as objects."""
    tool = ASKED["tools"][0]
    strict = {**tool, "function": {**tool["function"], "strict": True}}
    asked: dict[str, Any] = {"model": server.model, "temperature": 0, "seed": 1, **ASKED}
    try:
        answer = server.openai.chat.completions.parse(**{**asked, "tools": [strict]})
    except openai.LengthFinishReasonError as error:
        raise NotShown("the model's call has no end") from error
    calls = answer.choices[0].message.tool_calls
    if not calls:
        raise NotShown("the model made no call")
    for call in calls:
        parsed = call.function.parsed_arguments
        expect(isinstance(parsed, dict), f"parsed arguments are {parsed!r}")


@check(optional="grammars")
def parse_helper_understands_schemas(server: Endpoint) -> None:
    """The SDK's `parse` sends the schema of a model and gives an object of it."""
    asked: dict[str, Any] = {"model": server.model, "messages": STORY, "max_tokens": 300}
    asked |= {"temperature": 0, "seed": 1}
    try:
        answer = server.openai.chat.completions.parse(**asked, response_format=_Parcel)
    except openai.LengthFinishReasonError as error:
        raise NotShown("the model did not come to an end") from error
    except openai.BadRequestError as error:
        if error.code == "unsupported_parameter":
            raise Unsupported(f"the server says: {error.message}") from error
        raise
    except ValueError as error:
        raise Mismatch(f"it is not valid: {error}") from error
    parsed = answer.choices[0].message.parsed
    expect(isinstance(parsed, _Parcel), f"parsed it is {parsed!r}")


@check("MLC-5", "MLC-38")
def exceptions_are_the_sdks(server: Endpoint) -> None:
    """An unknown model is the SDK's `NotFoundError`, a wrong value its `BadRequestError`."""
    tried: tuple[tuple[type[openai.APIStatusError], dict[str, Any]], ...] = (
        (openai.NotFoundError, {"model": "no-such-model"}),
        (openai.BadRequestError, {"model": server.model, "temperature": -1}),
    )
    for kind, fields in tried:
        try:
            server.openai.chat.completions.create(**{"messages": STORY, "max_tokens": 1, **fields})
        except kind as error:
            expect(bool(error.body), "the SDK finds no error object")
        except openai.APIError as error:
            expect(False, f"{fields} raises {type(error).__name__}")
        else:
            expect(False, f"{fields} is answered")


CHECKS = (
    whole_answers_validate,
    chunks_validate,
    completions_validate,
    models_validate,
    stream_helper_understands_streams,
    parse_helper_understands_answers,
    parse_helper_understands_schemas,
    exceptions_are_the_sdks,
)
