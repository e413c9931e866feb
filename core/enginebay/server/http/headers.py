"""Headers that report what a request did not get."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from enginebay.chat.plan.strictness import accept_ignored
from enginebay.server.services import services
from enginebay.serving.answer import Answer

UNSUPPORTED_HEADER = "X-Unsupported-Params"
CLAMPED_HEADER = "X-Clamped-Params"
TRUNCATED_HEADER = "X-Truncated-Prompt-Tokens"
DROPPED_HEADER = "X-Dropped-Messages"
_LONGEST = 4000  # characters


def unsupported_header(http: Request, names: Sequence[str]) -> dict[str, str]:
    """The header that names unsupported parameters, or an error if the config says so."""
    accept_ignored(names, services(http).config.server)
    return ignored_header(names)


def answer_headers(answer: Answer[Any]) -> dict[str, str]:
    """All headers that an answer calls for."""
    return (
        ignored_header(answer.ignored)
        | clamped_header(answer.clamped)
        | truncated_header(answer.plan.cut)
        | dropped_header(answer.plan.dropped)
    )


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names unsupported parameters."""
    if not names:
        return {}
    text = ", ".join(name for name in names if name.isascii() and name.isprintable())
    if len(text) > _LONGEST:
        whole = text[:_LONGEST].rpartition(", ")[0]
        text = f"{whole or text[:_LONGEST]}, ..."
    return {UNSUPPORTED_HEADER: text}


def add_ignored(response: Response, names: Sequence[str]) -> None:
    """Name further unsupported parameters in the header of a response."""
    before = response.headers.get(UNSUPPORTED_HEADER)
    named = before.split(", ") if before else []
    response.headers.update(ignored_header(list(dict.fromkeys([*named, *names]))))


def clamped_header(clamped: Mapping[str, int]) -> dict[str, str]:
    """The header that names params that were lowered, and to what."""
    text = ", ".join(f"{name}={value}" for name, value in clamped.items())
    return {CLAMPED_HEADER: text} if text else {}


def truncated_header(cut: int) -> dict[str, str]:
    """The header that says how many tokens were cut off the beginning of prompts."""
    return {TRUNCATED_HEADER: str(cut)} if cut else {}


def dropped_header(dropped: int) -> dict[str, str]:
    """The header that says how many of a chat's oldest messages were left out."""
    return {DROPPED_HEADER: str(dropped)} if dropped else {}
