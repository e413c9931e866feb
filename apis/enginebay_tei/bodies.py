"""Bodies of TEI's `/embed` and `/info`: https://huggingface.github.io/text-embeddings-inference/."""

from pydantic import BaseModel, RootModel

from enginebay.serving.schemas.embedding_bodies import EmbeddingFields, Inputs
from enginebay.serving.schemas.pooling_fields import MAX_INPUTS


class EmbedRequest(EmbeddingFields):
    """One input or several."""

    inputs: Inputs


class EmbedAnswer(RootModel[list[list[float]]]):
    """An embedding for each input, in their order."""


class EmbeddingKind(BaseModel):
    """An embedding model; TEI also says how it pools, which is not known here."""


class ClassifierKind(BaseModel):
    """A reranker or classifier; its labels by number, and the other way round."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelKind(BaseModel):
    """One of them is set."""

    embedding: EmbeddingKind | None = None
    reranker: ClassifierKind | None = None
    classifier: ClassifierKind | None = None


class Info(BaseModel):
    """What is known of the model that answers where a request names none.

    `max_input_length`: tokens of a text. `max_batch_requests`: texts computed at once, where that
    is known. `max_client_batch_size`: texts of a request.
    """

    model_id: str
    served_model_name: str
    model_type: ModelKind
    max_input_length: int
    max_batch_requests: int | None = None
    max_client_batch_size: int = MAX_INPUTS
    auto_truncate: bool = False
    version: str
