"""`docs/api.md` has every field of the two routes, under all its names, and no other."""

import re
from collections.abc import Iterable, Iterator

import pytest
from pydantic import AliasChoices

from core.schemas.chat import ChatCompletionRequest
from core.schemas.common import GenerationBody
from core.schemas.completions import CompletionRequest
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")


def names(body: type[GenerationBody], fields: Iterable[str]) -> Iterator[str]:
    for name in fields:
        alias = body.model_fields[name].validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [name]
        yield ", ".join(f"`{choice}`" for choice in choices)


def documented(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"(?m)^\| (`.*?`) \|", section)


@pytest.mark.parametrize(
    ("heading", "body"),
    [
        ("Both routes", GenerationBody),
        ("Chat", ChatCompletionRequest),
        ("Completions", CompletionRequest),
    ],
)
def test_every_field_has_a_row(heading: str, body: type[GenerationBody]) -> None:
    inherited = GenerationBody.model_fields if body is not GenerationBody else {}
    own = [name for name in body.model_fields if name not in inherited]
    assert sorted(documented(heading)) == sorted(names(body, own))
