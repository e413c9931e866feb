"""What requests come to and what is known of models: `/explain` and `/inspect`."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields

from fastapi import APIRouter, Request

from core.chat.plan.continued import continued
from core.chat.plan.model_report import model_report
from core.chat.plan.params import overridden, sampling_sources
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.chat.schemas.error_bodies import ErrorObject
from core.chat.schemas.explain_bodies import (
    BosReport,
    Explanation,
    ModelReport,
    SamplingValue,
    Source,
    StopReport,
    Token,
)
from core.contract.errors import ContextLengthExceededError, encodable
from core.grammar.lark import to_lark
from core.models.entry import LoadedModel
from core.server.api.chat import ChatPlan, plan_chat
from core.server.api.params import fitted
from core.server.api.served import prompted_model, served_model
from core.server.api.tokens import token_texts

router = APIRouter(tags=["chat"])


@router.post("/chat/completions/explain")
async def explain_chat_completion(body: ChatCompletionRequest, http: Request) -> Explanation:
    """What `/v1/chat/completions` would run for this body, and why.

    It is answered by the functions that plan the real answer, so it says what happens there; what
    is refused there is refused here, too, but for a prompt that is too long, which is shown.
    """
    model = await prompted_model(http, body.model)
    asked = continued(overridden(body, model), model.config)
    plan = await plan_chat(asked, http, model)
    prompt, sampling = plan.prompt, plan.sampling
    headers = dict(plan.headers)
    tokens = error = None
    try:
        tokens = await plan.tokenize()
        headers |= fitted(http, plan.body, [tokens], model)
    except ContextLengthExceededError as too_long:
        error = ErrorObject.model_validate(too_long.body()["error"])
    token_ids = tokens.token_ids if tokens else []
    room = model.info.context_length - len(token_ids) if tokens else 0
    return Explanation(
        object="chat.completion.explanation",
        model=await asyncio.to_thread(model_report, model, prompt.template),
        prompt=prompt.text,
        prompt_tokens=len(token_ids) if tokens else None,
        tokens=await _tokens(model, token_ids) if tokens else None,
        truncated_tokens=tokens.cut if tokens else 0,
        context_length=model.info.context_length,
        room=room,
        max_tokens=min(room, sampling.max_tokens or room),
        starts_in_reasoning=plan.starts_in_reasoning,
        bos=await _bos(plan, token_ids),
        sampling=_sampling(body, plan),
        stop=StopReport(strings=list(sampling.stop), token_ids=list(sampling.stop_token_ids)),
        constraint=to_lark(sampling.constraint, {}) if sampling.constraint else None,
        notes=list(prompt.notes),
        ignored=list(map(encodable, plan.ignored)),
        headers=headers,
        error=error,
    )


@router.get("/models/{model_id:path}/inspect")  # ids may hold slashes
async def inspect_model(model_id: str, http: Request) -> ModelReport:
    """What is known of a model: formats found and how, features of its chat template, defaults."""
    model = await served_model(http, model_id)
    return await asyncio.to_thread(model_report, model)


async def _tokens(model: LoadedModel, token_ids: Sequence[int]) -> list[Token]:
    texts = await token_texts(model, token_ids)
    return [Token(id=id, text=text) for id, text in zip(token_ids, texts, strict=True)]


async def _bos(plan: ChatPlan, token_ids: Sequence[int]) -> BosReport:
    """The BOS tokens the prompt really begins with."""
    text = plan.model.info.special_tokens.get("bos_token")
    count = 0
    while text and count < len(token_ids):
        if await plan.model.backend.detokenize([token_ids[count]]) != text:
            break
        count += 1
    return BosReport(text=text, count=count, reason=plan.prompt.bos)


def _sampling(body: ChatCompletionRequest, plan: ChatPlan) -> dict[str, SamplingValue]:
    sources = sampling_sources(body, plan.model)
    of_template = {
        "stop": plan.model.formats.turn_end.strings,
        "stop_token_ids": plan.model.formats.turn_end.token_ids,
    }
    shown = {}
    for field in fields(plan.sampling):
        name, value = field.name, getattr(plan.sampling, field.name)
        if name == "constraint":  # shown for itself
            continue
        source: Source = sources.get(name, "default")
        if name == "logprobs" and body.logprobs:
            source = "request"
        elif name == "reasoning_budget" and value:
            source = "config" if body.budget_tokens is None else "request"
        elif source == "default" and value and value == of_template.get(name):
            source = "template"
        shown[name] = SamplingValue(value=value, source=source)
    return shown
