"""`GET /v1/stats`: what the page plots."""

import time

from fastapi import APIRouter, Request

from core.access.models import may_use
from core.models import LoadedModel, Models
from core.schemas.models import Memory
from core.schemas.stats import FirstToken, ModelStats, Stats

router = APIRouter(tags=["health"])


@router.get("/stats")
async def stats(http: Request) -> Stats:
    """How the models are and what they do, in numbers; made to be asked for every second."""
    models: Models = http.app.state.models
    await models.measure()
    usable = [model for model in models.all() if may_use(http.state.running.key, model)]
    return Stats(time=time.time(), models=[_stats(model) for model in usable])


def _stats(model: LoadedModel) -> ModelStats:
    traffic, memory, engine = model.traffic, model.memory, model.stats
    state, error = model.shown
    return ModelStats(
        id=model.name,
        backend=model.config.backend,
        state=state,
        stage=model.stage,
        progress=model.progress,
        error=error,
        context_length=model.context_length,
        running=model.gate.running,
        waiting=model.gate.waiting,
        prompt_tokens=traffic.prompt_tokens,
        completion_tokens=traffic.completion_tokens,
        first_tokens=[FirstToken(at=at, seconds=seconds) for at, seconds in traffic.first_tokens],
        kv_used=engine.kv_usage if engine else None,
        memory=Memory(ram=memory.ram, gpu=memory.gpu) if memory else None,
    )
