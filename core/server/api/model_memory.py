"""`GET /v1/models/{id}/memory`: what a model takes, before it is loaded."""

import asyncio
import re

from fastapi import APIRouter, Depends, Request

from core.config.schema import ModelConfig
from core.contract.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    ModelNotFoundError,
)
from core.contract.estimates import MemoryUse
from core.server.access.auth import require_admin
from core.server.api.served import known_model
from core.server.schemas.memory_bodies import ModelMemory
from core.server.services import services

router = APIRouter(tags=["models"])


@router.get("/models/{model_id:path}/memory", dependencies=[Depends(require_admin)])
async def model_memory(
    model_id: str,
    http: Request,
    context_length: str | None = None,
) -> ModelMemory:
    """What a model takes, whether it fits, and what would make it fit; nothing is loaded.

    For models of the config, loaded or not, and for those of the model folder. `context_length`
    takes the place of the one in its options.
    """
    config, held = await _model(http, model_id)
    if context_length is not None:
        options = {**config.options, "context_length": _tokens(context_length)}
        config = config.model_copy(update={"options": options})
    estimates = services(http).models.estimates
    try:
        fit = await asyncio.to_thread(estimates.fit, config, held)
    except BackendUnavailableError as error:
        if context_length:
            raise InvalidRequestError(error.message, param="context_length") from error
        raise
    return ModelMemory.of(model_id, fit, await asyncio.to_thread(estimates.advice, config, fit))


def _tokens(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise InvalidRequestError(
            f"context_length must be a whole number of tokens from 1, not {text!r}",
            param="context_length",
        )
    return int(text)


async def _model(http: Request, name: str) -> tuple[ModelConfig, MemoryUse | None]:
    """Its config, and what it holds if it is loaded."""
    try:
        model = known_model(http, name)
    except ModelNotFoundError:
        return await asyncio.to_thread(services(http).loadable.folder.config, name), None
    return model.config, model.memory
