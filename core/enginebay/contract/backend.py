"""The backend interface: one loaded model, asynchronous."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from enginebay.contract.backend_settings import Isolation
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.contract.estimates import MemoryUse
from enginebay.contract.media import Media, MediaPrompt
from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import Delta, EngineStats, GenerationRequest, Lora, ModelInfo


class Backend(ABC):
    """One model that answers generation requests. Every method runs on the event loop.

    Write one directly for an asynchronous engine (such as a remote server); for a blocking engine
    write an `Engine` and wrap it in `EngineBackend`.

    `isolation` is where its engine runs; None for a backend without an engine. `elsewhere`: its
    model is in the memory of other machines, and counts for no limit of this one.
    """

    isolation: Isolation | None = None
    elsewhere: bool = False

    @property
    def pid(self) -> int | None:
        """The process that holds the model's memory; None for the server's own."""
        return None

    @property
    def memory(self) -> MemoryUse | None:
        """What the model takes on other machines, all together; None if unknown, or not there."""
        return None

    @property
    def unavailable(self) -> str | None:
        """Why the model cannot answer for now; None if it can.

        Read on the event loop before every request, which is then rejected with a 503, and by
        `/health` and `/v1/models`. A backend whose engine has died or whose server is unreachable
        returns the reason here, detects the recovery by itself, and then returns None again.
        """
        return None

    @property
    def stats(self) -> EngineStats | None:
        """The engine's latest stats; None if it reports none.

        While there is work they are at most about half a second old, and `steps` grows.
        """
        return None

    async def ping(self) -> None:  # noqa: B027  (some cannot ask)
        """Return when the engine has shown that it is alive, between two steps of its work.

        `/health` calls it every few seconds; an engine that does not answer in time is reported as
        stuck. A backend without such a check returns at once. A `ServingError` means that there is
        no engine.
        """

    @abstractmethod
    async def start(self) -> ModelInfo:
        """Load the model; called once, before anything else.
        Raises `BackendUnavailableError` if it cannot be loaded, with a message that says what to
        do.
        """

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices, each choice's in order, its last one with a `finish_reason`.

        Closing the generator is the only way to cancel: it aborts the request and frees its memory.
        """

    async def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        """End the thought of a request that is running; how many of its choices were thinking.

        `budget`, of 0 tokens, says how: it holds from now on, for choices that are inside thought.
        An unknown request, or one that has ended, has none.

        Optional: `UnsupportedParameterError` from a backend that cannot force tokens.
        """
        raise UnsupportedParameterError("this backend cannot end thought")

    @abstractmethod
    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised.

        Not called for models that take chats.

        `add_special_tokens` adds the tokenizer's own special tokens (such as a BOS).
        """

    @abstractmethod
    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens included. Not called for models that take chats."""

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

    async def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        """Token ids of a rendered prompt, in whose text placeholders were replaced by items.

        Texts are read as by `tokenize`, those that are a `PlainText` as by `tokenize_plain`. What
        the model wants around an item (`<|vision_start|>`) is in the text only if its template
        writes it; the rest is added here. Each item gets at least one span. The same item has the
        same tokens wherever it stands.

        Decodes and checks the items: `InvalidRequestError` for one that cannot be read or exceeds
        its limits, with `media.N` as its param, where N counts the items from 0. Not called for a
        model without `ModelInfo.modalities`.
        """
        raise UnsupportedParameterError("this model takes text only", param="messages")

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """An embedding of each prompt, in their order, `ModelInfo.embedding_size` numbers each.

        They are as the model makes them: the server scales them to length 1 where a request does
        not ask otherwise. Prompts are not empty and have at most `context_length` tokens. Not
        called without an `embedding_size`. A `ServingError` fails this call alone.
        """
        raise InvalidRequestError("this model does not support embeddings", param="model")

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document for `rerank`, in the model's own template.

        What looks like a special token in either is plain text. Not called if the model does not
        rerank.
        """
        raise InvalidRequestError("this model does not support reranking", param="model")

    async def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        """How relevant the document of each pair is to its query, in their order.

        Finite numbers, higher for more relevant ones, from 0 to 1 if the model outputs
        probabilities. Pairs come from `tokenize_pair` and have at most `context_length` tokens. Not
        called if the model does not rerank. A `ServingError` fails this call alone.
        """
        raise InvalidRequestError("this model does not support reranking", param="model")

    async def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """What the model's head says of each prompt, in their order: a number for each label.

        They are raw (logits): the server makes probabilities of them, or takes the single one of a
        reward model as the score. Prompts are not empty and have at most `context_length` tokens.
        Of a reranker with one label they may be pairs of `tokenize_pair`. Not called for a model
        without `ModelInfo.labels`. A `ServingError` fails this call alone.
        """
        raise InvalidRequestError("this model does not classify texts", param="model")

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        """Make the adapter `name`, the sum of these LoRAs, available to requests.

        An adapter of that name is replaced. `InvalidRequestError` if one cannot be read or does not
        fit the model; nothing changes then.
        """
        raise UnsupportedParameterError("this backend cannot load adapters", param="loras")

    async def unload_adapter(self, name: str) -> None:
        """Make the adapter unavailable to new requests; running ones keep it to their end.

        An unknown one is no error.
        """
        raise UnsupportedParameterError("this backend cannot unload adapters", param="loras")

    @abstractmethod
    async def close(self) -> None:
        """Unload the model and free its memory. Requests in flight fail."""

    async def start_again(self) -> None:
        """Have engines run again that were ended where they are; returns when one can answer.

        Called when somebody loads the model of a backend that is `elsewhere` and `unavailable`.
        Raises as `start` does; does nothing where others see to that.
        """
        return None

    async def disconnect(self) -> None:
        """The server stops. As `close`, but what others use as well may go on running."""
        await self.close()
