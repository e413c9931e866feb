"""Bodies of `/v1/rerank`, which Jina, Cohere (v2), vLLM and llama-server have in common.

https://jina.ai/reranker, https://docs.cohere.com/reference/rerank,
https://docs.vllm.ai/en/latest/models/pooling_models/scoring/
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.chat.schemas.usage_bodies import PromptUsage
from core.server.schemas.embedding_bodies import MAX_INPUTS


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() != {"text"}:
            raise ValueError('must be a string, or an object with only "text"')
        value = value["text"]
    if not isinstance(value, str):
        raise ValueError('must be a string, or {"text": ...}')
    if not value:
        raise ValueError("is empty")
    return value


class RerankRequest(BaseModel):
    """A query, and documents to sort by how relevant they are to it."""

    model_config = ConfigDict(extra="allow")

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[Annotated[str, BeforeValidator(_text)]], Field(min_length=1, max_length=MAX_INPUTS)
    ]
    model: str | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if isinstance(data, dict):
            required = ("query", "documents")
            return {n: value for n, value in data.items() if value is not None or n in required}
        return data


class Document(BaseModel):
    """What was sent."""

    text: str


class RerankResult(BaseModel):
    """How relevant document number `index` is; `document` unless the request wants none."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankAnswer(BaseModel):
    """The most relevant documents, the best first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    usage: PromptUsage
    results: list[RerankResult]
