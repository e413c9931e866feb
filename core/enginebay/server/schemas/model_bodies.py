"""Bodies of `/v1/models` and `/health`."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

State = Literal["unloaded", "loading", "ready", "stuck", "draining", "failed"]


class Memory(BaseModel):
    """Bytes of RAM and of GPU memory."""

    ram: int
    gpu: int


class Architecture(BaseModel):
    """What a model takes and what it answers with, by OpenRouter's names."""

    input_modalities: list[str]
    output_modalities: list[str]


class ModelCard(BaseModel):
    """One served model, or adapter of the model `parent`, or another name for it.

    `context_length`, and `max_model_len` as vLLM calls it, are None until they are known. `memory`
    is what was measured, with models that share the engine; None unless it is loaded. `parent` is
    also the model that this one is like. `embedding_size` and `labels`: of what computes embeddings
    or classifies, `architecture` of what generates, once that is known. `chat`: whether the model
    serves chats, which need a chat template unless the engine accepts messages; None until that is
    known. `requests` is how many hold it. Times are of Unix. `source`: whether the config has it,
    or it lies in the models folder.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "enginebay"
    backend: str
    source: Literal["config", "folder"]
    state: State
    progress: float
    stage: str
    error: str | None = None
    load: Literal["start", "request", "command"]
    pinned: bool
    aliases: list[str]
    parent: str | None = None
    context_length: int | None = None
    max_model_len: int | None = None
    embedding_size: int | None = None
    labels: list[str] | None = None
    architecture: Architecture | None = None
    chat: bool | None = None
    memory: Memory | None = None
    requests: int
    loaded_at: int | None = None
    last_used: int | None = None


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class AnthropicModelCard(ModelCard):
    """One served model, for Anthropic's clients, too."""

    type: Literal["model"] = "model"
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None


class AnthropicModelList(BaseModel):
    """All served models, for Anthropic's clients, too: the one page that there is."""

    object: Literal["list"] = "list"
    data: list[AnthropicModelCard]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


class ModelHealth(BaseModel):
    """The state of one model."""

    state: State
    progress: float
    error: str | None


class Issue(BaseModel):
    """A problem of a model, and when it was noticed, in TabbyAPI's form."""

    time: datetime
    description: str


class Health(BaseModel):
    """`status` is TabbyAPI's: `healthy` with 200, else `unhealthy`.

    `state`: `ok`: every model answers, or will be loaded when it is asked for; `loading`: not yet;
    `degraded`: some do not; `failed`: none does. `issues`: of the models that do not answer and
    should.
    """

    status: Literal["healthy", "unhealthy"]
    issues: list[Issue]
    state: Literal["ok", "loading", "degraded", "failed"]
    models: dict[str, ModelHealth]
