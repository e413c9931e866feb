"""How relevant documents are to queries: by a reranker's head, or by embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.contract.types import ModelInfo
from enginebay.models.served import ServedModel, can_rerank
from enginebay.serving.classify import heads
from enginebay.serving.embed import embedded, unit
from enginebay.serving.input_prompts import prompt_for
from enginebay.serving.pooling import Pooling, Prompts
from enginebay.serving.pooling_tokens import input_tokens, pair_tokens, shortened
from enginebay.serving.schemas.rerank_bodies import RelevanceFields


@dataclass(frozen=True, slots=True)
class Named:
    """Texts of a body, each with its place there."""

    texts: Sequence[str]
    params: Sequence[str]

    @classmethod
    def listed(cls, name: str, texts: Sequence[str]) -> "Named":
        """All of a list of this name."""
        return cls(texts, [f"{name}[{index}]" for index in range(len(texts))])


@dataclass(frozen=True, slots=True)
class Relevance:
    """A score for each document, higher for more relevant ones, and what it took."""

    model: ServedModel
    scores: list[float]
    usage: PromptUsage
    ignored: Sequence[str]


async def relevance(
    pooling: Pooling,
    body: RelevanceFields,
    running: RunningRequest,
    queries: Named,
    documents: Named,
) -> Relevance:
    """The scores of one query with each document, or of each with its own.

    A reranker reads each pair; of an embedding model they are cosines, from -1 to 1.
    """
    model = await pooling.served(
        running,
        body.model,
        lambda info: info.reranks,
        can_rerank,
        what="reranking",
        choice="a reranker or an embedding model",
    )
    ignored = _ignored(body, model.info)
    pooling.accept(ignored)
    running.choices = len(documents.texts)
    if most := body.max_tokens_per_doc:
        left = body.truncation_side == "left"
        texts = [
            await shortened(model, text, most, param=param, left=left)
            for text, param in zip(documents.texts, documents.params, strict=True)
        ]
        documents = Named(texts, documents.params)
    compute = _of_pairs if model.info.reranks else _of_embeddings
    prompts, scores = await compute(pooling, body, running, model, queries, documents)
    return Relevance(model, scores, PromptUsage.of(prompts), ignored)


def _ignored(body: RelevanceFields, info: ModelInfo) -> list[str]:
    """What has no effect: not all rerankers have a head whose output is known."""
    ignored = body.unknown
    if body.raw and not (info.reranks and len(info.labels) == 1):
        ignored.append("raw_scores" if body.raw_scores else "use_activation")
    return sorted(ignored)


async def _of_pairs(
    pooling: Pooling,
    body: RelevanceFields,
    running: RunningRequest,
    model: ServedModel,
    queries: Named,
    documents: Named,
) -> tuple[Prompts, list[float]]:
    pairs = []
    for index, (document, param) in enumerate(zip(documents.texts, documents.params, strict=True)):
        which = index if len(queries.texts) > 1 else 0
        pairs.append(
            await pair_tokens(
                model,
                queries.texts[which],
                document,
                body,
                query_param=queries.params[which],
                param=param,
            )
        )
    if body.raw and len(model.info.labels) == 1:
        logits = await heads(
            pooling, running, model, pairs, documents.params, priority=body.priority
        )
        return pairs, [float(logit) for [logit] in logits]
    scores = await pooling.computed(
        running, model, pairs, documents.params, model.backend.rerank, priority=body.priority
    )
    return pairs, list(map(float, scores))


async def _of_embeddings(
    pooling: Pooling,
    body: RelevanceFields,
    running: RunningRequest,
    model: ServedModel,
    queries: Named,
    documents: Named,
) -> tuple[Prompts, list[float]]:
    params = [*queries.params, *documents.params]
    prompts = []
    for kind, named in (("query", queries), ("document", documents)):
        prefix = prompt_for(model.info, kind)
        for text, param in zip(named.texts, named.params, strict=True):
            prompts.append(await input_tokens(model, text, body, param=param, prefix=prefix))
    vectors = await embedded(pooling, running, model, prompts, params, priority=body.priority)
    units = [unit(vector) for vector in vectors]
    asked, found = units[: len(queries.texts)], units[len(queries.texts) :]
    if len(asked) == 1:
        asked *= len(found)
    return prompts, [float(one @ other) for one, other in zip(asked, found, strict=True)]
