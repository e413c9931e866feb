"""Bodies of `/v1/embeddings`: https://platform.openai.com/docs/api-reference/embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.chat.schemas.prompt_fields import Prompts, prompts_shape
from core.chat.schemas.usage_bodies import PromptUsage

MAX_INPUTS = 2048


class EmbeddingRequest(BaseModel):
    """One input or several. `dimensions` can only be what the model makes."""

    model_config = ConfigDict(extra="allow")

    input: Annotated[Prompts, BeforeValidator(prompts_shape(MAX_INPUTS))]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {n: value for n, value in data.items() if value is not None or n == "input"}
        return data


class Embedding(BaseModel):
    """The embedding of input number `index`; as text it is base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """The answer: an embedding for each input, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PromptUsage
