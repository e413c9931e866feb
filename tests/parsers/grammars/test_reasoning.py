"""What stands around a constrained answer is none of it, in every reasoning format."""

import json
import re

import jsonschema
import pytest

from enginebay import UpTo, json_value, sequence
from parsers import REASONING, TOOLS
from parsers.channels import Channels
from parsers.tag_pair import TagPair
from tests.parsers.cutting import Pipe, calls_of, content_of, run, text_of
from tests.parsers.grammars.law import NESTED, SCHEMAS, WEATHER, forced
from tests.parsers.grammars.walk import Walker

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def tags_of(name: str) -> list[str]:
    form = REASONING[name]
    if isinstance(form, Channels):
        texts = [form.tags.begin, form.tags.message, form.tags.channel, *form.tags.ends]
    else:
        assert isinstance(form, TagPair)
        texts = [form.start, form.end, *form.answer]
    return [tag for text in texts for tag in re.findall(r"<[^<>]+>|\[[A-Z /]+\]", text)]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", REASONING)
def test_the_answer_is_the_json(name: str, special: bool) -> None:
    """Where the completion begins with it, and behind thought, opened by the prompt or not."""
    form, tags = REASONING[name], tags_of(name)
    walker = Walker(tags, special=special)
    marks = form.marks(tools=False)
    assert marks is not None
    for schema in (WEATHER, NESTED, {"type": ["integer", "string", "null"]}):
        value = json_value(schema)
        ended = 0
        for behind, inside in ((False, False), (True, False), (True, True)):
            grammar = form.around(value, behind_thought=behind)
            thought = f"hm{marks.end}" if inside else f"{marks.start}hm{marks.end}"
            for walk in walker.walks(grammar, range(10)):
                text = thought + walk.text if behind else walk.text
                parts = run(lambda inside=inside: form.parser(inside=inside), list(text))
                strings = "".join(STRING.findall(walk.text))
                # Without special tokens a string may hold a tag; then the API has to know better.
                if walk.ended and not any(tag in strings for tag in tags):
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


@pytest.mark.parametrize("name", REASONING)
def test_thought_ends_where_its_end_stands(name: str) -> None:
    form = REASONING[name]
    marks = form.marks(tools=False)
    assert marks is not None
    value = form.around(json_value(WEATHER), behind_thought=True)
    grammar = sequence(marks.start, UpTo(marks.end), value)
    walker = Walker([], special=False, words=[marks.end])
    walks = [walk for walk in walker.walks(grammar, range(20)) if walk.ended]
    assert len(walks) > 10
    for walk in walks:
        parts = run(lambda: form.parser(inside=False), [walk.text])
        jsonschema.validate(json.loads(content_of(parts)), WEATHER)


def test_an_end_of_thought_that_is_spelled_ends_it() -> None:
    """A parser cannot tell a special token from its letters."""
    grammar = sequence(UpTo("</think>"), json_value(WEATHER))
    walker = Walker(["</think>"], special=True)
    assert walker.accepts(grammar, 'hm</think>{"city"')
    assert not walker.accepts(grammar, "hm</think>?")
