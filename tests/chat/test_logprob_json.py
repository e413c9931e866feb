"""Logprobs that are put together from kept JSON are, byte for byte, what their schema makes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError, to_json

from enginebay.chat.answer.compose_chat import ChatComposer
from enginebay.chat.answer.compose_openai import Head, OpenAIComposer, UsageForm
from enginebay.chat.answer.compose_text import Shown, TextComposer
from enginebay.chat.answer.composer import Frame, dumped
from enginebay.chat.answer.logprobs import LogprobForm, SplicedLogprobs, TokenPieces
from enginebay.chat.answer.usage import UsageCounter
from enginebay.chat.schemas.chat_answer import ChatLogprobs
from enginebay.chat.schemas.usage_bodies import LlamaTimings, Usage
from enginebay.contract.types import (
    ContentDelta,
    FinishReason,
    GenerationRequest,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Update,
)
from enginebay_ollama.composer import LineComposer, chat_line

HEAD = Head("chatcmpl-\"1'[7]", "a\\model[7]", "fp")
CHOICES = 3
USUAL = [
    " the",
    "\n",
    "",
    " ",
    '"',
    "\\",
    "\x00",
    "\x7f",
    "\ufffd",
    "\u2028",
    "é",
    "😀",
    ",",
    "-1.5",
]
TEXT = st.sampled_from(USUAL) | st.text(max_size=8)
IDS = st.integers(0, 9)
LOGPROB: st.SearchStrategy[float] = (
    st.floats()
    | st.sampled_from([0.0, -0.0, -9999.0, -9998.9, 5e-324, -1e-7, 1e16])
    | st.integers(-5, 0)  # which some backends give
)
TOPS = st.lists(st.builds(TopLogprob, IDS, TEXT, LOGPROB), max_size=4).map(tuple)
ENTRIES = st.lists(st.builds(TokenLogprob, IDS, TEXT, LOGPROB, TOPS), max_size=3).map(tuple)
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(ContentDelta, TEXT, ENTRIES),
    st.builds(ContentDelta, TEXT),
    st.builds(ReasoningDelta, TEXT),
    st.builds(RefusalDelta, TEXT),
    st.builds(ToolCallDelta, st.integers(0, 1), st.none(), TEXT),
)
UPDATES = st.lists(
    st.builds(
        Update,
        st.integers(0, CHOICES - 1),
        st.lists(PARTS, min_size=1, max_size=1) | st.lists(PARTS, max_size=3),
        tokens=st.integers(0, 99),
        token_ids=st.lists(IDS, max_size=3).map(tuple),
    ),
    max_size=8,
)
FORMS = st.builds(
    LogprobForm, st.booleans(), st.sampled_from([0, 1, 3, 1000]).map(lambda n: TokenPieces(n, 5))
)
USAGE = st.builds(
    UsageForm,
    included=st.booleans(),
    continuous=st.booleans(),
    with_finish=st.booleans(),
    timings=st.booleans(),
    timings_per_token=st.booleans(),
)


@given(FORMS, st.lists(ENTRIES, max_size=4))
def test_a_list_is_what_the_schema_makes_of_it(
    form: LogprobForm, lists: list[tuple[TokenLogprob, ...]]
) -> None:
    for entries in lists:
        assert b'{"content":%b}' % form.chat_json(entries) == dumped(form.chat(entries))


@given(FORMS, st.text(st.characters(categories=["Cs"]), min_size=1), TEXT)
def test_what_has_no_utf_8_is_refused_by_both(form: LogprobForm, half: str, text: str) -> None:
    token = half + text
    top = TopLogprob(0, token, -1.0)
    for entry in (TokenLogprob(0, token, -1.0), TokenLogprob(0, "a", -1.0, (top,))):
        if form.as_ids:  # only bytes are written, with `?`
            assert b'{"content":%b}' % form.chat_json([entry]) == dumped(form.chat([entry]))
            continue
        for write in (form.chat_json, lambda entries: dumped(form.chat(entries))):
            with pytest.raises(PydanticSerializationError, match="surrogates not allowed"):
                write([entry])


class Timeless(UsageCounter):
    """Counts without a clock."""

    @property
    def usage(self) -> Usage:
        return super().usage.model_copy(update={"extra": None})

    @property
    def llama_timings(self) -> LlamaTimings:
        self._completion_tokens += 1  # no two are alike
        return super().llama_timings


def composers(
    usage: UsageForm, form: LogprobForm, *, logprobs: bool, ids: bool
) -> list[Callable[[], OpenAIComposer]]:
    """What makes a composer of each API, each time the same."""

    def counter() -> UsageCounter:
        counter = Timeless(0.0)
        counter.add_prompt(GenerationRequest(request_id="a", prompt_token_ids=(7,), n=CHOICES))
        return counter

    common: dict[str, Any] = {
        "usage": usage,
        "form": form,
        "prompt_token_ids": [[7]] if ids else None,
    }
    shown = Shown(logprobs=logprobs)
    return [
        lambda: ChatComposer(HEAD, CHOICES, counter(), logprobs=logprobs, **common),
        lambda: ChatComposer(HEAD, CHOICES, counter(), old_names=True, **common),
        lambda: TextComposer(HEAD, 1, CHOICES, counter(), shown=shown, **common),
    ]


COUNTED = UsageForm(included=True, continuous=True)
THREE = tuple(TokenLogprob(ord(text), text, -1.0) for text in "abc")


@given(UPDATES, USAGE, FORMS, st.booleans(), st.booleans())
@example([Update(0, [ContentDelta("abc", THREE)], tokens=9)], COUNTED, LogprobForm(), True, True)
def test_frames_are_what_the_schema_makes_of_them(
    updates: list[Update], usage: UsageForm, form: LogprobForm, logprobs: bool, ids: bool
) -> None:
    ends: list[FinishReason] = ["stop", "length", "stop"]
    last = [Update(index, [], end, token_ids=(1,)) for index, end in enumerate(ends)]
    for make in composers(usage, form, logprobs=logprobs, ids=ids):
        sends, dumps = make(), make()
        for update in [*updates * 3, *last]:
            made = [Frame(dumped(chunk)) for chunk in dumps.sent(update)]
            assert sends.frames(update) == made


@given(UPDATES, FORMS, st.booleans(), st.booleans())
def test_whole_answers_are_what_the_schema_makes_of_them(
    updates: list[Update], form: LogprobForm, logprobs: bool, ids: bool
) -> None:
    for make in composers(UsageForm(), form, logprobs=logprobs, ids=ids):
        writes, dumps = make(), make()
        for update in updates:
            writes.add(update)
            dumps.add(update)
        assert writes.whole_json() == dumped(dumps.whole())


@given(st.lists(ENTRIES, max_size=4), FORMS)
def test_lists_are_put_back_in_their_order(
    lists: list[tuple[TokenLogprob, ...]], form: LogprobForm
) -> None:
    spliced = SplicedLogprobs(form)
    bodies = [spliced.chat(entries) for entries in lists]
    json = to_json({"a": bodies, "b": 1})
    assert spliced.put_into(json) == to_json({"a": list(map(form.chat, lists)), "b": 1})
    assert all(isinstance(body, ChatLogprobs) for body in bodies)


@given(UPDATES)
def test_lines_of_ollama_are_what_their_schema_makes(updates: list[Update]) -> None:
    class At(LineComposer):
        def stamp(self) -> object:
            return "now"

        def _about(self, time: str | None = None) -> dict[str, Any]:
            return super()._about(time or "now")

    class Dumping(At):
        def _ready_made(self, part: Part) -> Frame | None:
            return None

    sends, dumps = (
        made("id", UsageCounter(), "m", chat_line, LogprobForm()) for made in (At, Dumping)
    )
    for update in updates * 3:
        assert sends.frames(update) == dumps.frames(update)


def test_the_json_of_a_token_is_made_once() -> None:
    class Counting(TokenPieces):
        made = 0

        def __missing__(self, token: Any) -> Any:
            self.made += 1
            return super().__missing__(token)

    pieces = Counting(limit=2, longest=3)
    entries = [TokenLogprob(i, text, -1.0) for i, text in enumerate(["a", "b", "a", "b"])]
    for _ in range(2):  # of two requests
        LogprobForm(pieces=pieces).chat_json(entries)
    assert (pieces.made, len(pieces)) == (2, 2)
    LogprobForm(pieces=pieces).chat_json([TokenLogprob(3, "long", -1.0)] * 2)
    assert (pieces.made, len(pieces)) == (4, 0)
    LogprobForm(True, pieces).chat_json(entries)
    assert len(pieces) == 2
