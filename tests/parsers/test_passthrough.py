"""Text that no parser need see: answers are the same as if parsers had seen all of it."""

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    AnswerMarks,
    ContentDelta,
    Delta,
    Parser,
    Part,
    ReasoningDelta,
    ReasoningParser,
    TokenLogprob,
)
from enginebay.chat.answer.answer_parser import AnswerForm, AnswerParser
from enginebay.chat.answer.collector import Collector
from enginebay_parsers import REASONING, TOOLS
from tests.effort import examples
from tests.parsers.test_examples import WEATHER

# Each format, with some of the other kind; its own, if there is one of that name.
CASES = [(name, None) for name in REASONING] + [(None, name) for name in TOOLS]
WORDS = ["Well", " so", " it", "'s", " 4", ".", "\n", " ", "f", "H", "a", "{", "[", "<", "`", '"']
WORDS += ["```", "~~~", "   "]


class Fed(ReasoningParser):
    """A parser that sees everything."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser

    def feed(self, text: str) -> list[Part]:
        return self.parser.feed(text)

    def finish(self) -> list[Part]:
        return self.parser.finish()

    def settled(self) -> list[tuple[int, bool]]:
        assert isinstance(self.parser, ReasoningParser)
        return self.parser.settled()


def form_of(name: str, *, inside: bool, calls: bool, trim: bool) -> AnswerForm:
    format = REASONING[name]
    marks = [format.answer_marks(behind_thought=each) for each in (False, True)]
    if not calls:
        marks = [AnswerMarks(each.opens, each.closes, each.required) for each in marks]
    return AnswerForm(format.marks(tools=calls), *marks, inside=inside, trim=trim)


def parts_of(example: str) -> list[str]:
    """The tags and the words of an example."""
    return re.findall(r"<[^<>]*>|\[[^\[\]]*\]|\w+|\W", example)


@st.composite
def texts(draw: st.DrawFn, *names: str) -> list[str]:
    """What the formats' models may write, in pieces: by tags and words, or of one length."""
    formats = [form for name in names for form in (REASONING.get(name), TOOLS.get(name)) if form]
    written = st.sampled_from([parts_of(form.example) for form in formats])
    words = st.sampled_from(WORDS).map(lambda word: [word])
    begun = st.builds(lambda parts, end: parts[:end], written, st.integers(0, 40))
    later = st.builds(lambda parts, start: parts[start:], written, st.integers(0, 40))
    quoted = begun.map(lambda parts: ["`", *parts[:1], "`"])
    runs = st.one_of(words, words, words, begun, later, quoted, st.text(max_size=3).map(list))
    pieces = list(itertools.chain.from_iterable(draw(st.lists(runs, max_size=12))))
    length = draw(st.sampled_from([0, 0, 1, 2, 5]))
    text = "".join(pieces)
    return [text[n : n + length] for n in range(0, len(text), length)] if length else pieces


@st.composite
def deltas(draw: st.DrawFn, pieces: Sequence[str]) -> list[Delta]:
    """The deltas of these texts, some of them joined, with or without logprobs."""
    logprobs = draw(st.booleans())
    result: list[Delta] = []
    at = 0
    while at < len(pieces):
        joined = pieces[at : at + draw(st.sampled_from([1, 1, 1, 2, 3]))]
        tokens = [draw(st.integers(0 if text else 1, 2)) for text in joined]
        entries = tuple(TokenLogprob(n, str(at), -1.0) for n in range(sum(tokens)))
        sizes = zip(map(len, joined), tokens, strict=True)
        result.append(
            Delta(
                text="".join(joined),
                token_ids=(at,) * sum(tokens),
                logprobs=entries if logprobs else None,
                pieces=tuple(sizes) if len(joined) > 1 else (),
            )
        )
        at += len(joined)
    return [*result, Delta(finish_reason="stop")]


def answer(collector: Collector, deltas: Sequence[Delta]) -> Iterator[object]:
    """All that a collector says: the parts of each delta, and what it counts."""
    for delta in deltas:
        yield collector.feed(delta), collector.reasoning_tokens, collector.tool_calls
    yield collector.end, collector.finished


@pytest.mark.parametrize(("reasoning", "tools"), CASES)
@examples(60)
@given(data=st.data(), inside=st.booleans(), trim=st.booleans(), merge=st.booleans())
def test_answers_are_those_of_parsers_that_see_all_text(
    reasoning: str | None,
    tools: str | None,
    data: st.DataObject,
    inside: bool,
    trim: bool,
    merge: bool,
) -> None:
    name = reasoning or tools or ""
    if tools is None:
        tools = data.draw(st.sampled_from([None, "hermes", *({name} & {*TOOLS})]))
    else:
        reasoning = data.draw(st.sampled_from([None, "think", *({name} & {*REASONING})]))
    in_thought, schemas = data.draw(st.booleans()), data.draw(st.sampled_from([WEATHER, None]))
    form = None
    if reasoning and data.draw(st.booleans()):
        form = form_of(reasoning, inside=inside, calls=data.draw(st.booleans()), trim=trim)

    def collector(*, fed: bool) -> Collector:
        thought: ReasoningParser | None = None
        if reasoning:
            thought = REASONING[reasoning].parser(
                inside=inside,
                spans=TOOLS[tools].spans if tools else (),
                spans_in_thought=in_thought,
            )
        if thought and form:
            thought = AnswerParser(thought, form)
        calls = TOOLS[tools].parser(schemas) if tools else None
        ids = map(str, itertools.count())
        return Collector(
            Fed(thought) if thought and fed else thought,
            Fed(calls) if calls and fed else calls,
            starts_in_reasoning=inside and reasoning is not None,
            trim=trim,
            merge=merge,
            new_call_id=partial(next, ids),
        )

    said = data.draw(deltas(data.draw(texts(*filter(None, (reasoning, tools))))))
    assert list(answer(collector(fed=False), said)) == list(answer(collector(fed=True), said))


@pytest.mark.parametrize(("reasoning", "tools"), CASES)
@examples(60)
@given(data=st.data(), inside=st.booleans())
def test_what_passes_through_is_what_parsers_make_of_it(
    reasoning: str | None, tools: str | None, data: st.DataObject, inside: bool
) -> None:
    check(parser_of(reasoning, tools, inside=inside), data.draw(texts(reasoning or tools or "")))


@pytest.mark.parametrize(("reasoning", "tools"), CASES)
def test_words_anywhere_in_an_example(reasoning: str | None, tools: str | None) -> None:
    form = REASONING[reasoning] if reasoning else TOOLS[tools or ""]
    parts = parts_of(form.example)
    for at in range(len(parts)):
        said = ["Well", " so", " it", '"', " is", *parts[at:]]
        check(parser_of(reasoning, tools, inside=False), [*parts[:at], *said])


def parser_of(reasoning: str | None, tools: str | None, *, inside: bool) -> Parser:
    if reasoning:
        return REASONING[reasoning].parser(inside=inside)
    return TOOLS[tools or ""].parser(WEATHER)


def check(parser: Parser, texts: Sequence[str]) -> None:
    """Feed texts, of which some need not be."""
    for text in texts:
        known = parser.passthrough()
        parts = parser.feed(text)
        settled = parser.settled() if isinstance(parser, ReasoningParser) else None
        if text and known and not set(text) & set(known.stops):
            thought = known.kind == "reasoning"
            assert parts == [ReasoningDelta(text) if thought else ContentDelta(text)]
            assert settled in (None, [(len(text), thought)])
            assert parser.passthrough() == known


@pytest.mark.parametrize("name", REASONING)
def test_words_pass_through_every_reasoning_format(name: str) -> None:
    format = REASONING[name]
    marks = format.marks(tools=False)
    assert marks
    for parser in (
        format.parser(inside=False),
        AnswerParser(
            format.parser(inside=False), form_of(name, inside=False, calls=True, trim=True)
        ),
    ):
        parser.feed(marks.start)
        parser.feed("Well, two and two is four.")
        assert passes(parser, "reasoning")
        parser.feed(marks.close)
        parser.feed("".join(format.answer_marks(behind_thought=True).opens[:1]))
        parser.feed("Well")
        assert passes(parser, "content")


@pytest.mark.parametrize("name", TOOLS)
def test_words_pass_through_every_tool_format(name: str) -> None:
    parser = TOOLS[name].parser(WEATHER)
    parser.feed("Well, ")
    assert passes(parser, "content")


def passes(parser: Parser, kind: str) -> bool:
    known = parser.passthrough()
    return known is not None and known.kind == kind and not set(" word") & set(known.stops)


def test_tildes_inside_a_line_are_one_text() -> None:
    """ANS-3: only at the beginning of a line they may open a fence."""
    check(parser_of("hunyuan", None, inside=False), ["We", "ll", "~~", "~W", "el", "l"])
