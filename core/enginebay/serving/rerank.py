"""Documents sorted by relevance, and scores of pairs, from body to answer."""

from time import time

from enginebay.chat.answer.running import RunningRequest
from enginebay.serving.pooling import Pooled, Pooling
from enginebay.serving.relevance import Named, Relevance, relevance
from enginebay.serving.schemas.rerank_bodies import (
    CohereRerankAnswer,
    CohereRerankRequest,
    Document,
    Meta,
    MetaTokens,
    Rank,
    Ranks,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    Score,
    ScoreAnswer,
    ScoreRequest,
)


async def rerank(
    pooling: Pooling, body: RerankRequest, running: RunningRequest
) -> Pooled[RerankAnswer | Ranks]:
    """Documents sorted by their relevance to a query, as `/v1/rerank` answers."""
    running.expect_answer(f"rerank-{running.id}", stream=False)
    name = "documents" if body.texts is None else "texts"
    documents = body.texts or body.documents or []
    found = await relevance(
        pooling, body, running, Named([body.query], ["query"]), Named.listed(name, documents)
    )
    best = _best(found, body.top_n)
    if body.texts is not None:
        ranks = [
            Rank(index=i, score=found.scores[i], text=documents[i] if body.return_text else None)
            for i in best
        ]
        return Pooled(Ranks(ranks), found.ignored)
    results = [
        RerankResult(
            index=index,
            relevance_score=found.scores[index],
            document=Document(text=documents[index]) if body.return_documents else None,
        )
        for index in best
    ]
    answer = RerankAnswer(
        id=running.shown_id, model=found.model.name, usage=found.usage, results=results
    )
    return Pooled(answer, found.ignored)


async def cohere_rerank(
    pooling: Pooling, body: CohereRerankRequest, running: RunningRequest
) -> Pooled[CohereRerankAnswer]:
    """The same, as Cohere's `/v2/rerank` answers."""
    running.expect_answer(f"rerank-{running.id}", stream=False)
    documents = Named.listed("documents", body.documents)
    found = await relevance(pooling, body, running, Named([body.query], ["query"]), documents)
    answer = CohereRerankAnswer(
        id=running.shown_id,
        results=[
            RerankResult(index=index, relevance_score=found.scores[index])
            for index in _best(found, body.top_n)
        ],
        meta=Meta(tokens=MetaTokens(input_tokens=found.usage.prompt_tokens)),
    )
    return Pooled(answer, found.ignored)


async def score(
    pooling: Pooling, body: ScoreRequest, running: RunningRequest
) -> Pooled[ScoreAnswer]:
    """The score of each pair, as `/v1/score` answers."""
    running.expect_answer(f"score-{running.id}", stream=False)
    names = body.names
    queries = Named.listed(names[0], body.queries)
    documents = Named.listed(names[1], body.documents)
    found = await relevance(pooling, body, running, queries, documents)
    answer = ScoreAnswer(
        id=running.shown_id,
        created=int(time()),
        model=found.model.name,
        data=[Score(index=index, score=score) for index, score in enumerate(found.scores)],
        usage=found.usage,
    )
    return Pooled(answer, found.ignored)


def _best(found: Relevance, most: int | None) -> list[int]:
    """Numbers of the documents, the most relevant ones first."""
    scores = found.scores
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:most]
