"""`GET /v1/models/{id}/memory`: what a model takes, before it is loaded."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError
from enginebay.models.loading.fit import with_context_length
from enginebay.server.access.auth import needs
from enginebay.server.api.served import known_model
from enginebay.server.schemas.memory_bodies import ModelMemory
from enginebay.server.services import services

router = APIRouter(tags=["models"])


@router.get("/models/{model_id:path}/memory", dependencies=[needs("estimate_memory")])
async def model_memory(
    model_id: str,
    http: Request,
    context_length: Annotated[int | None, Query(ge=1, le=1 << 30)] = None,
) -> ModelMemory:
    """What a model takes, whether it fits, and what would make it fit; nothing is loaded.

    For models of the config, loaded or not, and for those of the model folder. `context_length`
    takes the place of the one in its options. 400 for one with engines on other machines: its
    files may be there only, and so is the memory that it is to fit into.
    """
    model = await known_model(http, model_id)
    config, held = with_context_length(model.config, context_length), model.memory
    estimates = services(http).models.estimates
    try:
        fit = await asyncio.to_thread(estimates.fit, config, held)
    except BackendUnavailableError as error:
        if context_length:
            await asyncio.to_thread(estimates.fit, model.config)  # or else its files are broken
            raise InvalidRequestError(error.message, param="context_length") from error
        raise
    return ModelMemory.of(model_id, fit, await asyncio.to_thread(estimates.advice, config, fit))
