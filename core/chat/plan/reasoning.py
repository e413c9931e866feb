"""Reasoning controls of a request: for its template and for the engine."""

from collections.abc import Collection
from typing import Any

from core.chat.plan.params import PlannedParams
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.config.schema import ModelConfig
from core.contract.errors import InvalidRequestError
from core.contract.formats import ReasoningFormat
from core.contract.sampling_params import ReasoningBudget
from core.contract.types import ReasoningDelta
from core.models.overrides import Source
from core.models.served import ServedModel
from core.models.template.final_message import REASONING_FIELDS

_OFF = "none"
_HARDLY = "minimal"


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
    """The template variables for `reasoning_effort`, `enable_thinking` and `thinking`.

    Templates have two names for the switch, so both are set. An effort turns thinking on, `none`
    turns it off, `minimal` leaves it to the template.
    """
    variables: dict[str, Any] = {}
    effort = body.reasoning_effort
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
    names = ("reasoning_effort", "enable_thinking", "thinking")
    return [name for name in names if getattr(body, name) is not None]


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


async def planned_budget(
    planned: PlannedParams, body: ChatCompletionRequest, model: ServedModel, prompt: str
) -> PlannedParams:
    """The params with the budget of the request or the config, if any."""
    tokens, format = budget_tokens(body, model.config), model.reasoning
    marks = format.marks(tools=bool(body.offered_tools)) if format else None
    if not format or not marks or tokens is None or "reasoning_budget" in model.info.unsupported:
        return planned
    message = body.reasoning_budget_message
    if message is None:
        message = model.config.reasoning_budget_message
    if any("\ud800" <= char <= "\udfff" for char in message):
        raise InvalidRequestError(
            "the message contains a lone surrogate", param="reasoning_budget_message"
        )
    closing = await model.backend.tokenize(message + marks.close, add_special_tokens=False)
    budget = ReasoningBudget(
        tokens=tokens,
        start=marks.start,
        end=marks.end,
        close_token_ids=tuple(closing),
        starts_inside=starts_in_reasoning(body, format, prompt),
    )
    source: Source = "config" if body.budget_tokens is None else "request"
    return planned.set(source, reasoning_budget=budget)


def starts_in_reasoning(
    body: ChatCompletionRequest, format: ReasoningFormat | None, prompt: str
) -> bool:
    """Whether the answer continues reasoning: of the prompt's end, or of the last message.

    A continued message may lack the reasoning start tag, because its template dropped it, or have
    it too far before the prompt's end to be detected.
    """
    if format is None:
        return False
    if body.continue_final_message in REASONING_FIELDS or format.starts_inside(prompt):
        return True
    if body.continue_final_message:
        begun = body.messages[-1].content
    else:
        begun = body.response_prefix if body.add_generation_prompt else None
    parser = format.parser(inside=False)
    parts = [*parser.feed(begun), *parser.finish()] if isinstance(begun, str) else []
    return bool(parts) and isinstance(parts[-1], ReasoningDelta)


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
