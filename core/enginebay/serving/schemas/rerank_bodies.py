"""Bodies of `/v1/rerank`, `/v2/rerank` and `/v1/score`.

The first is what Jina, vLLM and llama-server have in common, the second Cohere's v2, the last
vLLM's: https://jina.ai/reranker, https://docs.cohere.com/reference/rerank,
https://docs.vllm.ai/en/latest/models/pooling_models/scoring/. With `texts` the first is TEI's:
https://huggingface.github.io/text-embeddings-inference/#/Text%20Embeddings%20Inference/rerank.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    RootModel,
    model_validator,
)

from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.config.field_types import field_names
from enginebay.contract.errors import InvalidRequestError
from enginebay.serving.schemas.pooling_fields import (
    CutFields,
    ListAnswer,
    OneOrMoreTexts,
    Texts,
)


class RelevanceFields(CutFields):
    """How a query and documents are scored. What is cut off a pair is cut off its document.

    `max_tokens_per_doc`: longer documents are cut to as many, None or 0: they are not.
    `raw_scores`: what the model's head says, without a sigmoid; vLLM's `use_activation: false`.
    """

    max_tokens_per_doc: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    raw_scores: bool = False
    use_activation: bool = True

    @property
    def raw(self) -> bool:
        """Whether scores are to be what the model's head says."""
        return self.raw_scores or not self.use_activation


class RerankRequest(RelevanceFields):
    """A query, and documents to sort by how relevant they are to it.

    TEI's clients send `texts` in place of `documents`, and `return_text`.
    """

    query: Annotated[str, Field(min_length=1)]
    documents: Texts | None = None
    texts: Texts | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
    return_text: bool = False

    @property
    def unknown(self) -> list[str]:
        """Names of fields sent that mean nothing, or nothing beside `texts` or `documents`."""
        other = "return_text" if self.texts is None else "return_documents"
        sent = other in self.model_fields_set and getattr(self, other)
        return sorted([*super().unknown, *([other] if sent else ())])

    @model_validator(mode="after")
    def _documents_once(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            param = "documents" if self.texts is None else "texts"
            raise InvalidRequestError("send either `documents` or `texts`", param=param)
        return self


class CohereRerankRequest(RelevanceFields):
    """Cohere's, whose documents are cut where they are too long."""

    query: Annotated[str, Field(min_length=1)]
    documents: Texts
    top_n: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=0, lt=2**31)] | None = 4096
    truncate: bool = True


class ScoreRequest(RelevanceFields):
    """Pairs to score: one query with each document, or as many queries as documents."""

    queries: OneOrMoreTexts = Field(validation_alias=AliasChoices("queries", "text_1", "data_1"))
    documents: OneOrMoreTexts = Field(
        validation_alias=AliasChoices("documents", "text_2", "items", "data_2")
    )

    _names: tuple[str, str] = PrivateAttr(("queries", "documents"))

    @property
    def names(self) -> tuple[str, str]:
        """The names under which queries and documents were sent."""
        return self._names

    @model_validator(mode="wrap")
    @classmethod
    def _remember_names(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        body = handler(data)
        if isinstance(data, dict):
            queries, documents = (
                next(name for name in field_names(field, cls.model_fields[field]) if name in data)
                for field in ("queries", "documents")
            )
            body._names = queries, documents
        return body

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        queries, documents = len(self.queries), len(self.documents)
        if queries not in (1, documents):
            raise InvalidRequestError(
                f"{queries} queries and {documents} documents make no pairs: send one query, or "
                "as many as there are documents",
                param="queries",
            )
        return self


class Document(BaseModel):
    """What was sent."""

    text: str


class RerankResult(BaseModel):
    """How relevant document number `index` is; `document` unless the request wants none."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankAnswer(ListAnswer):
    """The most relevant documents, the best first."""

    id: str
    usage: PromptUsage
    results: list[RerankResult]


class Rank(BaseModel):
    """TEI's `RerankResult`."""

    index: int
    text: str | None = None
    score: float


class Ranks(RootModel[list[Rank]]):
    """TEI's `RerankAnswer`."""


class ApiVersion(BaseModel):
    """Cohere's, of the API."""

    version: Literal["2"] = "2"


class MetaTokens(BaseModel):
    """How many tokens were read."""

    input_tokens: int


class Meta(BaseModel):
    """What Cohere says of an answer."""

    api_version: ApiVersion = ApiVersion()
    tokens: MetaTokens


class CohereRerankAnswer(BaseModel):
    """Cohere's `RerankAnswer`."""

    id: str
    results: list[RerankResult]
    meta: Meta


class Score(BaseModel):
    """The score of pair number `index`."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreAnswer(ListAnswer):
    """The score of each pair, in their order."""

    id: str
    created: int
    data: list[Score]
    usage: PromptUsage
