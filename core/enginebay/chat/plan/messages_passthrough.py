"""A chat request as a `Chat`, for models that take messages: no template, no tokens, no parsers."""

from collections.abc import Iterator, Sequence
from typing import Any

from enginebay.chat.plan.media_parts import MediaPart, media_parts, picture_list
from enginebay.chat.plan.params import sampling_layers
from enginebay.chat.plan.reasoning import (
    budget_tokens,
    forced_otherwise,
    hides_thought,
    template_variables,
    thinking_variables,
)
from enginebay.chat.plan.template_messages import place_tool_results
from enginebay.chat.plan.tool_choice import CallRules, call_rules
from enginebay.chat.schemas.chat_request import ChatCompletionRequest, Thinking
from enginebay.chat.schemas.constraint_fields import (
    ANY_OBJECT,
    ChoiceConstraint,
    Constraint,
    GrammarConstraint,
    RegexConstraint,
    SchemaConstraint,
)
from enginebay.chat.schemas.messages import Message
from enginebay.contract.chat import Chat, Json
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.media.data_url import data_of
from enginebay.media.kinds import sniff
from enginebay.media.policy import ByteLimit
from enginebay.models.served import ServedModel

_SCHEMA_NAME = "answer"  # for a schema without a name, which OpenAI's API wants
_OF_PROMPTS = (
    *("documents", "response_prefix", "add_special_tokens", "reasoning_budget_message"),
    *("truncate_prompt_tokens", "return_tokens_as_token_ids", "return_token_ids"),
    *("truncation_length", "mm_processor_kwargs", "media_io_kwargs", "strict_roles"),
)


def unrendered_chat(body: ChatCompletionRequest, model: ServedModel) -> Chat:
    """What a request asks of a model that takes messages.

    `InvalidRequestError` for what would make the answer wrong if ignored: a constraint, a forced
    call, a message to continue.
    """
    _refuse_prompts(body, model)
    rules = call_rules(body)
    form, other_form = _form(body, model)
    lacks = model.info.unsupported
    if rules.forced:
        for field in ("tools", "tool_choice"):
            _require(model, field, "tool_choice" if body.function_call is None else "function_call")
    chosen: set[str] = set()
    for values in sampling_layers(body, model).values():
        chosen |= values.keys()
    thinking = thinking_variables(body)
    told_not_to_call = body.tool_choice == "none" and "tool_choice" not in lacks
    tools = () if "tools" in lacks else _tools(body, rules, all_of_them=told_not_to_call)
    return Chat(
        messages=tuple(_messages(body.messages)),
        tools=tools,
        tool_choice=_tool_choice(body, rules) if tools and "tool_choice" not in lacks else None,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
        response_format=form,
        structured_outputs=other_form,
        reasoning_effort=body.effort,
        enable_thinking=thinking.get("enable_thinking"),
        reasoning_budget=budget_tokens(body, model.config),
        chat_template_kwargs=template_variables(body, model.config),
        chosen_params=frozenset(chosen),
    )


def ignored_unrendered(body: ChatCompletionRequest, model: ServedModel) -> list[str]:
    """Names of requested fields that have no effect."""
    lacks = model.info.unsupported
    ignored = [name for name in _OF_PROMPTS if getattr(body, name) not in (None, False, "", [])]
    if body.offered_tools and "tools" in lacks:
        ignored.append("tools")
    if body.free_functions:
        ignored.append("functions")
    if body.drops_oldest:
        ignored.append("truncate_history" if body.overflow is None else "overflow")
    if {"reasoning_effort", "enable_thinking"} <= lacks and body.effort is not None:
        ignored.append("reasoning_effort" if body.reasoning_effort is not None else "think")
    if "enable_thinking" in lacks and not hides_thought(body):
        names = ("enable_thinking", "thinking", "think")
        ignored += [name for name in names if isinstance(getattr(body, name), bool | Thinking)]
    budget = None if body.budget_tokens is None else budget_tokens(body, model.config)
    if budget is not None and "reasoning_budget" in lacks:
        ignored.append("reasoning_budget")
    if "chat_template_kwargs" in lacks:
        ignored += [f"chat_template_kwargs.{name}" for name in body.chat_template_kwargs or {}]
    else:
        forced = model.config.force_template_vars
        ignored += forced_otherwise(body, model.config, forced)
    if body.continuous_usage:
        ignored.append("stream_options.continuous_usage_stats")
    return ignored


def _refuse_prompts(body: ChatCompletionRequest, model: ServedModel) -> None:
    """Raise for fields that only work where the prompt is rendered here."""
    asked = {
        "continue_final_message": bool(body.continue_final_message),
        "add_generation_prompt": not body.add_generation_prompt,
        "chat_template": body.chat_template is not None,
    }
    for name, wanted in asked.items():
        if wanted:
            raise UnsupportedParameterError(
                f"{name} is not supported: model {model.asked!r} takes messages, and its "
                "prompt is rendered elsewhere",
                param=name,
            )


def _require(model: ServedModel, field: str, param: str) -> None:
    if field in model.info.unsupported:
        raise UnsupportedParameterError(
            f"{param} is not supported: the backend of model {model.asked!r} does not "
            f"accept {field}",
            param=param,
        )


def _form(body: ChatCompletionRequest, model: ServedModel) -> tuple[Json | None, Json | None]:
    """`response_format` and `structured_outputs`, of which one at most is asked for."""
    asked = body.asked_constraint()
    if asked is None:
        return None, None
    param, constraint = asked
    if isinstance(constraint, SchemaConstraint):
        _require(model, "response_format", param)
        return _response_format(body, constraint), None
    _require(model, "structured_outputs", param)
    return None, _structured_outputs(constraint)


def _response_format(body: ChatCompletionRequest, constraint: SchemaConstraint) -> Json:
    if constraint == ANY_OBJECT:
        return {"type": "json_object"}
    sent = body.response_format and body.response_format.json_schema
    described = sent.model_dump(exclude_none=True, by_alias=True) if sent else {}
    schema = {"name": _SCHEMA_NAME, **described, "schema": constraint.schema}
    return {"type": "json_schema", "json_schema": schema}


def _structured_outputs(constraint: Constraint) -> Json:
    match constraint:
        case RegexConstraint(pattern):
            return {"regex": pattern}
        case ChoiceConstraint(texts):
            return {"choice": list(texts)}
        case GrammarConstraint(source):
            return {"grammar": source}
        case SchemaConstraint(schema):
            return {"json": schema}


def _tools(body: ChatCompletionRequest, rules: CallRules, *, all_of_them: bool) -> tuple[Json, ...]:
    """The tools that may be called, or all, for the calls in the history."""
    allowed = {function.name for function in rules.functions.values()}
    return tuple(
        tool.model_dump(exclude_none=True)
        for tool in body.tools or ()
        if all_of_them or tool.function.name in allowed
    )


def _tool_choice(body: ChatCompletionRequest, rules: CallRules) -> Any:
    if rules.named:
        [name] = {function.name for function in rules.functions.values()}
        return {"type": "function", "function": {"name": name}}
    if rules.forced:
        return "required"
    return body.tool_choice if isinstance(body.tool_choice, str) else None


def _messages(messages: Sequence[Message]) -> Iterator[Json]:
    """The messages, with missing call ids filled in."""
    dumped = [message.model_dump(exclude_none=True) for message in messages]
    _move_images(dumped, messages)
    for position, message in enumerate(dumped):
        for number, call in enumerate(message.get("tool_calls") or ()):
            call.setdefault("id", f"call_{position}_{number}")
        if message["role"] == "assistant":
            message.setdefault("content", None)  # there are servers that want to see it
    if any(message["role"] == "tool" and "tool_call_id" not in message for message in dumped):
        place_tool_results(dumped)
    yield from dumped


def _move_images(dumped: Sequence[dict[str, Any]], messages: Sequence[Message]) -> None:
    """A list `images` becomes parts of the content."""
    parts = {part.param: part for part in media_parts(messages)}
    for position, (fields, message) in enumerate(zip(dumped, messages, strict=True)):
        images: list[Json] = [
            {"type": "image_url", "image_url": {"url": _named(parts[param])}}
            for at in range(len(picture_list(message)))
            if (param := f"messages[{position}].images[{at}]") in parts
        ]
        if images:
            del fields["images"]
            content = fields.get("content") or []
            texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            fields["content"] = [*images, *texts]


def _named(part: MediaPart) -> str:
    """A data URL that says what it is, as other servers want it."""
    if ":" in part.url:
        return part.url
    try:
        found = sniff(data_of(part.url, ByteLimit(len(part.url), "the image has")))
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message, param=part.param) from error
    return f"data:{found.type if found else 'application/octet-stream'};base64,{part.url}"
