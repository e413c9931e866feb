"""The body of `/v1/stats`."""

from pydantic import BaseModel

from enginebay.server.schemas.model_bodies import Memory, State


class FirstToken(BaseModel):
    """An answer that began `at` (Unix time), `seconds` after its request had come."""

    at: float
    seconds: float


class ModelStats(BaseModel):
    """State and activity of one model.

    `default`: it answers requests that name no model. `progress`: of loading, from 0 to 1, and
    `stage`, what it is at. `running`: choices of answers under way, `waiting`: requests that have
    not begun. `prompt_tokens` and `completion_tokens` are counted since the server began, prompts
    when their answers end. `first_tokens`: those of the last answers. `kv_usage`: the part of the
    KV cache that is taken, `memory`: what was measured; None where they are not known.
    """

    id: str
    backend: str
    default: bool
    state: State
    stage: str
    progress: float
    error: str | None
    context_length: int | None
    running: int
    waiting: int
    prompt_tokens: int
    completion_tokens: int
    first_tokens: list[FirstToken]
    kv_usage: float | None
    memory: Memory | None


class Stats(BaseModel):
    """All models at `time` (Unix time), in the order of the config.

    `listed`: the names of these, and behind them of those that only lie in the models folder.
    """

    time: float
    models: list[ModelStats]
    listed: list[str]
