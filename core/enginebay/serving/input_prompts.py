"""Which prompt of an embedding model is put in front of a text."""

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.types import ModelInfo

# Names that models have for them, the usual ones first: those of sentence-transformers, then of
# the folders of Nomic, Jina and EmbeddingGemma. Requests name them so, too.
_KINDS = (
    ("query", "search_query", "retrieval.query", "Retrieval-query"),
    ("document", "passage", "corpus", "search_document", "retrieval.passage", "Retrieval-document"),
)


def named_prompt(info: ModelInfo, name: str) -> str:
    """The model's prompt of this name. `InvalidRequestError` if there is none."""
    if name not in info.prompts:
        raise InvalidRequestError(
            f"the model has no prompt {name!r}; its prompts: {_names(info)}", param="prompt_name"
        )
    return info.prompts[name]


def prompt_for(info: ModelInfo, input_type: str | None = None) -> str:
    """The model's prompt for texts of this type, which may be its name; else its default prompt.

    As in sentence-transformers' `encode_query` and `encode_document`, the default is also that of
    a model which has none for queries or documents. `InvalidRequestError` for another type.
    """
    default = info.prompts.get(info.default_prompt or "", "")
    if input_type is None or not info.prompts:
        return default
    if input_type in info.prompts:
        return info.prompts[input_type]
    for names in _KINDS:
        if input_type in names:
            return next((info.prompts[name] for name in names if name in info.prompts), default)
    raise InvalidRequestError(
        f"the model has no prompt for the input type {input_type!r}; its prompts: {_names(info)}",
        param="input_type",
    )


def _names(info: ModelInfo) -> str:
    return ", ".join(map(repr, info.prompts)) or "none"
