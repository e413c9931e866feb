"""`POST /v1/embeddings`."""

import base64
import struct
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from core.chat.plan.prompt_tokens import check_prompt, tokenize_prompt
from core.chat.schemas.prompt_fields import TokenIds, listed
from core.chat.schemas.usage_bodies import PromptUsage
from core.contract.errors import InvalidRequestError, UnsupportedParameterError
from core.models.served import ServedModel
from core.server.api.pooling import computed, respond
from core.server.api.served import served_model
from core.server.http.headers import unsupported_header
from core.server.http.request_id import request_id
from core.server.http.track import running_request
from core.server.schemas.embedding_bodies import Embedding, EmbeddingList, EmbeddingRequest

router = APIRouter(tags=["embeddings"])


@router.post("/embeddings", response_model=EmbeddingList)
async def create_embeddings(body: EmbeddingRequest, http: Request) -> Response:
    """Embed one or more inputs, as text or token ids."""
    running_request(http).id = request_id(http)
    model = await served_model(http, body.model)
    _check(body, model)
    headers = unsupported_header(http, sorted(body.model_extra or ()))
    return await respond(http, model, _answer(body, model, http), headers)


def _check(body: EmbeddingRequest, model: ServedModel) -> None:
    size = model.info.embedding_size
    if size is None or model.adapter:
        raise InvalidRequestError(
            f"model {model.name!r} does not support embeddings; choose an embedding model",
            param="model",
        )
    if body.dimensions not in (None, size):
        raise UnsupportedParameterError(
            f"the embeddings of model {model.name!r} have {size} dimensions, not "
            f"{body.dimensions}; omit `dimensions`",
            param="dimensions",
        )


async def _answer(body: EmbeddingRequest, model: ServedModel, http: Request) -> EmbeddingList:
    inputs: Sequence[str | TokenIds] = listed(body.input, "input")
    several = inputs is body.input
    prompts = [
        await _token_ids(model, item, f"input[{index}]" if several else "input")
        for index, item in enumerate(inputs)
    ]
    running_request(http).choices = len(prompts)
    embeddings = await computed(http, model, prompts, model.backend.embed)
    return EmbeddingList(
        data=[
            Embedding(
                index=index,
                embedding=_base64(numbers) if body.encoding_format == "base64" else numbers,
            )
            for index, numbers in enumerate(embeddings)
        ],
        model=model.name,
        usage=PromptUsage.of(prompts),
    )


async def _token_ids(model: ServedModel, prompt: str | TokenIds, param: str) -> list[int]:
    if not prompt:
        raise InvalidRequestError(f"{param} is empty", param=param)
    if isinstance(prompt, str):
        return await tokenize_prompt(model, prompt, add_special_tokens=True, param=param, room=0)
    check_prompt(model, prompt, param, room=0)
    return prompt


def _base64(numbers: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
