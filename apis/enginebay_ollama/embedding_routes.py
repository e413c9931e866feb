"""`POST /api/embed` and `/api/embeddings`, as Ollama has them."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent, read_body
from enginebay.server.api.served import served_model
from enginebay.server.http.body_route import JsonRoute
from enginebay.server.http.headers import ignored_header
from enginebay.server.http.request_id import request_id
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.asked import Names
from enginebay.serving.embed import embed
from enginebay.serving.schemas.embedding_bodies import EmbeddingList, EmbeddingRequest
from enginebay_ollama.answer_bodies import Embeddings, OneEmbedding
from enginebay_ollama.composer import nanoseconds
from enginebay_ollama.names import known_name, stay_loaded
from enginebay_ollama.options import read_options
from enginebay_ollama.request_bodies import OllamaEmbed, OllamaEmbedding, OllamaOptions

router = APIRouter(tags=["ollama"], route_class=JsonRoute)


@router.post("/embed", response_model=Embeddings)
async def embed_texts(body: Sent[OllamaEmbed], http: Request) -> Response:
    """Embed one or more texts; with none only load the model."""
    name, running = await known_name(http, body.asked_model), running_request(http)
    stay_loaded(http, body)
    await served_model(http, name)
    loaded = time.monotonic()
    texts = [body.input] if isinstance(body.input, str) else body.input
    fields = {"input": texts, "truncate": body.truncate, "dimensions": body.dimensions}
    found, headers = await _embedded(http, body, name, fields if any(texts) else {}, Names())
    answer = Embeddings(
        model=body.asked_model,
        embeddings=[each.embedding for each in found.data] if found else [],
        total_duration=nanoseconds(time.monotonic() - running.received),
        load_duration=nanoseconds(loaded - running.received),
        prompt_eval_count=found.usage.prompt_tokens if found else 0,
    )
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


@router.post("/embeddings", response_model=OneEmbedding)
async def embed_text(body: Sent[OllamaEmbedding], http: Request) -> Response:
    """Embed one text, as older clients ask for it."""
    name = await known_name(http, body.asked_model)
    stay_loaded(http, body)
    await served_model(http, name)
    fields = {"input": body.prompt, "truncate": True} if body.prompt else {}
    found, headers = await _embedded(http, body, name, fields, Names({"input": "prompt"}))
    answer = OneEmbedding(embedding=found.data[0].embedding if found else [])
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


async def _embedded(
    http: Request, body: OllamaOptions, name: str, fields: Mapping[str, Any], names: Names
) -> tuple[EmbeddingList | None, dict[str, str]]:
    """The embeddings of a request with these fields, and the headers of the answer."""
    options = read_options(body.options)
    ignored = [*options.ignored, *(f"options.{option}" for option in options.fields)]
    pooling = services(http).serving.pooling
    pooling.accept(ignored)
    found = None
    if fields:
        with names.in_errors():
            asked = read_body(
                EmbeddingRequest, {**(body.model_extra or {}), **fields, "model": name}
            )
            answer = await or_client_leaves(http, embed(pooling, asked, running_request(http)))
        found, ignored = answer.body, [*ignored, *answer.ignored]
    return found, {"X-Request-Id": request_id(http), **ignored_header(ignored)}
