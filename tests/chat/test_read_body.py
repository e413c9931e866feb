"""Errors of request bodies: where in the body, and what should stand there."""

from typing import Any

import pytest

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.contract.errors import InvalidRequestError

CONTENT = "messages[0].content"


def said(error: pytest.ExceptionInfo[InvalidRequestError], param: str) -> str:
    assert error.value.param == param
    return error.value.message.removeprefix(f"{param}: Input should be ")


@pytest.mark.parametrize(
    ("content", "param", "wanted"),
    [
        (7, CONTENT, "a string or a list"),
        ({"type": "text"}, CONTENT, "a string or a list"),
        (["a"], f"{CONTENT}[0]", "an object"),
        ([{"type": ["text"]}], f"{CONTENT}[0].type", "a string"),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": 5}],
            f"{CONTENT}[1].text",
            "a string",
        ),
    ],
)
def test_content_of_the_wrong_type(content: Any, param: str, wanted: str) -> None:
    messages = [{"role": "user", "content": content}]
    with pytest.raises(InvalidRequestError) as error:
        read_body(ChatCompletionRequest, {"messages": messages})
    assert said(error, param) == wanted


@pytest.mark.parametrize(
    ("fields", "param", "wanted"),
    [
        ({"tools": 5}, "tools", "a list"),
        ({"tools": [5]}, "tools[0]", "an object"),
        ({"n": "many"}, "n", "an integer"),
        ({"temperature": [1]}, "temperature", "a number"),
        ({"stream": "maybe"}, "stream", "true or false"),
        ({"guided_choice": [5]}, "guided_choice[0]", "a string"),
        (
            {"tool_choice": {"type": "function", "function": {"name": 5}}},
            "tool_choice.function.name",
            "a string",
        ),
        (
            {"response_format": {"type": "x"}},
            "response_format.type",
            "'text', 'json', 'json_object', 'json_schema' or 'grammar'",
        ),
    ],
)
def test_fields_of_the_wrong_type(fields: dict[str, Any], param: str, wanted: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(InvalidRequestError) as error:
        read_body(ChatCompletionRequest, {"messages": messages, **fields})
    assert said(error, param) == wanted


def test_what_is_no_object() -> None:
    with pytest.raises(InvalidRequestError, match="must be a JSON object"):
        read_body(ChatCompletionRequest, [1])
