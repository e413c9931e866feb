"""Bodies of the routes that load and unload models: TabbyAPI's `/v1/model*`, and ours.

Fields: https://theroyallab.github.io/tabbyAPI/. Unknown ones are kept aside and reported.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from enginebay.config.field_types import ModelName, NullIsUnset, Scalars
from enginebay.server.schemas.model_bodies import ModelCard


class DraftModel(BaseModel):
    """The draft model, for speculative decoding."""

    model_config = ConfigDict(extra="allow")

    draft_model_name: str = Field(min_length=1)
    draft_num_tokens: int | None = None
    draft_cache_mode: str | None = None
    draft_rope_scale: float | None = None
    draft_rope_alpha: float | Literal["auto"] | None = None
    draft_gpu_split: Scalars[float] | None = None


class LoadOptions(NullIsUnset):
    """How a model is loaded; unset fields are as configured.

    `options` are those of the backend, by its own names. `stream`: answer with events.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    options: Annotated[dict[str, Any], Field(max_length=200)] | None = None
    prompt_template: str | None = None
    max_seq_len: int | None = None
    override_base_seq_len: int | None = None
    cache_size: int | None = None
    cache_mode: str | None = None
    chunk_size: int | None = None
    max_batch_size: int | None = None
    tensor_parallel: bool | None = None
    tensor_parallel_backend: str | None = None
    gpu_split_auto: bool | None = None
    gpu_split: Scalars[float] | None = None
    autosplit_reserve: Scalars[float] | None = None
    rope_scale: float | None = None
    rope_alpha: float | Literal["auto"] | None = None
    num_experts_per_token: int | None = None
    output_chunking: bool | None = None
    fasttensors: bool | None = None
    vision: bool | None = None
    draft_model: DraftModel | None = Field(
        default=None, validation_alias=AliasChoices("draft_model", "draft")
    )
    stream: bool = True

    def parameters(self) -> dict[str, Any]:
        """TabbyAPI's parameters by its names, those of the draft model but for its name too."""
        own = self.model_dump(exclude={"options", "prompt_template", "draft_model", "stream"})
        draft = (
            self.draft_model.model_dump(exclude={"draft_model_name"}) if self.draft_model else {}
        )
        return own | draft


class ModelLoadRequest(LoadOptions):
    """`POST /v1/model/load`. `skip_queue`: abort the running requests of the model it replaces."""

    name: ModelName = Field(min_length=1, validation_alias=AliasChoices("name", "model_name"))
    backend: str | None = None
    skip_queue: bool = False

    def parameters(self) -> dict[str, Any]:
        ours = {"name", "model_name", "backend", "skip_queue", "api_server", "api_type"}
        return {name: value for name, value in super().parameters().items() if name not in ours}


class EmbeddingModelLoadRequest(BaseModel):
    """`POST /v1/model/embedding/load`."""

    model_config = ConfigDict(extra="allow")

    name: ModelName = Field(
        min_length=1, validation_alias=AliasChoices("name", "embedding_model_name")
    )
    backend: str | None = None
    embeddings_device: str | None = None


class ModelUnloadRequest(NullIsUnset):
    """`POST /v1/model/unload`; all of it optional. Without a `name`, the current model."""

    model_config = ConfigDict(extra="allow")

    name: ModelName | None = None
    skip_queue: bool = False


class LoadEvent(BaseModel):
    """How far a load is: `module` of `modules`, as TabbyAPI has it, which are percent here."""

    model_type: Literal["model", "embedding_model"] = "model"
    module: int
    modules: int = 100
    status: Literal["processing", "finished"]
    model: str
    stage: str


class CardParameters(BaseModel):
    """TabbyAPI's card of a model; None is what the engine chose by itself."""

    max_seq_len: int | None = None
    cache_size: int | None = None
    cache_mode: str | None = None
    rope_scale: float | None = None
    rope_alpha: float | None = None
    max_batch_size: int | None = None
    chunk_size: int | None = None
    num_experts_per_token: int | None = None
    prompt_template: str | None = None
    prompt_template_content: str | None = None
    use_vision: bool = False
    draft: dict[str, str] | None = None


class CurrentModel(ModelCard):
    """`GET /v1/model`."""

    parameters: CardParameters


class NamedModel(BaseModel):
    """A model that could be loaded by its name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "enginebay"


class LoadableList(BaseModel):
    """`GET /v1/model/list`: what is configured, and what lies in the folder of models."""

    object: Literal["list"] = "list"
    data: list[ModelCard | NamedModel]
