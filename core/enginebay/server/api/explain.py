"""How requests are resolved and what is known about models: `/explain` and `/inspect`."""

from collections.abc import Sequence
from dataclasses import fields

from fastapi import APIRouter, Request

from enginebay.chat.plan.length_limits import beyond, clamped
from enginebay.chat.plan.model_report import model_report
from enginebay.chat.plan.params import PlannedParams, time_limit
from enginebay.chat.plan.rendered_chat import RenderedChat
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.error_bodies import ErrorObject
from enginebay.chat.schemas.explain_bodies import (
    BosReport,
    Explanation,
    MediaReport,
    ModelReport,
    SamplingValue,
    StopReport,
    Token,
)
from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import ContextLengthExceededError, encodable
from enginebay.contract.media import MediaSpan
from enginebay.contract.sampling_params import SamplingParams
from enginebay.grammar.lark import to_lark
from enginebay.models.served import ServedModel
from enginebay.server.api.served import prompted_model, served_model
from enginebay.server.api.tokens import token_texts
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import (
    clamped_header,
    dropped_header,
    ignored_header,
    truncated_header,
)
from enginebay.server.http.request_id import request_id
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.asked import Asked

router = APIRouter(tags=["chat"], route_class=BodyRoute)


@router.post("/chat/completions/explain")
async def explain_chat_completion(body: Sent[ChatCompletionRequest], http: Request) -> Explanation:
    """What `/v1/chat/completions` would run for this body, and why.

    It uses the functions that plan the real answer, so it shows what would happen there. What is
    refused there is refused here, too, except for a prompt that is too long, which is shown.
    """
    model = await prompted_model(http, body.model)
    serving, running = services(http).serving, running_request(http)
    most_tokens, salt = running.most_tokens, running.cache_salt(body.cache_salt)
    asked_id, names = request_id(http, body), Asked(body=body).names
    with names.in_errors():
        plan = await serving.planner.render(body, model, most_tokens, asked_id, salt)
    prompt, sampling, ignored = plan.prompt, plan.params.params, plan.ignored
    headers = dropped_header(plan.dropped)
    tokens = error = None
    try:
        tokens = await plan.tokenize()
        lowered = clamped(plan.body, [tokens], model, most_tokens, serving.config.server)
        ignored += beyond(plan.body, [tokens], serving.config.server)
        lowered = {names.of(name): value for name, value in lowered.items()}
        headers |= clamped_header(lowered) | truncated_header(tokens.cut)
    except ContextLengthExceededError as too_long:
        error = ErrorObject.model_validate(too_long.body()["error"])
    ignored = names.each(ignored)
    token_ids = tokens.token_ids if tokens else []
    room = model.info.context_length - len(token_ids) if tokens else 0
    limit = time_limit(plan.body, model)
    return Explanation(
        object="chat.completion.explanation",
        model=await prompt.template.template.run(model_report, model, prompt.template),
        prompt=prompt.text,
        prompt_tokens=len(token_ids) if tokens else None,
        tokens=await _tokens(model, token_ids) if tokens else None,
        media=_media(prompt.media_params, tokens.media) if tokens else [],
        dropped_messages=plan.dropped,
        truncated_tokens=tokens.cut if tokens else 0,
        context_length=model.info.context_length,
        room=room,
        max_tokens=min(room, sampling.max_tokens or room),
        max_seconds=limit.seconds if limit else None,
        starts_in_reasoning=plan.starts_in_reasoning,
        bos=await _bos(plan, token_ids),
        sampling=_sampling(plan.params),
        stop=StopReport(strings=list(sampling.stop), token_ids=list(sampling.stop_token_ids)),
        constraint=to_lark(sampling.constraint, {}) if sampling.constraint else None,
        notes=list(prompt.notes),
        ignored=list(map(encodable, ignored)),
        headers=ignored_header(ignored) | headers,
        error=error,
    )


@router.get("/models/{model_id:path}/inspect")  # ids may hold slashes
async def inspect_model(model_id: str, http: Request) -> ModelReport:
    """What is known about a model: detected formats and why, chat template features, defaults."""
    model = await served_model(http, model_id)
    return await model.templates.run(model_report, model)


async def _tokens(model: ServedModel, token_ids: Sequence[int]) -> list[Token]:
    texts = await token_texts(model, token_ids)
    return [Token(id=id, text=text) for id, text in zip(token_ids, texts, strict=True)]


def _media(params: Sequence[str], spans: Sequence[MediaSpan]) -> list[MediaReport]:
    """One report for each item, which may have several spans."""
    items: list[list[MediaSpan]] = []
    for span in spans:
        if span.first:
            items[-1].append(span)
        else:
            items.append([span])
    return [
        MediaReport(
            param=param,
            kind=item[0].media.kind,
            type=item[0].media.type,
            bytes=len(item[0].media.data),
            options=dict(item[0].media.options),
            start=item[0].start,
            tokens=sum(span.tokens for span in item),
        )
        for param, item in zip(params, items, strict=True)
    ]


async def _bos(plan: RenderedChat, token_ids: Sequence[int]) -> BosReport:
    """The BOS tokens the prompt really begins with."""
    text = plan.model.info.special_tokens.get("bos_token")
    count = 0
    while text and count < len(token_ids):
        if await plan.model.backend.detokenize([token_ids[count]]) != text:
            break
        count += 1
    return BosReport(text=text, count=count, reason=plan.prompt.bos)


def _sampling(planned: PlannedParams) -> dict[str, SamplingValue]:
    return {
        field.name: SamplingValue(
            value=getattr(planned.params, field.name),
            source=planned.sources.get(field.name, "default"),
        )
        for field in fields(SamplingParams)
        if field.name != "constraint"  # shown for itself
    }
