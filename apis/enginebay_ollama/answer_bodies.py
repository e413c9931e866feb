"""Answers of Ollama's API. Times are nanoseconds."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from enginebay.chat.schemas.chat_answer import TokenLogprob


class CalledFunction(BaseModel):
    """A called function; `index` counts the calls of an answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class Call(BaseModel):
    """A call, always a whole one."""

    id: str
    function: CalledFunction


class Said(BaseModel):
    """The message of a chat's line."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(BaseModel):
    """A line of a stream, or the whole answer; only the last line is `done`, and has the counts."""

    model: str
    created_at: str
    done: bool
    logprobs: list[TokenLogprob] | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ChatLine(Line):
    """Of `/api/chat`."""

    message: Said


class GenerateLine(Line):
    """Of `/api/generate`."""

    response: str
    thinking: str | None = None


class ErrorLine(BaseModel):
    """What a stream ends with when something goes wrong, and the body of all errors."""

    error: str


class Embeddings(BaseModel):
    """Of `/api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedding(BaseModel):
    """Of `/api/embeddings`."""

    embedding: list[float]


class Details(BaseModel):
    """What a model is made of; what is not known is an empty text."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class ModelBrief(BaseModel):
    """A model that there is."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class ModelTags(BaseModel):
    """Of `/api/tags`."""

    models: list[ModelBrief]


class LoadedModel(BaseModel):
    """A model in memory; `size` and `size_vram` are bytes there, all of them and those of GPUs."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class LoadedModels(BaseModel):
    """Of `/api/ps`."""

    models: list[LoadedModel]


class ModelShown(BaseModel):
    """Of `/api/show`."""

    model_config = ConfigDict(serialize_by_alias=True, protected_namespaces=())

    license: str
    modelfile: str
    parameters: str
    template: str
    details: Details
    facts: dict[str, Any] = Field(serialization_alias="model_info")
    capabilities: list[str]
    modified_at: str


class PullStatus(BaseModel):
    """A line of `/api/pull`."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


class Version(BaseModel):
    """Of `/api/version`."""

    version: str
