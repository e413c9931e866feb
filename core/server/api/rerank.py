"""`POST /v1/rerank`."""

from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request, Response

from core.chat.plan.prompt_tokens import check_prompt, check_text, tokenize_prompt
from core.chat.schemas.usage_bodies import PromptUsage
from core.contract.errors import InvalidRequestError
from core.models.served import ServedModel, can_rerank
from core.server.access.model_permissions import may_use
from core.server.api.pooling import computed, respond
from core.server.api.served import served_model
from core.server.http.headers import unsupported_header
from core.server.http.request_id import request_id
from core.server.http.track import running_request
from core.server.schemas.rerank_bodies import Document, RerankAnswer, RerankRequest, RerankResult
from core.server.services import services

router = APIRouter(tags=["rerank"])


@router.post("/rerank", response_model=RerankAnswer)
async def rerank(body: RerankRequest, http: Request) -> Response:
    """Sort documents by their relevance to a query. A reranker scores each with the query; with an
    embedding model, the score is the cosine similarity of the embeddings.
    """
    running = running_request(http)
    running.answer_id = f"rerank-{request_id(http)}"
    model = await served_model(http, body.model)
    if model.adapter or not can_rerank(model.info):
        raise _cannot(http, model)
    headers = unsupported_header(http, sorted(body.model_extra or ()))
    running.choices = len(body.documents)
    return await respond(http, model, _answer(body, model, http, running.answer_id), headers)


def _cannot(http: Request, model: ServedModel) -> InvalidRequestError:
    models = services(http).models
    key = running_request(http).key
    able = [repr(m.name) for m in models.all() if m.can_rerank and may_use(key, m)]
    advice = "choose a reranker or an embedding model"
    if able:
        advice = f"loaded models that can: {', '.join(able)}"
    return InvalidRequestError(
        f"model {model.name!r} does not support reranking; {advice}", param="model"
    )


async def _answer(body: RerankRequest, model: ServedModel, http: Request, id: str) -> RerankAnswer:
    by_pairs = model.info.reranks
    prompts, scores = await (_of_pairs if by_pairs else _of_embeddings)(body, model, http)
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: body.top_n]
    return RerankAnswer(
        id=id,
        model=model.name,
        usage=PromptUsage.of(prompts),
        results=[
            RerankResult(
                index=index,
                relevance_score=scores[index],
                document=Document(text=body.documents[index]) if body.return_documents else None,
            )
            for index in best
        ],
    )


_Scored = tuple[list[list[int]], list[float]]
"""The prompts that were computed, and a score for each document."""


async def _of_pairs(body: RerankRequest, model: ServedModel, http: Request) -> _Scored:
    check_text(model, body.query, "query")
    pairs = []
    for index, document in enumerate(body.documents):
        param = f"documents[{index}]"
        check_text(model, document, param)
        pair = await model.backend.tokenize_pair(body.query, document)
        check_prompt(model, pair, param, room=0)
        pairs.append(pair)
    return pairs, await computed(http, model, pairs, model.backend.rerank)


async def _of_embeddings(body: RerankRequest, model: ServedModel, http: Request) -> _Scored:
    params = ("query", *(f"documents[{index}]" for index in range(len(body.documents))))
    prompts = [
        await tokenize_prompt(model, text, add_special_tokens=True, param=param, room=0)
        for param, text in zip(params, (body.query, *body.documents), strict=True)
    ]
    query, *documents = prompts
    [towards] = await computed(http, model, [query], model.backend.embed)

    async def similarities(some: Sequence[Sequence[int]]) -> list[float]:
        return _cosines(towards, await model.backend.embed(some))

    return prompts, await computed(http, model, documents, similarities)


def _cosines(one: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    """The cosine of the angles between them, 0 for a vector without a direction."""
    vector, matrix = np.asarray(one), np.asarray(others)
    lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(vector)
    cosines: list[float] = (matrix @ vector / np.where(lengths, lengths, 1)).tolist()
    return cosines
