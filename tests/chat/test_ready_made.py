"""A chunk that is ready-made but for its text is what its schema makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chat.answer.compose_chat import ChatComposer
from core.chat.answer.compose_text import TextComposer
from core.chat.answer.composer import Composer, Head
from core.chat.answer.usage import UsageCounter
from core.contract.types import (
    ContentDelta,
    Part,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Update,
)

HEAD = Head("chatcmpl-\"1'", "a\\model", "fp")
TEXT = st.text(min_size=1)


def composers() -> list[Composer]:
    fields = ("reasoning_content", "reasoning")
    return [
        ChatComposer(HEAD, 2, reasoning_fields=fields),
        ChatComposer(HEAD, 2, reasoning_fields=fields, include_usage=True),
        TextComposer(HEAD, 1, 2),
        TextComposer(HEAD, 1, 2, include_usage=True),
    ]


def begun(composer: Composer, index: int, part: Part) -> Composer:
    """The composer after a choice's first update, which it makes ready for."""
    first = Update(index, [part])
    assert composer.ready_made(first) is None
    assert list(composer.chunks(first))
    return composer


@given(texts=st.lists(TEXT), index=st.integers(0, 1))
def test_text_is_what_the_schema_makes_of_it(texts: list[str], index: int) -> None:
    for composer in composers():
        begun(composer, index, ContentDelta("first"))
        for text in texts:
            update = Update(index, [ContentDelta(text)])
            [chunk] = composer.chunks(update)
            assert composer.ready_made(update) == chunk.model_dump_json(exclude_unset=True).encode()


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chunk_without_usage_says_so_where_that_is_asked_for(include_usage: bool) -> None:
    for composer in (
        ChatComposer(HEAD, 1, include_usage=include_usage),
        TextComposer(HEAD, 1, 1, include_usage=include_usage),
    ):
        begun(composer, 0, ContentDelta("first"))
        ready = composer.ready_made(Update(0, [ContentDelta("next")]))
        assert ready
        assert json.loads(ready).get("usage", "nothing") == (None if include_usage else "nothing")


@given(TEXT)
def test_reasoning_is_ready_made_under_all_its_names(text: str) -> None:
    composer = begun(composers()[0], 0, ReasoningDelta("first"))
    ready = composer.ready_made(Update(0, [ReasoningDelta(text)]))
    assert ready
    delta = json.loads(ready)["choices"][0]["delta"]
    assert delta == {"reasoning_content": text, "reasoning": text}


def test_reasoning_that_is_left_out_has_no_chunk() -> None:
    composer = ChatComposer(HEAD, 1, reasoning_fields=())
    for _ in range(3):
        update = Update(0, [ReasoningDelta("a")])
        assert composer.ready_made(update) is None
        list(composer.chunks(update))


@pytest.mark.parametrize(
    "update",
    [
        Update(0, []),
        Update(0, [ContentDelta("a")], finish_reason="stop"),
        Update(0, [ContentDelta("a"), ReasoningDelta("b")]),
        Update(0, [ContentDelta("a", (TokenLogprob(1, "a", -1.0),))]),
        Update(0, [ToolCallDelta(0, "f")]),
        Update(0, [ContentDelta("a")], prompt_logprobs=(None,)),
    ],
    ids=str,
)
def test_what_is_more_than_a_text_is_not_ready_made(update: Update) -> None:
    for composer in composers():
        begun(composer, 0, ContentDelta("first"))
        assert composer.ready_made(update) is None


def test_chunks_that_count_tokens_are_not_ready_made() -> None:
    composer = ChatComposer(HEAD, 1, continuous=UsageCounter())
    assert composer.ready_made(Update(0, [ContentDelta("a")], tokens=1)) is None
    assert composer.ready_made(Update(0, [ContentDelta("b")], tokens=2)) is None
