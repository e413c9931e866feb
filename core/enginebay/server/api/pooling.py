"""Routes that generate no text: embeddings, reranking, scores, classification."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from fastapi import APIRouter, Request, Response

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import ignored_header
from enginebay.server.http.request_id import request_id
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.classify import classify, score_evaluation
from enginebay.serving.embed import embed
from enginebay.serving.pooling import Pooled, Pooling
from enginebay.serving.rerank import cohere_rerank, rerank, score
from enginebay.serving.schemas.classify_bodies import (
    ClassifyAnswer,
    ClassifyRequest,
    ScoreEvaluation,
    ScoreEvaluationRequest,
)
from enginebay.serving.schemas.embedding_bodies import EmbeddingList, EmbeddingRequest
from enginebay.serving.schemas.rerank_bodies import (
    CohereRerankAnswer,
    CohereRerankRequest,
    Ranks,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)

router = APIRouter(tags=["pooling"], route_class=BodyRoute)
second = APIRouter(tags=["pooling"], route_class=BodyRoute)
"""What is only under `/v2`."""

Body = TypeVar("Body")


class Answer(Protocol):
    """The body of an answer."""

    def model_dump_json(self, *, exclude_none: bool) -> str:
        """As pydantic has it."""


async def respond(
    http: Request,
    answering: Callable[[Pooling, Body, RunningRequest], Awaitable[Pooled[Answer]]],
    body: Body,
) -> Response:
    """The HTTP answer to a body, which is no longer worked on when the client leaves."""
    running, pooling = running_request(http), services(http).serving.pooling
    id = request_id(http)
    answer = await or_client_leaves(http, answering(pooling, body, running))
    return Response(
        answer.body.model_dump_json(exclude_none=True),
        media_type="application/json",
        headers={"X-Request-Id": id, **ignored_header(answer.ignored)},
    )


@router.post("/embeddings", response_model=EmbeddingList)
async def create_embeddings(body: Sent[EmbeddingRequest], http: Request) -> Response:
    """Embed one or more inputs, as text or token ids."""
    return await respond(http, embed, body)


@router.post("/rerank", response_model=RerankAnswer | Ranks)
async def rerank_documents(body: Sent[RerankRequest], http: Request) -> Response:
    """Sort documents by their relevance to a query. A reranker scores each with the query; with an
    embedding model, the score is the cosine similarity of the embeddings. With `texts` in place of
    `documents` as TEI does it.
    """
    return await respond(http, rerank, body)


@second.post("/v2/rerank", response_model=CohereRerankAnswer)
async def rerank_as_cohere(body: Sent[CohereRerankRequest], http: Request) -> Response:
    """The same in the form of Cohere's second API, which cuts documents that are too long."""
    return await respond(http, cohere_rerank, body)


@router.post("/score", response_model=ScoreAnswer)
async def score_pairs(body: Sent[ScoreRequest], http: Request) -> Response:
    """Score one query with each document, or each with its own, in their order, as in vLLM."""
    return await respond(http, score, body)


@router.post("/score/evaluation", response_model=ScoreEvaluation)
async def evaluate_scores(body: Sent[ScoreEvaluationRequest], http: Request) -> Response:
    """What a reward model says of texts, as in LLaMA-Factory."""
    return await respond(http, score_evaluation, body)


@router.post("/classify", response_model=ClassifyAnswer)
async def classify_texts(body: Sent[ClassifyRequest], http: Request) -> Response:
    """The likeliest label of one or more inputs, and a probability for each label, as in vLLM."""
    return await respond(http, classify, body)
