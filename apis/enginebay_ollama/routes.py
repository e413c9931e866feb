"""`/api`, as Ollama has it: https://github.com/ollama/ollama/blob/main/docs/api.md."""

from typing import Any

from fastapi import APIRouter, Request, Response

from enginebay.chat.answer.composer import dumped
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import InvalidRequestError
from enginebay.server.access.auth import require
from enginebay.server.api.served import named_model, served_model
from enginebay.server.http.body_route import JsonRoute, converted
from enginebay.server.http.framing import NDJSON
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.request_id import request_id, tracked
from enginebay.server.http.respond import respond
from enginebay.server.services import services
from enginebay.serving.answer import Answer, Planned
from enginebay.serving.asked import Asked
from enginebay_ollama import embedding_routes, model_routes, pull_routes
from enginebay_ollama.answer_bodies import ChatLine, GenerateLine
from enginebay_ollama.chat_request import asked_chat
from enginebay_ollama.composer import (
    LineComposer,
    MakeLine,
    chat_line,
    generate_line,
    timestamp,
)
from enginebay_ollama.names import known_name, stay_loaded
from enginebay_ollama.prompt_request import asked_prompt, asked_text
from enginebay_ollama.request_bodies import OllamaChat, OllamaGenerate, OllamaGeneration

router = APIRouter(prefix="/api", tags=["ollama"], route_class=JsonRoute)
router.include_router(embedding_routes.router)
router.include_router(model_routes.router)
router.include_router(pull_routes.router)


@router.post("/chat", response_model=ChatLine)
async def chat(body: Sent[OllamaChat], http: Request) -> Response:
    """Answer a conversation, as lines of JSON or, with `stream: false`, as one object; without
    messages only load the model, or unload it.
    """
    name = await known_name(http, body.asked_model)
    if not body.messages:
        return await _only_load(http, body, name, chat_line)
    asked = await converted(http, asked_chat, body, name)
    return await _chat(http, asked, body, chat_line)


@router.post("/generate", response_model=GenerateLine)
async def generate(body: Sent[OllamaGenerate], http: Request) -> Response:
    """The same for a prompt, which is one question, or a text to be gone on with if it is `raw`."""
    name = await known_name(http, body.asked_model)
    if body.only_loads:
        return await _only_load(http, body, name, generate_line)
    if not (body.raw or body.suffix):
        return await _chat(http, asked_prompt(body, name), body, generate_line)
    asked = asked_text(body, name)
    running = tracked(http, asked.body)

    async def planning() -> Answer[LineComposer]:
        serving = services(http).serving
        planned = await serving.plan_completion(asked, running, f"generate-{running.id}")
        return _answer(planned, body, generate_line)

    return await respond(http, planning(), NDJSON)


async def _chat(
    http: Request, asked: Asked[ChatCompletionRequest], body: OllamaGeneration, line: MakeLine
) -> Response:
    running = tracked(http, asked.body)

    async def planning() -> Answer[LineComposer]:
        planned = await services(http).serving.plan_chat(asked, running, f"chat-{running.id}")
        return _answer(planned, body, line)

    return await respond(http, planning(), NDJSON)


def _answer(planned: Planned[Any], body: OllamaGeneration, line: MakeLine) -> Answer[LineComposer]:
    composer = LineComposer(
        planned.head.id,
        planned.generation.counter,
        body.asked_model,
        line,
        planned.logprob_form,
        tells_reasoning=body.think is not False,
    )
    return Answer(planned, composer)


async def _only_load(http: Request, body: OllamaGeneration, name: str, line: MakeLine) -> Response:
    """Load a model, or unload it if it need not stay and the request may do that."""
    headers = {"X-Request-Id": request_id(http), **unsupported_header(http, body.unknown_keys)}
    if body.unloads:
        await require(http, "unload_model")
        found = await named_model(http, name)
        if found.adapter:
            raise InvalidRequestError(
                f"{name!r} is an adapter of {found.entry.name!r}", param="model"
            )
        await services(http).models.unload(found.entry)
    else:
        stay_loaded(http, body)
        await served_model(http, name)
    about = {
        "model": body.asked_model,
        "created_at": timestamp(),
        "done": True,
        "done_reason": "unload" if body.unloads else "load",
    }
    answer = dumped(line("", None, None, about))
    return Response(answer, media_type="application/json", headers=headers)
