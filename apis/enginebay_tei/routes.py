"""What clients of TEI, Hugging Face's Text Embeddings Inference, ask for beside `/rerank`."""

from fastapi import APIRouter, Request, Response

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.types import ModelInfo
from enginebay.models.served import can_rerank, routes
from enginebay.server.api.pooling import respond
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.embed import vectors_of
from enginebay.serving.pooling import Pooled, Pooling
from enginebay_tei.bodies import (
    ClassifierKind,
    EmbedAnswer,
    EmbeddingKind,
    EmbedRequest,
    Info,
    ModelKind,
)

router = APIRouter(tags=["pooling"], route_class=BodyRoute)


@router.post("/embed", response_model=EmbedAnswer)
async def embed_as_tei(body: Sent[EmbedRequest], http: Request) -> Response:
    """Embed one or more inputs, as TEI does."""
    return await respond(http, _embed, body)


async def _embed(
    pooling: Pooling, body: EmbedRequest, running: RunningRequest
) -> Pooled[EmbedAnswer]:
    *_, vectors, ignored = await vectors_of(pooling, body, "inputs", body.inputs, running)
    return Pooled(EmbedAnswer([vector.tolist() for vector in vectors]), ignored)


@router.get("/info", response_model_exclude_none=True)
async def tei_info(http: Request, model: str | None = None) -> Info:
    """What TEI says of the model that answers where a request for embeddings, a rerank or a
    classification names none.
    """
    found = await services(http).serving.pooling.find(running_request(http), model, _pools)
    found.entry.require_ready()
    served = found.entry.served(found.adapter)
    if served.adapter or not _pools(served.info):
        raise InvalidRequestError(
            f"model {served.name!r} does not compute embeddings, rerank or classify; its routes: "
            f"{', '.join(routes(served.info))}",
            param="model",
        )
    return Info(
        model_id=served.name,
        served_model_name=served.name,
        model_type=_kind(served.info),
        max_input_length=served.info.context_length,
        max_batch_requests=served.info.max_batch_size,
        version=http.app.version,
    )


def _pools(info: ModelInfo) -> bool:
    return can_rerank(info) or bool(info.labels)


def _kind(info: ModelInfo) -> ModelKind:
    if info.embedding_size is not None:
        return ModelKind(embedding=EmbeddingKind())
    kind = ClassifierKind(
        id2label={str(number): label for number, label in enumerate(info.labels)},
        label2id={label: number for number, label in enumerate(info.labels)},
    )
    return ModelKind(reranker=kind) if info.reranks else ModelKind(classifier=kind)
