"""Bodies of `/v1/embeddings`: https://platform.openai.com/docs/api-reference/embeddings."""

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from enginebay.chat.schemas.prompt_fields import Prompts, prompts_shape
from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.config.field_types import aliased
from enginebay.serving.schemas.pooling_fields import MAX_INPUTS, CutFields, ListAnswer

Inputs = Annotated[Prompts, BeforeValidator(prompts_shape(MAX_INPUTS))]
"""A text, token ids, or a list of either."""


class EmbeddingFields(CutFields):
    """How inputs are embedded.

    `dimensions`: the size the embeddings are cut to. `normalize`: whether they have length 1; vLLM
    calls that `use_activation`. `prompt_name`: the name of the model's prompt that is put in front
    of texts. `input_type`: what the texts are for, as Cohere and Jina (`task`) have it, which
    chooses the prompt, too.
    """

    dimensions: Annotated[int, Field(ge=1)] | None = None
    normalize: bool = Field(True, validation_alias=AliasChoices("normalize", "use_activation"))
    prompt_name: str | None = None
    input_type: str | None = aliased("input_type", "task")
    add_special_tokens: bool = True


class EmbeddingRequest(EmbeddingFields):
    """One input or several."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"


class Embedding(BaseModel):
    """The embedding of input number `index`; as text it is base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(ListAnswer):
    """The answer: an embedding for each input, in their order."""

    data: list[Embedding]
    usage: PromptUsage
