"""The prompt of a chat request: its template, the template's input, and special tokens."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.chat.plan.media_marks import MediaMarks, Piece
from enginebay.chat.plan.prompt_tokens import begins_with_bos
from enginebay.chat.plan.reasoning import forced_otherwise, ignored_thinking, template_variables
from enginebay.chat.plan.request_media import RequestMedia
from enginebay.chat.plan.template_messages import (
    TemplateMessage,
    TemplateMessages,
    template_messages,
)
from enginebay.chat.plan.unread_keys import unread_keys
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import InvalidRequestError
from enginebay.models.served import ServedModel
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.template import TemplateError
from enginebay.models.template.template_set import is_source

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
    effect. `pieces`: the prompt again, with media where they stand; empty if it is plain text.
    `media_params`: the path of each item in the request, in their order in the prompt.
    """

    text: str
    template: TemplateFeatures
    add_special_tokens: bool
    bos: str
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()
    media_params: tuple[str, ...] = ()


async def chat_prompt(
    body: ChatCompletionRequest,
    model: ServedModel,
    media: RequestMedia,
    templates: ForeignTemplates | None = None,
) -> Prompt:
    """The prompt of a chat request. Rendering runs on a thread, since long prompts are slow.

    `templates`: renders Jinja of requests; None: they may not send any.
    """
    if templates and is_source(body.chat_template or ""):
        return await templates.run(build_prompt, body, model, media, templates)
    return await model.templates.run(build_prompt, body, model, media, templates)


def build_prompt(
    body: ChatCompletionRequest,
    model: ServedModel,
    media: RequestMedia,
    templates: ForeignTemplates | None = None,
) -> Prompt:
    """The prompt of a chat request.

    Tools stay out of it when `tool_choice` is `none`: a model that does not see them does not call
    them.
    """
    features = _template(body, model, templates)
    try:
        rendered = _rendered(body, model, features, media)
    except TemplateError:
        logger.warning("a prompt could not be rendered", exc_info=True)
        raise
    text, pieces = rendered.text, tuple(rendered.pieces)
    written = begins_with_bos(model, text) or features.beginning.is_written_in(text)
    add_special_tokens, bos = _bos(body, features, written)
    if body.add_special_tokens is None and not written:
        beginning = features.missing_beginning(text)
        text = beginning + text
        pieces = (beginning, *pieces) if beginning and pieces else pieces
    ignored = _ignored(body, features, model.config)
    if ignored:
        logger.warning("ignored by this chat template: %.1000s", ", ".join(ignored))
    return Prompt(
        text,
        features,
        add_special_tokens,
        bos,
        tuple(rendered.chat.notes),
        (*ignored, *media.ignored, *rendered.chat.changed),
        pieces,
        rendered.media_params,
    )


@dataclass(frozen=True, slots=True)
class _Rendered:
    text: str
    chat: TemplateMessages
    pieces: Sequence[Piece] = ()
    media_params: tuple[str, ...] = ()


def _rendered(
    body: ChatCompletionRequest,
    model: ServedModel,
    features: TemplateFeatures,
    media: RequestMedia,
) -> _Rendered:
    """The text; its pieces, too, if there are media in it or what looks like them.

    Media are written by the template if it can, else, or where it leaves some out, into the text.
    """
    info, config = model.info, model.config
    marks = MediaMarks(info.placeholders, media.items)
    text = ""
    takes_parts = config.chat_template_content_format != "string"
    for by_template in (True, False) if takes_parts else (False,):
        written = marks.written(features, by_template=by_template)
        if written is None:
            continue
        chat = template_messages(
            body.messages,
            features,
            content_format=config.chat_template_content_format,
            media=written,
            strict_roles=body.strict_roles,
        )
        text = _text(body, model, features, chat.messages, marks)
        if not info.modalities:
            return _Rendered(text, chat)
        pieces = marks.split(text, chat.messages)
        if pieces is not None:
            shown = marks.shown(pieces)
            if all(type(piece) is str for piece in pieces):
                return _Rendered(shown, chat)
            return _Rendered(shown, chat, pieces, marks.params(pieces))
    raise marks.missing(text)


def _text(
    body: ChatCompletionRequest,
    model: ServedModel,
    features: TemplateFeatures,
    messages: Sequence[TemplateMessage],
    marks: MediaMarks,
) -> str:
    tools = [tool.model_dump(exclude_none=True) for tool in body.offered_tools]
    generation_prompt = _generation_prompt(body)
    variables = {
        **features.extra_variables(tools, body.free_functions),
        **template_variables(body, model.config),
    }
    text = features.template.render(
        marks.hide(messages),
        tools=marks.hide(tools) or features.no_tools,
        documents=marks.hide(body.documents),
        add_generation_prompt=generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=marks.hide(variables),
        drop_nulls=False,  # messages have none but those that the template needs
    )
    if body.response_prefix and generation_prompt:
        text += str(marks.hide(body.response_prefix))
    return text


def _template(
    body: ChatCompletionRequest, model: ServedModel, templates: ForeignTemplates | None
) -> TemplateFeatures:
    chosen = model.templates.choose(
        with_tools=bool(body.offered_tools), asked=body.chat_template, of_requests=templates
    )
    if chosen is not None:
        return chosen
    if model.templates.names:
        raise InvalidRequestError(
            f"model {model.asked!r} has no default chat template: name one of "
            f"{', '.join(model.templates.names)}",
            param="chat_template",
        )
    raise InvalidRequestError(
        f"model {model.asked!r} has no chat template: use /v1/completions, or set the model's "
        f"`chat_template` in the config to one of: {', '.join(model.templates.files)}",
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


def _bos(
    body: ChatCompletionRequest, features: TemplateFeatures, written: bool
) -> tuple[bool, str]:
    """Whether the tokenizer adds its special tokens, and where a BOS comes from. Never two."""
    if body.add_special_tokens:
        if written:
            return False, "the chat template writes it, so the tokenizer adds no second one"
        return True, "the tokenizer adds its own special tokens, as requested"
    if written:
        return False, "the chat template writes it"
    if body.add_special_tokens is None:
        return False, features.bos
    return False, "none: the chat template writes none, and the request wants none"


def _ignored(
    body: ChatCompletionRequest,
    features: TemplateFeatures,
    config: ModelConfig,
) -> list[str]:
    """Fields that the chat template ignores, or gets from the config with other values."""
    read = {*features.template.variables, *features.template.special_tokens} - {*_RESERVED}
    names = [f"chat_template_kwargs.{name}" for name in body.chat_template_kwargs or {}]
    ignored = [name for name in names if name.partition(".")[2] not in read]
    ignored += ignored_thinking(body, read)
    ignored += forced_otherwise(body, config, read)
    ignored += unread_keys(body, features)
    if body.offered_tools and not features.knows_tools:
        ignored.append("tools")
    if body.free_functions and "functions" not in features.template.variables:
        ignored.append("functions")
    if body.documents and not features.knows_documents:
        ignored.append("documents")
    if body.response_prefix and not _generation_prompt(body):
        ignored.append("response_prefix")
    return ignored
