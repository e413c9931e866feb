"""The contract of a backend: one loaded model, asynchronous."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from core.contract.errors import InvalidRequestError, UnsupportedParameterError
from core.contract.types import Delta, EngineStats, GenerationRequest, Isolation, Lora, ModelInfo


class Backend(ABC):
    """One model that answers generation requests. Every method runs on the event loop.

    Write one directly for an engine that is asynchronous by itself (a remote server); for a
    blocking engine write an `Engine` and wrap it in `EngineBackend`.

    `isolation` is where its engine runs, None for a backend that has none of its own.
    """

    isolation: Isolation | None = None

    @property
    def pid(self) -> int | None:
        """The process that the model's memory belongs to; None for the server's own."""
        return None

    @property
    def unavailable(self) -> str | None:
        """Why the model cannot answer for now; None if it can.

        Asked on the event loop before every request, which is then refused with a 503, and by
        `/health` and `/v1/models`. So a backend whose engine is gone, or whose server cannot be
        reached, says so here, finds out by itself when that is over, and then says None again.
        """
        return None

    @property
    def stats(self) -> EngineStats | None:
        """What the engine told of itself last; None if it tells nothing.

        As long as there is work it is at most about half a second old, and its `steps` grow.
        """
        return None

    async def ping(self) -> None:  # noqa: B027  (some cannot ask)
        """Return when the engine has shown that it is alive, between two steps of its work.

        `/health` asks every few seconds; an engine that does not answer in time is called stuck. A
        backend that cannot ask returns at once. A `ServingError` says that there is no engine.
        """

    @abstractmethod
    async def start(self) -> ModelInfo:
        """Load the model; called once, before anything else.

        Raises `BackendUnavailableError` when it cannot be loaded, with what to do about it.
        """

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices, each choice's in order, its last one with a `finish_reason`.

        Closing the generator is the only cancel: it aborts the request and frees its memory.
        """

    @abstractmethod
    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised.

        Nobody asks a model that chats.

        `add_special_tokens` adds what the tokenizer adds by itself (a BOS, say).
        """

    @abstractmethod
    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens written out. Nobody asks a model that chats."""

    async def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As `tokenize`, but what looks like a special token in `text` is plain text.

        Optional: `UnsupportedParameterError` from a backend whose tokenizer cannot do that.
        """
        raise UnsupportedParameterError("this backend cannot treat special tokens as plain text")

    async def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        """As `detokenize`, special tokens left out.

        Optional: `UnsupportedParameterError` from a backend that cannot tell which they are.
        """
        raise UnsupportedParameterError("this backend cannot leave special tokens out of text")

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """An embedding of each prompt, in their order, `ModelInfo.embedding_size` numbers each.

        Prompts are not empty and have at most `context_length` tokens. Without an
        `embedding_size` nobody asks. A `ServingError` fails this call alone.
        """
        raise InvalidRequestError("this model does not support embeddings", param="model")

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document as `rerank` wants them, in what the model has around.

        What looks like a special token in either is plain text. Nobody asks a model that does not
        rerank.
        """
        raise InvalidRequestError("this model does not support reranking", param="model")

    async def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        """How relevant the document of each pair is to its query, in their order.

        Finite numbers, higher for more relevant ones, from 0 to 1 where the model means a
        probability. Pairs are what `tokenize_pair` gave, with at most `context_length` tokens. A
        model that does not rerank is not asked. A `ServingError` fails this call alone.
        """
        raise InvalidRequestError("this model does not support reranking", param="model")

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        """Let requests ask for the adapter `name` from now on: the sum of these LoRAs.

        An adapter of that name is replaced. `InvalidRequestError` for one that cannot be read or
        does not fit the model, which goes on as before.
        """
        raise UnsupportedParameterError("this backend cannot load adapters", param="loras")

    async def unload_adapter(self, name: str) -> None:
        """Let no request ask for this adapter any more; those that have it keep it to their end.

        An unknown one is no error.
        """
        raise UnsupportedParameterError("this backend cannot unload adapters", param="loras")

    @abstractmethod
    async def close(self) -> None:
        """Unload the model and free its memory. Requests in flight fail."""
