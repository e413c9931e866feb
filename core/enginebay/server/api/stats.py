"""`GET /v1/stats`: the data of the page's plots."""

import time

from fastapi import APIRouter, Request

from enginebay.models.loading.entry import ModelEntry
from enginebay.server.access.disclosure import shown_to
from enginebay.server.api.served import listed_models, usable_models
from enginebay.server.schemas.model_bodies import Memory
from enginebay.server.schemas.stats_bodies import FirstToken, ModelStats, Stats
from enginebay.server.services import services

router = APIRouter(tags=["health"])


@router.get("/stats")
async def stats(http: Request) -> Stats:
    """State and activity of the models that the request's key may use, and which lie in the models
    folder; cheap enough to poll every second.
    """
    await services(http).models.measure()
    listed = [model.name for model in await listed_models(http)]
    shown = [_stats(http, model) for model in usable_models(http)]
    return Stats(time=time.time(), models=shown, listed=listed)


def _stats(http: Request, model: ModelEntry) -> ModelStats:
    models = services(http).models
    counts = services(http).serving.counts.of(model.config.name)
    memory, engine = model.memory, model.stats
    state, error = shown_to(http, model)
    return ModelStats(
        id=model.name,
        backend=model.config.backend,
        default=model is models.default,
        state=state,
        stage=model.stage,
        progress=model.progress.fraction,
        error=error,
        context_length=model.context_length,
        running=model.running,
        waiting=model.waiting,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.generation_tokens,
        first_tokens=[FirstToken(at=at, seconds=seconds) for at, seconds in counts.first_tokens],
        kv_usage=engine.kv_usage if engine else None,
        memory=Memory(ram=memory.ram, gpu=memory.gpu) if memory else None,
    )
