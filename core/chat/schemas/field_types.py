"""Fields of request bodies: the names they have, and what clients send in the place of nothing."""

import json
from typing import Any

from pydantic import AliasChoices, Field
from pydantic.fields import FieldInfo


def aliased(name: str, *aliases: str) -> Any:
    """A field that is None unless sent, under any of these names; the first one sent counts."""
    return Field(default=None, validation_alias=AliasChoices(name, *aliases))


def field_names(name: str, field: FieldInfo) -> list[str]:
    """All names of a field."""
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]


def zero_if_minus_one(value: Any) -> Any:
    """-1 is 0: off."""
    return 0 if value == -1 else value


def none_if_minus_one(value: Any) -> Any:
    """-1 is not set."""
    return None if value == -1 else value


def none_if_zero(value: Any) -> Any:
    """0 is not set."""
    return None if value == 0 else value


def one_if_zero(value: Any) -> Any:
    """0 is 1: off."""
    return 1 if value == 0 else value


def minus_one_if_negative(value: Any) -> Any:
    """Anything below 0 is -1: off."""
    return -1 if isinstance(value, int | float) and value < 0 else value


def two_if_true(value: Any) -> Any:
    """True is version 2."""
    return 2 if value is True else value


def one_as_list(value: Any) -> Any:
    """A text is a list of it."""
    return [value] if isinstance(value, str) else value


def json_text(value: Any) -> Any:
    """An object is its JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def json_list(value: Any) -> Any:
    """SillyTavern sends lists of texts as JSON; an empty one means not set."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except (ValueError, RecursionError) as error:
            raise ValueError("must be a list of texts, or JSON of one") from error
    return value or None


def token_list(value: Any) -> Any:
    """Token ids as a list, or as SillyTavern sends them: `"1, 2"`; an empty one means not set.

    One error for whatever is wrong, however many there are.
    """
    if isinstance(value, str):
        words = value.strip().removeprefix("[").removesuffix("]").split(",")
        words = [word.strip() for word in words if word.strip()]
        if not all(word.isascii() and word.isdecimal() and len(word) <= 10 for word in words):
            raise ValueError("must be token ids, separated by commas")
        value = [int(word) for word in words]
    if value is not None and not (
        isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    ):
        raise ValueError("must be a list of token ids")
    return value or None


def token_bias(value: Any) -> Any:
    """One error for a wrong bias, however many tokens have one."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers from -100 to 100")
    for token_id, bias in value.items():
        if not str(token_id).isdecimal():
            raise ValueError(f"{token_id!r} is no token id")
        if not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token_id} is not a number from -100 to 100")
    return value
