"""Whole answers that think, walked at random: what calls is right, and what is JSON is right."""

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest

from enginebay import ContentDelta, Json, ToolCallDelta, json_value
from enginebay.chat.answer.answer_parser import AnswerParser
from enginebay.chat.answer.collector import Collector
from enginebay.chat.plan.chat_constraint import _Turn
from enginebay.chat.plan.tool_choice import CallRules
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.contract.types import Delta
from enginebay_parsers import REASONING, TOOLS
from tests.parsers.grammars.law import SCHEMAS, WEATHER
from tests.parsers.grammars.test_reasoning import tags_of
from tests.parsers.grammars.walk import Walker

PAIRS = [("harmony", "harmony"), ("solar", "solar"), ("cohere", "cohere"), ("granite", "granite")]
PAIRS += [("think", "hermes"), ("think", "llama3-json")]
SEEDS = range(8)


def turn_of(reasoning: str, tools: str, *, inside: bool, in_thought: bool) -> Any:
    format = REASONING[reasoning]
    model = SimpleNamespace(
        reasoning=format,
        reasoning_name=reasoning,
        config=SimpleNamespace(tools_in_reasoning=in_thought),
    )
    tool = {"type": "function", "function": {"name": "f"}}
    user = {"role": "user", "content": "hi"}
    body = ChatCompletionRequest.model_validate({"messages": [user], "tools": [tool]})
    calls = TOOLS[tools].grammar(SCHEMAS, parallel=True)
    assert calls
    return _Turn.of(body, cast(Any, model), calls, inside=inside), calls


def read(
    reasoning: str,
    tools: str,
    turn: Any,
    text: str,
    content: Json | None,
    mode: str,
    *,
    in_thought: bool,
) -> tuple[list[list[str]], str]:
    """Calls and content as the collector of a choice reads them."""
    format = TOOLS[tools]
    parser = REASONING[reasoning].parser(
        inside=turn.inside, spans=format.spans, spans_in_thought=in_thought and mode == "free"
    )
    if mode != "free":
        parser = AnswerParser(parser, turn.form(content, format.grammar(SCHEMAS, parallel=True)))
    collector = Collector(parser, format.parser(SCHEMAS), starts_in_reasoning=turn.inside)
    deltas: Iterable[Delta] = [Delta(text=char) for char in text]
    parts = [part for delta in deltas for part in collector.feed(delta)]
    parts += collector.feed(Delta(finish_reason="stop"))
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, ToolCallDelta):
            if part.name is not None:
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    return calls, "".join(part.text for part in parts if isinstance(part, ContentDelta))


@pytest.mark.parametrize("mode", ["free", "forced", "content"])
@pytest.mark.parametrize("in_thought", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("reasoning", "tools"), PAIRS)
def test_answers_that_think(
    reasoning: str, tools: str, inside: bool, in_thought: bool, mode: str
) -> None:
    # TAB-58
    turn, calls = turn_of(reasoning, tools, inside=inside, in_thought=in_thought)
    assert turn.inside == inside
    content = json_value({**WEATHER, "required": ["city", "days"]}) if mode == "content" else None
    rules = CallRules({}, parallel=True)
    grammar = turn.free(calls, rules) if mode == "free" else turn.whole(content, calls)
    tags = [tag for tag in tags_of(reasoning) if "END FINAL" not in tag]
    spans = [text for span in TOOLS[tools].spans for text in (span.start, span.end)]
    tags += [tag for tag in spans if tag.startswith("<") and tag.endswith(">")]
    ended = 0
    for special in (True, False):
        words = [turn.marks.end, *turn.marks.others, turn.marks.start]
        walker = Walker(tags, special=special, words=words)
        for walk in walker.walks(grammar, SEEDS):
            if not walk.ended:
                continue
            ended += 1
            found, said = read(
                reasoning, tools, turn, walk.text, content, mode, in_thought=in_thought
            )
            for name, arguments in found:
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            if mode == "forced":
                assert found, walk.text
                assert not said.strip(), walk.text
            if mode == "content" and not found:
                jsonschema.validate(json.loads(said), WEATHER)
    assert ended > len(SEEDS)
