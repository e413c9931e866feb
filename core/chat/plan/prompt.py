"""The prompt of a chat request: its template, the template's input, and special tokens."""

import asyncio
import logging
from dataclasses import dataclass

from core.chat.plan.reasoning import ignored_thinking, template_variables
from core.chat.plan.template_messages import template_messages
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.config.schema import ModelConfig
from core.contract.errors import InvalidRequestError
from core.models.served import ServedModel
from core.models.template.features import TemplateFeatures
from core.models.template.template import TemplateError

logger = logging.getLogger(__name__)

_CONTINUES = {"continue_final_message", "add_generation_prompt", "response_prefix"}
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


def continued(body: ChatCompletionRequest, config: ModelConfig) -> ChatCompletionRequest:
    """The request, set to continue its last message if the config asks for that.

    Frontends send a partial answer this way to have it continued. The request's own settings take
    precedence, and a message that ends in tool calls cannot be continued.
    """
    last = body.messages[-1]
    unfinished = last.role == "assistant" and last.content and not last.tool_calls
    if not config.continue_assistant or not unfinished or body.model_fields_set & _CONTINUES:
        return body
    return body.model_copy(update={"continue_final_message": True})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and how it came about.

    `add_special_tokens`: whether the tokenizer is to add its own. `bos` says why there is a BOS or
    not. `notes`: what was changed in the messages. `ignored`: names of request fields that have no
    effect.
    """

    text: str
    template: TemplateFeatures
    add_special_tokens: bool
    bos: str
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


async def chat_prompt(
    body: ChatCompletionRequest, model: ServedModel, *, allow_template: bool = False
) -> Prompt:
    """The prompt of a chat request. Rendering runs on a thread, since long prompts are slow.

    `allow_template`: whether the request may send its own Jinja template.
    """
    return await asyncio.to_thread(build_prompt, body, model, allow_template=allow_template)


def build_prompt(
    body: ChatCompletionRequest, model: ServedModel, *, allow_template: bool = False
) -> Prompt:
    """The prompt of a chat request.

    Tools stay out of it when `tool_choice` is `none`: a model that does not see them does not call
    them.
    """
    features = _template(body, model, allow_source=allow_template)
    chat = template_messages(
        body.messages, features, content_format=model.config.chat_template_content_format
    )
    tools = [tool.model_dump(exclude_none=True) for tool in body.offered_tools]
    generation_prompt = _generation_prompt(body)
    try:
        text = features.template.render(
            chat.messages,
            tools=tools or features.no_tools,
            documents=body.documents,
            add_generation_prompt=generation_prompt,
            continue_final_message=body.continue_final_message,
            variables={
                **features.extra_variables(tools),
                **template_variables(body, model.config),
            },
            drop_nulls=False,  # messages have none but those that the template needs
        )
    except TemplateError:
        logger.warning("a prompt could not be rendered", exc_info=True)
        raise
    if body.response_prefix and generation_prompt:
        text += body.response_prefix
    add_special_tokens, bos = _bos(body, text, model.info.special_tokens.get("bos_token"))
    ignored = _ignored(body, features, generation_prompt=generation_prompt)
    if ignored:
        logger.warning("ignored by this chat template: %.1000s", ", ".join(ignored))
    return Prompt(text, features, add_special_tokens, bos, tuple(chat.notes), tuple(ignored))


def _template(
    body: ChatCompletionRequest, model: ServedModel, *, allow_source: bool
) -> TemplateFeatures:
    chosen = model.templates.choose(
        with_tools=bool(body.offered_tools), asked=body.chat_template, allow_source=allow_source
    )
    if chosen is not None:
        return chosen
    if model.templates.names:
        raise InvalidRequestError(
            f"model {model.name!r} has no default chat template: name one of "
            f"{', '.join(model.templates.names)}",
            param="chat_template",
        )
    raise InvalidRequestError(
        f"model {model.name!r} has no chat template: use /v1/completions, or name one as "
        "`chat_template` in the config",
        param="model",
    )


def _generation_prompt(body: ChatCompletionRequest) -> bool:
    if not body.continue_final_message:
        return body.add_generation_prompt
    if body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        raise InvalidRequestError(
            "continue_final_message continues the last message, add_generation_prompt "
            "starts a new one: send only one of them",
            param="continue_final_message",
        )
    return False


def _bos(body: ChatCompletionRequest, text: str, bos: str | None) -> tuple[bool, str]:
    """Whether the tokenizer adds its special tokens, and why. Never a second BOS."""
    written = bool(bos) and text.startswith(bos or "")
    if not body.add_special_tokens:
        if written:
            return False, "the chat template writes it"
        return False, "none: the chat template writes none, as intended"
    if written:
        return False, "the chat template writes it, so the tokenizer adds no second one"
    return True, "the tokenizer adds its own special tokens, as requested"


def _ignored(
    body: ChatCompletionRequest, features: TemplateFeatures, *, generation_prompt: bool
) -> list[str]:
    """Fields that the chat template ignores."""
    read = {*features.template.variables, *features.template.special_tokens} - {*_RESERVED}
    names = [f"chat_template_kwargs.{name}" for name in body.chat_template_kwargs or {}]
    ignored = [name for name in names if name.partition(".")[2] not in read]
    ignored += ignored_thinking(body, read)
    if body.offered_tools and not features.knows_tools:
        ignored.append("tools")
    if body.documents and not features.knows_documents:
        ignored.append("documents")
    if body.response_prefix and not generation_prompt:
        ignored.append("response_prefix")
    return ignored
