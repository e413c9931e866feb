"""What stands around a constrained answer is none of it, in every reasoning format."""

import json
import re

import jsonschema
import pytest

from enginebay import ReasoningParser, UpTo, json_value, sequence
from enginebay.chat.answer.answer_parser import AnswerForm, AnswerParser
from enginebay_parsers import REASONING, TOOLS
from enginebay_parsers.channels.channels import Channels
from enginebay_parsers.reasoning.tag_pair import TagPair
from tests.parsers.cutting import Pipe, calls_of, content_of, run, text_of
from tests.parsers.grammars.law import NESTED, SCHEMAS, WEATHER, forced
from tests.parsers.grammars.walk import Walker


def tags_of(name: str) -> list[str]:
    form = REASONING[name]
    if isinstance(form, Channels):
        texts = [form.tags.begin, form.tags.message, form.tags.channel, *form.tags.ends]
    else:
        assert isinstance(form, TagPair)
        texts = [form.start, form.end, *form.answer]
    return [tag for text in texts for tag in re.findall(r"<[^<>]+>|\[[A-Z /]+\]", text)]


def answer_parser(name: str, *, inside: bool) -> ReasoningParser:
    """What reads an answer with JSON in it."""
    format = REASONING[name]
    at_once, behind = (format.answer_marks(behind_thought=each) for each in (False, True))
    form = AnswerForm(format.marks(tools=False), at_once, behind, inside=inside, trim=True)
    return AnswerParser(format.parser(inside=inside), form)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", REASONING)
def test_the_answer_is_the_json(name: str, special: bool) -> None:
    """Where the completion begins with it, and behind thought, opened by the prompt or not."""
    form, tags = REASONING[name], tags_of(name)
    walker = Walker(tags, special=special, words=[] if special else tags)
    marks = form.marks(tools=False)
    assert marks is not None
    for schema in (WEATHER, NESTED, {"type": ["integer", "string", "null"]}):
        value = json_value(schema)
        ended = 0
        for behind, inside in ((False, False), (True, False), (True, True)):
            grammar = form.answer_marks(behind_thought=behind).around(value)
            thought = f"hm{marks.end}" if inside else f"{marks.start}hm{marks.end}"
            for walk in walker.walks(grammar, range(10)):
                text = thought + walk.text if behind else walk.text
                if walk.ended:
                    parts = run(lambda inside=inside: answer_parser(name, inside=inside), text)
                    jsonschema.validate(json.loads(content_of(parts)), schema)
                    assert text_of(parts, "reasoning") == ("hm" if behind else ""), text
                    ended += 1
        assert ended >= 10


@pytest.mark.parametrize("special", [True, False])
def test_solar_calls_come_with_a_header(special: bool) -> None:
    solar, tools = REASONING["solar"], TOOLS["solar"]
    walker = Walker([*tags_of("solar"), "<|tool_calls|>", "<|calls|>"], special=special)
    for walk in walker.walks(forced(tools, SCHEMAS, parallel=True), range(30)):
        for thought in ("", "<|think|>hm<|end|>"):
            parts = run(lambda: Pipe(solar, tools, inside=False), [thought + walk.text])
            if walk.ended:
                assert calls_of(parts)
                assert content_of(parts) == ""


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", REASONING)
def test_thought_ends_where_its_end_stands(name: str, inside: bool, special: bool) -> None:
    """The model may spell any tag in thought, but for those that end it for a parser."""
    form, tags = REASONING[name], tags_of(name)
    marks = form.marks(tools=False)
    assert marks is not None
    value = form.answer_marks(behind_thought=True).around(json_value(WEATHER))
    thought = UpTo(marks.end, without=marks.others)
    grammar = sequence("" if inside else marks.start, thought, value)
    likely = [marks.end, *marks.others, *(text[:-1] for text in marks.others)]
    walker = Walker(tags, special=special, words=likely)
    walks = [walk for walk in walker.walks(grammar, range(20)) if walk.ended]
    assert len(walks) > 10
    for walk in walks:
        parts = run(lambda: answer_parser(name, inside=inside), list(walk.text))
        jsonschema.validate(json.loads(content_of(parts)), WEATHER)
        end = walk.text.index(marks.end) + len(marks.end)
        thought = run(lambda: form.parser(inside=inside), list(walk.text[:end]))
        assert content_of(thought) == "", walk.text


def test_an_end_of_thought_that_is_spelled_ends_it() -> None:
    """A parser cannot tell a special token from its letters."""
    grammar = sequence(UpTo("</think>"), json_value(WEATHER))
    walker = Walker(["</think>"], special=True)
    assert walker.accepts(grammar, 'hm</think>{"city"')
    assert not walker.accepts(grammar, "hm</think>?")
