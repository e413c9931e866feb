"""Detects a model's reasoning and tool formats from its chat template.

A template that renders earlier turns shows what the model was trained to write. So a small
conversation is rendered, and each format's own parser reads the assistant's part: the format that
recovers the input is the model's. Where a template drops reasoning or calls from the history, its
source is searched for their tags.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.formats import Parser, ReasoningFormat, ToolFormat
from enginebay.contract.types import ContentDelta, Part, ReasoningDelta, ToolCallDelta
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.probe_messages import CALL_ARGUMENTS, CALL_NAME, CALL_TOOL, reasoning

_ASKED = "What is to be done?"
_THOUGHT = "First alphathought, then betathought."
_ANSWER = "This is gammaanswer."
_SHOWN = 80  # characters of a sample that evidence quotes
_OPEN_TAG = re.compile(r"[<\[{][^<\[{>\]}\s]{0,40}\Z")
_THINKING_ON: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True, "thinking": True},
    {"thinking_mode": "thinking", "reasoning_effort": "high"},
)

logger = logging.getLogger(__name__)

Format = TypeVar("Format", ReasoningFormat, ToolFormat)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Detected(Generic[Format]):
    """A format, its registered name and the evidence; no format if none was found."""

    name: str | None
    format: Format | None
    evidence: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """The assistant's text in a rendered conversation, and the prompt before it."""

    prompt: str
    text: str


def choose_reasoning(
    wanted: str, formats: Mapping[str, ReasoningFormat], template: TemplateFeatures | None
) -> Detected[ReasoningFormat]:
    """The format that the config names (`none` for none), or with `auto` the template's."""
    return _configured(wanted, formats) or detect_reasoning(formats, template)


def choose_tools(
    wanted: str, formats: Mapping[str, ToolFormat], template: TemplateFeatures | None
) -> Detected[ToolFormat]:
    """The format that the config names (`none` for none), or with `auto` the template's."""
    return _configured(wanted, formats) or detect_tools(formats, template)


def _configured(wanted: str, formats: Mapping[str, Format]) -> Detected[Format] | None:
    if wanted == "auto":
        return None
    if wanted == "none":
        return Detected(None, None, "set to none in the config")
    if wanted not in formats:
        raise BackendUnavailableError(f"unknown reasoning or tool format {wanted!r}")
    return Detected(wanted, formats[wanted], "set in the config")


def detect_reasoning(
    formats: Mapping[str, ReasoningFormat], template: TemplateFeatures | None
) -> Detected[ReasoningFormat]:
    """The format in which the template writes earlier reasoning, opens it, or mentions its tags."""
    if template is None:
        return Detected(None, None, "there is no chat template")
    for variables in _THINKING_ON:
        sample = _reasoning_sample(template, variables)
        if sample is None or _THOUGHT not in sample.text:
            continue
        left = {
            name: _tried(name, partial(_reasoning_left, each, sample), None)
            for name, each in formats.items()
        }
        if name := _best(formats, template.template.source, left):
            evidence = f"reads back the reasoning in {_quoted(sample.text)}{_with(variables)}"
            return _found(formats, name, evidence)
    for variables in _THINKING_ON:
        prompt = template.render([template.says("user", _ASKED)], variables=variables) or ""
        opened = {
            name: 0 if _tried(name, partial(each.starts_inside, prompt), False) else None
            for name, each in formats.items()
        }
        if name := _best(formats, template.template.source, opened):
            end = _quoted(prompt[-_SHOWN // 2 :])
            return _found(formats, name, f"the generation prompt opens it: {end}{_with(variables)}")
    return _by_tags(formats, template)


def detect_tools(
    formats: Mapping[str, ToolFormat], template: TemplateFeatures | None
) -> Detected[ToolFormat]:
    """The format in which the template writes earlier calls, or whose tags it mentions.

    A template that writes calls in a way that no format reads has none, whatever tags it mentions.
    """
    if template is None:
        return Detected(None, None, "there is no chat template")
    sample = _call_sample(template)
    if sample is None or CALL_ARGUMENTS["city"] not in sample.text:
        return _by_tags(formats, template)
    schemas = {CALL_NAME: CALL_TOOL["function"]["parameters"]}
    left = {
        name: _tried(name, partial(_calls_left, each, schemas, sample.text), None)
        for name, each in formats.items()
    }
    if name := _best(formats, template.template.source, left):
        return _found(formats, name, f"reads back the call in {_quoted(sample.text)}")
    return Detected(None, None, f"no format reads back the call in {_quoted(sample.text)}")


def _found(formats: Mapping[str, Format], name: str, evidence: str) -> Detected[Format]:
    return Detected(name, formats[name], evidence)


def _by_tags(formats: Mapping[str, Format], template: TemplateFeatures) -> Detected[Format]:
    for name, format in formats.items():
        if _tried(name, partial(format.matches, template.template.source), False):
            return _found(formats, name, "its tags are in the chat template")
    return Detected(None, None, "none found in the chat template")


def _best(formats: Mapping[str, Format], source: str, left: Mapping[str, int | None]) -> str | None:
    """The format that leaves the least text unparsed; None in `left`: it did not parse it.

    Ties go to one whose tags are in the template's source, then to the first registered.
    """
    ranks = {
        name: (length, not _tried(name, partial(formats[name].matches, source), False))
        for name, length in left.items()
        if length is not None
    }
    return min(ranks, key=ranks.__getitem__, default=None)


def _reasoning_sample(template: TemplateFeatures, variables: Mapping[str, Any]) -> _Sample | None:
    answer = template.says("assistant", _ANSWER, **reasoning(_THOUGHT))
    return _sample(template, answer, variables=variables)


def _call_sample(template: TemplateFeatures) -> _Sample | None:
    return _sample(template, template.known_call, tools=template.trial_tools)


def _sample(template: TemplateFeatures, answer: Any, **options: Any) -> _Sample | None:
    """What the template adds for this answer to a question."""
    asked = [template.says("user", _ASKED)]
    before = template.render(asked, **options)
    after = template.render([*asked, answer], add_generation_prompt=False, **options)
    if before is None or after is None:
        return None
    start = _common_start(before, after)
    return _Sample(after[:start], after[start:])


def _common_start(before: str, after: str) -> int:
    """The length of the common prefix, without a partial tag that then differs."""
    if after.startswith(before):
        return len(before)
    start = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    opened = _OPEN_TAG.search(after[:start])
    return opened.start() if opened else start


def _read(parser: Parser, text: str) -> list[Part]:
    return [*parser.feed(text), *parser.finish()]


def _tried(name: str, question: Callable[[], T], otherwise: T) -> T:
    """Return what a format says. One that fails matches nothing, and the log names it."""
    try:
        return question()
    except (Exception, SystemExit):  # a plugin's own code
        logger.exception("the format %s failed to read a chat template", name)
        return otherwise


def _reasoning_left(format: ReasoningFormat, sample: _Sample) -> int | None:
    """How much text is left beside the answer; None if reasoning and answer were not separated."""
    parts = _read(format.parser(inside=format.starts_inside(sample.prompt)), sample.text)
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    content = "".join(part.text for part in parts if isinstance(part, ContentDelta))
    if _THOUGHT not in reasoning or _ANSWER not in content or _ANSWER in reasoning:
        return None
    return len(content) + len(reasoning)


def _calls_left(format: ToolFormat, schemas: Mapping[str, Any], text: str) -> int | None:
    """How much text is left beside the call; None if it is not the original call."""
    parts = _read(format.parser(schemas), text)
    calls = [part for part in parts if isinstance(part, ToolCallDelta)]
    names = [part.name for part in calls if part.name is not None]
    try:
        arguments = json.loads("".join(part.arguments for part in calls))
    except ValueError:
        return None
    if names != [CALL_NAME] or arguments != CALL_ARGUMENTS:
        return None
    return sum(len(part.text) for part in parts if isinstance(part, ContentDelta))


def _quoted(text: str) -> str:
    shown = text.strip()
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…")


def _with(variables: Mapping[str, Any]) -> str:
    return f" with {dict(variables)}" if variables else ""
