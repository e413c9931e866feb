"""Reasoning controls of a request: for its template and for the engine."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from enginebay.chat.answer.thought_end import ThoughtEnd
from enginebay.chat.plan.params import PlannedParams
from enginebay.chat.plan.tool_choice import reads_calls
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.formats import Margins
from enginebay.contract.types import ReasoningDelta
from enginebay.models.overrides import Source
from enginebay.models.served import ServedModel
from enginebay.models.template.final_message import REASONING_FIELDS

_OFF = "none"
_HARDLY = "minimal"
_SWITCHES = ("enable_thinking", "thinking", "think")
_FIELDS = ("reasoning_effort", *_SWITCHES)


def template_variables(body: ChatCompletionRequest, config: ModelConfig) -> dict[str, Any]:
    """The variables of a request's template.

    In ascending precedence: the config's, those the request's own fields stand for,
    `chat_template_kwargs`, and those that the config forces.
    """
    return {
        **config.template_vars,
        **thinking_variables(body),
        **(body.chat_template_kwargs or {}),
        **config.force_template_vars,
    }


def thinking_variables(body: ChatCompletionRequest) -> dict[str, Any]:
    """The template variables for `reasoning_effort`, `enable_thinking`, `thinking` and `think`.

    Templates have two names for the switch, so both are set. An effort turns thinking on, `none`
    turns it off, `minimal` leaves it to the template.
    """
    variables: dict[str, Any] = {}
    effort = body.effort
    wanted = None if effort in (None, _HARDLY) else effort != _OFF
    if body.thinks is not None:
        wanted = body.thinks
    if wanted is not None:
        variables |= {"enable_thinking": wanted, "thinking": wanted}
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables


def ignored_thinking(body: ChatCompletionRequest, read: Collection[str]) -> list[str]:
    """Fields that have no effect on a template that reads only these variables."""
    if not thinking_variables(body).keys().isdisjoint(read):
        return []
    asked = [name for name in _FIELDS if getattr(body, name) is not None]
    if hides_thought(body):
        return [name for name in asked if isinstance(getattr(body, name), str)]  # efforts
    return asked


def hides_thought(body: ChatCompletionRequest) -> bool:
    """Whether a request is to have no thought, and is shown none however the model goes about it.

    Thinking is off for it then, whether or not the model can be told so.
    """
    return body.thinks is False and body.include_reasoning is False


def forced_otherwise(
    body: ChatCompletionRequest, config: ModelConfig, read: Collection[str]
) -> list[str]:
    """Fields that ask for other values of these variables than the config forces."""
    sent = body.chat_template_kwargs or {}
    own = thinking_variables(body)
    if hides_thought(body):
        own = {name: value for name, value in own.items() if name not in _SWITCHES}
    asked = {**own, **sent}
    forced = config.force_template_vars
    denied = {
        name for name in asked.keys() & forced.keys() & {*read} if asked[name] != forced[name]
    }
    names = [f"chat_template_kwargs.{name}" for name in sent if name in denied]
    denied -= sent.keys()
    if denied:
        switched = "reasoning_effort" not in denied and body.thinks is not None
        of_these = _SWITCHES if switched else ("reasoning_effort", "think")
        names += [name for name in of_these if getattr(body, name) is not None]
    return names


def budget_tokens(body: ChatCompletionRequest, config: ModelConfig) -> int | None:
    """The reasoning budget in tokens: the request's, else the config's; None: unlimited."""
    asked = body.budget_tokens
    tokens = config.reasoning_budget if asked is None else asked
    return None if tokens is None or tokens < 0 else tokens


def ignored_budget(body: ChatCompletionRequest, model: ServedModel) -> list[str]:
    """The name of a requested budget that cannot be enforced."""
    if body.budget_tokens is None or budget_tokens(body, model.config) is None:
        return []
    marks = model.reasoning.marks(tools=False) if model.reasoning else None
    kept = marks is not None and "reasoning_budget" not in model.info.unsupported
    return [] if kept else ["reasoning_budget"]


def thought_end(
    body: ChatCompletionRequest, model: ServedModel, *, inside: bool
) -> ThoughtEnd | None:
    """How the thought of an answer can be ended; None if it cannot. `inside`: it starts in one.

    `InvalidRequestError` for a message that cannot be inserted.
    """
    format = model.reasoning
    marks = format.marks(tools=reads_calls(body, model.config)) if format else None
    if not marks or "reasoning_budget" in model.info.unsupported:
        return None
    message = body.reasoning_budget_message
    if message is None:
        message = model.config.reasoning_budget_message
    if any("\ud800" <= char <= "\udfff" for char in message):
        raise InvalidRequestError(
            "the message contains a lone surrogate", param="reasoning_budget_message"
        )
    return ThoughtEnd(marks.start, marks.end, message + marks.close, inside)


async def planned_budget(
    planned: PlannedParams, body: ChatCompletionRequest, model: ServedModel, end: ThoughtEnd | None
) -> PlannedParams:
    """The params with the budget of the request or the config, if any."""
    tokens = budget_tokens(body, model.config)
    if tokens is None or end is None:
        return planned
    source: Source = "config" if body.budget_tokens is None else "request"
    return planned.set(source, reasoning_budget=await end.budget(model.backend, tokens))


def starts_in_reasoning(body: ChatCompletionRequest, model: ServedModel, prompt: str) -> bool:
    """Whether the answer continues reasoning: of the prompt's end, or of the last message.

    `reasoning_start` of the config goes before what the prompt shows. A continued message may lack
    the reasoning start tag, because its template dropped it, or have it too far before the prompt's
    end to be detected.
    """
    format, start = model.reasoning, model.config.reasoning_start
    if format is None:
        return False
    if body.continue_final_message in REASONING_FIELDS:
        return True
    if start == "auto" and format.starts_inside(prompt):
        return True
    inside = start == "always" and not body.continue_final_message
    if body.continue_final_message:
        begun = body.messages[-1].content
    else:
        begun = body.response_prefix if body.add_generation_prompt else None
    if not begun or not isinstance(begun, str):
        return inside
    parser = format.parser(inside=inside)
    parts = [*parser.feed(begun), *parser.finish()]
    return bool(parts) and isinstance(parts[-1], ReasoningDelta)


def reasoning_margins(
    body: ChatCompletionRequest, model: ServedModel, prompt: str, *, inside: bool, constrained: bool
) -> Margins:
    """The whitespace around reasoning that is left out; none if the request wants the raw text.

    An answer that continues reasoning may begin with a line break of its own, unless the start tag
    ends the prompt. After reasoning, a constrained answer has the whitespace of its grammar.
    """
    format = model.reasoning
    if format is None or body.trim_reasoning is False or is_merged(body, model.config):
        return Margins()
    margins, marks = format.margins(), format.marks(tools=False)
    if inside and not (marks and prompt.endswith(marks.start)):
        margins = replace(margins, lead="")
    return replace(margins, gap="") if constrained else margins


def reasoning_fields(body: ChatCompletionRequest, config: ModelConfig) -> tuple[str, ...]:
    """The answer's fields for reasoning; empty if it is left out or part of the content."""
    if body.include_reasoning is False or is_merged(body, config):
        return ()
    if config.reasoning_field == "both":
        return ("reasoning_content", "reasoning")
    if config.reasoning_field == "content":
        return ("reasoning_content",)
    return (config.reasoning_field,)


def is_merged(body: ChatCompletionRequest, config: ModelConfig) -> bool:
    """Whether reasoning is part of the content, between tags."""
    if body.include_reasoning is False:
        return False
    if body.separate_reasoning is not None:
        return not body.separate_reasoning
    return config.reasoning_field == "content"
