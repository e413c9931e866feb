"""The parser configuration of an answer, which captures store and replay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.chat.answer.answer_parser import AnswerForm, AnswerParser, OnlyCalls
from enginebay.chat.answer.collector import Collector
from enginebay.chat.answer.trimmed_parser import TrimmedParser
from enginebay.contract.formats import (
    AnswerMarks,
    Margins,
    Parser,
    ReasoningFormat,
    ReasoningParser,
    Schemas,
    ThoughtMarks,
    ToolFormat,
    new_call_id,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRecipe:
    """How the text of each choice of an answer is parsed.

    `reasoning` and `tools` are names of formats, None for none; `schemas` are those of the
    functions that are offered. `answer` is the name of the tool format when no tools are offered:
    what the model writes around an answer is stripped. `tools_in_reasoning`: whether a call inside
    reasoning counts. `form`: the tags around a constrained answer. `margins`: the whitespace around
    reasoning that is left out. `calls_only`: a grammar forces calls, so all other content is markup
    that was cut off. For the rest see `Collector`.
    """

    reasoning: str | None = None
    tools: str | None = None
    answer: str | None = None
    schemas: Schemas = field(default_factory=dict)
    starts_in_reasoning: bool = False
    tools_in_reasoning: bool = True
    form: AnswerForm | None = None
    margins: Margins = field(default_factory=Margins)
    trim: bool = False
    merge: bool = False
    one_call: bool = False
    named_call: bool = False
    calls_only: bool = False

    def collector(
        self, reasoning: Mapping[str, ReasoningFormat], tools: Mapping[str, ToolFormat]
    ) -> Collector:
        """A collector for one choice, using these formats; `KeyError` if one is missing.

        The first delta of each call gets an id in its format's form.
        """
        format = tools[self.tools] if self.tools else None
        calls = format.parser(self.schemas) if format else self._answer_parser(tools)
        return Collector(
            self._reasoning_parser(reasoning, format),
            OnlyCalls(calls) if calls and self.calls_only else calls,
            starts_in_reasoning=self.starts_in_reasoning,
            trim=self.trim,
            merge=self.merge,
            one_call=self.one_call,
            named_call=self.named_call,
            new_call_id=format.new_call_id if format else new_call_id,
        )

    def _answer_parser(self, formats: Mapping[str, ToolFormat]) -> Parser | None:
        return formats[self.answer].answer_parser() if self.answer else None

    def _reasoning_parser(
        self, formats: Mapping[str, ReasoningFormat], tools: ToolFormat | None
    ) -> ReasoningParser | None:
        if self.reasoning is None:
            return None
        parser = formats[self.reasoning].parser(
            inside=self.starts_in_reasoning,
            spans=tools.spans if tools else (),
            spans_in_thought=self.tools_in_reasoning,
        )
        if self.form:
            parser = AnswerParser(parser, self.form)
        return TrimmedParser(parser, self.margins) if self.margins != Margins() else parser


def recipe_of(written: Mapping[str, Any]) -> CollectorRecipe:
    """A recipe that `dataclasses.asdict` has made plain. `TypeError` or `KeyError` for others."""
    fields = dict(written)
    if margins := fields.get("margins"):
        fields["margins"] = Margins(**margins)
    if form := fields.get("form"):
        thought = form["thought"]
        fields["form"] = AnswerForm(
            thought=ThoughtMarks(**_tuples(thought)) if thought else None,
            at_once=AnswerMarks(**_tuples(form["at_once"])),
            behind=AnswerMarks(**_tuples(form["behind"])),
            inside=form["inside"],
            trim=form["trim"],
        )
    return CollectorRecipe(**fields)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
