"""What clients of other APIs call the fields of a request."""

import pytest

from enginebay.contract.errors import InvalidRequestError
from enginebay.serving.asked import Names

NAMES = Names(
    {
        "messages[2]": "input[4]",
        "messages[2].content[1]": "input[4].content[0]",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "tools[0].function": "tools[1]",
    }
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("max_tokens", "max_output_tokens"),
        ("messages[2].content[1].text", "input[4].content[0].text"),
        ("messages[2].content[0]", "input[4].content[0]"),
        ("messages[2]", "input[4]"),
        ("messages[20]", "messages[20]"),
        ("response_format.json_schema.schema", "text.format.json_schema.schema"),
        ("tools[0].function.parameters", "tools[1].parameters"),
        ("temperature", "temperature"),
        ("", ""),
    ],
)
def test_the_longest_place_counts(path: str, name: str) -> None:
    assert NAMES.of(path) == name


@pytest.mark.parametrize(
    ("param", "message", "renamed"),
    [
        ("max_tokens", "max_tokens: too few", "max_output_tokens: too few"),
        ("seed", "seed is lower than max_tokens", "seed is lower than max_output_tokens"),
        (None, "see messages[2].content", "see input[4].content"),
        ("tools", "tools need no messages", "tools need no messages"),
    ],
)
def test_errors_speak_of_the_clients_fields(param: str | None, message: str, renamed: str) -> None:
    with pytest.raises(InvalidRequestError) as raised, NAMES.in_errors():
        raise InvalidRequestError(message, param=param)
    assert raised.value.message == renamed
    assert raised.value.param == (param and NAMES.of(param))


def test_each_name_once() -> None:
    assert NAMES.each(["max_tokens", "seed", "max_tokens"]) == ("max_output_tokens", "seed")
