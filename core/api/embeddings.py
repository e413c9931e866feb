"""`POST /v1/embeddings`."""

import base64
import struct
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from core.api.params import request_id, unsupported_header
from core.api.prompt_tokens import check_prompt, tokenize_prompt
from core.api.respond import or_client_leaves
from core.api.served import model_counts, running_request, served_model
from core.errors import InvalidRequestError, UnsupportedParameterError
from core.models import LoadedModel
from core.observe.counts import ModelCounts
from core.running import RunningRequest
from core.schemas.embeddings import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from core.schemas.prompts import TokenIds, listed

router = APIRouter(tags=["embeddings"])

_INPUTS_A_CALL = 64
"""Between two calls the engine serves others, and a client that leaves costs no more."""


@router.post("/embeddings", response_model=EmbeddingList)
async def create_embeddings(body: EmbeddingRequest, http: Request) -> Response:
    """Embed one input or several, as text or token ids."""
    running = running_request(http)
    running.id = request_id(http)
    model = await served_model(http, body.model)
    _check(body, model)
    headers = unsupported_header(http, sorted(body.model_extra or ()))
    counts = model_counts(http, model)
    with counts.working():
        answer = await or_client_leaves(http, _answer(body, model, running, counts))
    counts.prompt_tokens += answer.usage.prompt_tokens
    return Response(
        answer.model_dump_json(),
        media_type="application/json",
        headers={"X-Request-Id": running.id, **headers},
    )


def _check(body: EmbeddingRequest, model: LoadedModel) -> None:
    size = model.info.embedding_size
    if size is None or model.adapter:
        raise InvalidRequestError(
            f"model {model.name!r} makes no embeddings; choose an embedding model", param="model"
        )
    if body.dimensions not in (None, size):
        raise UnsupportedParameterError(
            f"the embeddings of model {model.name!r} have {size} dimensions, not "
            f"{body.dimensions}; leave `dimensions` out",
            param="dimensions",
        )


async def _answer(
    body: EmbeddingRequest, model: LoadedModel, running: RunningRequest, counts: ModelCounts
) -> EmbeddingList:
    inputs: Sequence[str | TokenIds] = listed(body.input, "input")
    several = inputs is body.input
    prompts = [
        await _token_ids(model, item, f"input[{index}]" if several else "input")
        for index, item in enumerate(inputs)
    ]
    running.choices = len(prompts)
    embeddings: list[list[float]] = []
    for start in range(0, len(prompts), _INPUTS_A_CALL):
        inputs_now = prompts[start : start + _INPUTS_A_CALL]
        async with running.turn(model, len(inputs_now)):
            with running.interruptible():
                embeddings += await model.backend.embed(inputs_now)
        counts.progress()
    tokens = sum(map(len, prompts))
    return EmbeddingList(
        data=[
            Embedding(
                index=index,
                embedding=_base64(numbers) if body.encoding_format == "base64" else numbers,
            )
            for index, numbers in enumerate(embeddings)
        ],
        model=model.name,
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


async def _token_ids(model: LoadedModel, prompt: str | TokenIds, param: str) -> list[int]:
    if not prompt:
        raise InvalidRequestError(f"{param} is empty", param=param)
    if isinstance(prompt, str):
        return await tokenize_prompt(model, prompt, add_special_tokens=True, param=param, room=0)
    check_prompt(model, prompt, param, room=0)
    return prompt


def _base64(numbers: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
