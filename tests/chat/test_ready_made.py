"""A chunk that is ready-made but for its text is what its schema makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.answer.compose_chat import ChatComposer
from enginebay.chat.answer.compose_openai import Head, OpenAIComposer, UsageForm
from enginebay.chat.answer.compose_text import TextComposer
from enginebay.chat.answer.composer import Frame, FrameTemplate, dumped
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.types import (
    ContentDelta,
    GenerationRequest,
    Part,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Update,
)

HEAD = Head("chatcmpl-\"1'", "a\\model", "fp")
TEXT = st.text(min_size=1)


def chat(*fields: str, **usage: bool) -> ChatComposer:
    form = UsageForm(**usage)
    return ChatComposer(HEAD, 2, UsageCounter(), usage=form, reasoning_fields=fields)


def text(**usage: bool) -> TextComposer:
    return TextComposer(HEAD, 1, 2, UsageCounter(), usage=UsageForm(**usage))


def composers() -> list[OpenAIComposer]:
    fields = ("reasoning_content", "reasoning")
    return [chat(*fields), chat(*fields, included=True), text(), text(included=True)]


def begun(composer: OpenAIComposer, index: int, part: Part) -> OpenAIComposer:
    """The composer after a choice's first update, which it makes ready for."""
    assert composer.frames(Update(index, [part]))
    return composer


def made(composer: OpenAIComposer, update: Update) -> list[Frame]:
    """What its schema makes of an update."""
    return [Frame(dumped(chunk)) for chunk in composer.chunks(update)]


@given(texts=st.lists(TEXT), index=st.integers(0, 1))
def test_text_is_what_the_schema_makes_of_it(texts: list[str], index: int) -> None:
    for composer in composers():
        begun(composer, index, ContentDelta("first"))
        for said in texts:
            update = Update(index, [ContentDelta(said)])
            assert composer.frames(update) == made(composer, update)


def test_it_is_serialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for composer in composers():
        begun(composer, 0, ContentDelta("first"))
        composer.frames(Update(0, [ContentDelta("second")]))
        monkeypatch.setattr(composer, "chunks", None)
        assert composer.frames(Update(0, [ContentDelta("third")]))
        with pytest.raises(TypeError):
            composer.frames(Update(1, [ContentDelta("first of another choice")]))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), TEXT)), st.booleans())
def test_arguments_are_what_the_schema_makes_of_them(
    pieces: list[tuple[int, int, str]], old_names: bool
) -> None:
    """Of several calls in several choices, in any order."""
    usage = UsageForm()
    sends, dumps = (
        ChatComposer(HEAD, 2, UsageCounter(), usage=usage, old_names=old_names) for _ in range(2)
    )
    named = [(index, ToolCallDelta(call, "f", "", "id")) for index in (0, 1) for call in (0, 1)]
    gained = [(index, ToolCallDelta(call, None, said)) for index, call, said in pieces]
    for index, part in [*named, *gained]:
        update = Update(index, [part])
        assert sends.frames(update) == made(dumps, update)


def test_arguments_are_serialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composer = begun(chat(), 0, ToolCallDelta(0, "f", "", "id"))
    for said in ('{"', "city"):
        composer.frames(Update(0, [ToolCallDelta(0, None, said)]))
    monkeypatch.setattr(composer, "chunks", None)
    [frame] = composer.frames(Update(0, [ToolCallDelta(0, None, '": "')]))
    [choice] = json.loads(frame.json)["choices"]
    assert choice["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": '": "'}}]}
    with pytest.raises(TypeError):
        composer.frames(Update(0, [ToolCallDelta(1, None, "of another call")]))


@given(st.lists(st.tuples(TEXT, st.integers()), min_size=1))
def test_several_holes(values: list[tuple[str, int]]) -> None:
    whole = {"a": "mark 1", "b": ["x", "mark 2"], "c": 3}
    template = FrameTemplate(Frame(json.dumps(whole).encode(), "name"), ["mark 1", "mark 2"])
    for said, number in values:
        frame = template.fill(said, number)
        assert frame.event == "name"
        assert json.loads(frame.json) == {"a": said, "b": ["x", number], "c": 3}


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chunk_without_usage_says_so_where_that_is_asked_for(include_usage: bool) -> None:
    for composer in (chat(included=include_usage), text(included=include_usage)):
        begun(composer, 0, ContentDelta("first"))
        for _ in range(3):
            [frame] = composer.frames(Update(0, [ContentDelta("next")]))
            shown = json.loads(frame.json).get("usage", "nothing")
            assert shown == (None if include_usage else "nothing")


@given(st.lists(TEXT, min_size=1))
def test_reasoning_is_ready_made_under_all_its_names(texts: list[str]) -> None:
    composer = begun(composers()[0], 0, ReasoningDelta("first"))
    for said in texts:
        [frame] = composer.frames(Update(0, [ReasoningDelta(said)]))
        delta = json.loads(frame.json)["choices"][0]["delta"]
        assert delta == {"reasoning_content": said, "reasoning": said}


def test_reasoning_that_is_left_out_has_no_chunk() -> None:
    composer = chat()
    assert composer.frames(Update(0, [ContentDelta("a")]))
    for _ in range(3):
        assert composer.frames(Update(0, [ReasoningDelta("a")])) == []


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
def test_what_is_more_than_a_text_is_as_the_schema_has_it(update: Update) -> None:
    for sends, dumps in zip(composers(), composers(), strict=True):
        for composer in (sends, dumps):
            begun(composer, 0, ContentDelta("first"))
            composer.frames(Update(0, [ContentDelta("second")]))
        assert sends.frames(update) == made(dumps, update)


def test_chunks_that_count_tokens_count_each() -> None:
    counter = UsageCounter()
    counter.add_prompt(GenerationRequest(request_id="a", prompt_token_ids=(1, 2)))
    usage = UsageForm(included=True, continuous=True)
    composer = ChatComposer(HEAD, 1, counter, usage=usage)
    composer.frames(Update(0, [ContentDelta("a")], tokens=1))
    for tokens in (2, 3, 4):
        [frame] = composer.frames(Update(0, [ContentDelta("a")], tokens=tokens))
        assert json.loads(frame.json)["usage"]["completion_tokens"] == tokens
