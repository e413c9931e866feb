"""Embeddings, from body to answer."""

from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.contract.types import ModelInfo
from enginebay.models.served import ServedModel
from enginebay.serving.input_prompts import named_prompt, prompt_for
from enginebay.serving.pooling import Pooled, Pooling, Prompts
from enginebay.serving.pooling_tokens import inputs_tokens
from enginebay.serving.schemas.embedding_bodies import (
    Embedding,
    EmbeddingFields,
    EmbeddingList,
    EmbeddingRequest,
    Inputs,
)

Vector = NDArray[np.float64]


async def embed(
    pooling: Pooling, body: EmbeddingRequest, running: RunningRequest
) -> Pooled[EmbeddingList]:
    """An embedding of each input, as `/v1/embeddings` answers."""
    model, prompts, vectors, ignored = await vectors_of(pooling, body, "input", body.input, running)
    as_text = body.encoding_format == "base64"
    answer = EmbeddingList(
        data=[
            Embedding(index=index, embedding=_base64(vector) if as_text else vector.tolist())
            for index, vector in enumerate(vectors)
        ],
        model=model.name,
        usage=PromptUsage.of(prompts),
    )
    return Pooled(answer, ignored)


async def vectors_of(
    pooling: Pooling, body: EmbeddingFields, field: str, inputs: Inputs, running: RunningRequest
) -> tuple[ServedModel, Prompts, list[Vector], list[str]]:
    """Return the model, the prompts, the embedding of each input, and the ignored fields.

    `field` names the field of the body that has the inputs.
    """
    model = await _embedding_model(pooling, body, running)
    ignored = _ignored(pooling, body, model, inputs)
    prompts, vectors = await _embedded(pooling, model, body, field, inputs, running)
    return model, prompts, vectors, ignored


async def embedded(
    pooling: Pooling,
    running: RunningRequest,
    model: ServedModel,
    prompts: Prompts,
    params: Sequence[str],
    *,
    priority: int,
) -> list[Vector]:
    """The embedding of each prompt, as the model makes it."""
    return await pooling.computed(
        running, model, prompts, params, model.backend.embed, priority=priority
    )


def unit(vector: Vector) -> Vector:
    """Scaled to length 1, unless it has no direction."""
    length = np.linalg.norm(vector)
    return vector / length if length else vector


async def _embedding_model(
    pooling: Pooling, body: EmbeddingFields, running: RunningRequest
) -> ServedModel:
    model = await pooling.served(
        running,
        body.model,
        lambda info: info.embedding_size is not None,
        what="embeddings",
        choice="an embedding model",
    )
    _check_size(model, body.dimensions)
    return model


def _check_size(model: ServedModel, size: int | None) -> None:
    """Raise unless its embeddings may have this size."""
    full, shorter = model.info.embedding_size or 0, model.info.shorter_embeddings
    if size in (None, full) or (shorter is not None and size in (shorter or range(1, full))):
        return
    if shorter is None:
        sizes = f"{full} dimensions, and it was not trained to have them cut"
    elif shorter:
        sizes = f"{', '.join(map(str, sorted(shorter)))} or {full} dimensions"
    else:
        sizes = f"{full} dimensions or fewer"
    raise UnsupportedParameterError(
        f"embeddings of model {model.asked!r} cannot have {size} dimensions: they have {sizes}",
        param="dimensions",
    )


def _ignored(
    pooling: Pooling, body: EmbeddingFields, model: ServedModel, inputs: Inputs
) -> list[str]:
    ignored = body.unknown
    if body.input_type is not None and not (model.info.prompts and _are_texts(inputs)):
        ignored = sorted([*ignored, "input_type"])
    pooling.accept(ignored)
    return ignored


async def _embedded(
    pooling: Pooling,
    model: ServedModel,
    body: EmbeddingFields,
    name: str,
    inputs: Inputs,
    running: RunningRequest,
) -> tuple[list[list[int]], list[Vector]]:
    """The tokens of the inputs, and their embeddings as the request wants them."""
    prompts, params = await inputs_tokens(
        model,
        inputs,
        body,
        name=name,
        prefix=_prefix(body, model.info, inputs),
        add_special_tokens=body.add_special_tokens,
    )
    running.choices = len(prompts)
    vectors = await embedded(pooling, running, model, prompts, params, priority=body.priority)
    cut = (vector[: body.dimensions] for vector in vectors)
    return prompts, [unit(vector) for vector in cut] if body.normalize else list(cut)


def _prefix(body: EmbeddingFields, info: ModelInfo, inputs: Inputs) -> str:
    if body.prompt_name is None:
        return prompt_for(info, body.input_type)
    if not _are_texts(inputs):
        raise InvalidRequestError(
            "a prompt is put in front of text only, not of token ids", param="prompt_name"
        )
    return named_prompt(info, body.prompt_name)


def _base64(vector: Vector) -> str:
    return b64encode(vector.astype("<f4").tobytes()).decode()


def _are_texts(inputs: Inputs) -> bool:
    """Whether they are no token ids."""
    return isinstance(inputs, str) or all(isinstance(text, str) for text in inputs)
