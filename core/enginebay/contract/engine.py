"""The interface of a blocking engine: add a request, step the batch, abort."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

from enginebay.contract.errors import InvalidRequestError, ServingError, UnsupportedParameterError
from enginebay.contract.grammar import Grammar
from enginebay.contract.media import Media, MediaPrompt
from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import Delta, EngineStats, GenerationRequest, Lora, ModelInfo

_Result = TypeVar("_Result")

Later: TypeAlias = _Result | Future[_Result]
"""A result, or a `Future` of one that steps compute."""


class Engine(ABC):
    """A blocking engine: built, stepped and closed on one thread.

    Only the methods in `CONCURRENT_METHODS` are called from other threads, while a step may be
    running. Exceptions fail one call or request alone, except those of `step` and `abort_request`.

    A method that is called between steps may return a `Future` of its result, so that several calls
    share a step and long ones are worked off in parts. The engine completes it in its steps; an
    exception set on it fails that call alone. It is cancelled when nobody awaits the call any
    longer: the engine then skips what is left of it.
    """

    info: ModelInfo

    @abstractmethod
    def add_request(self, request: GenerationRequest) -> None:
        """Queue a request. A `ServingError` raised here fails this request alone."""

    @abstractmethod
    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """Run the batch once; `(request_id, delta)` for every choice that gained something.

        Called again and again while a request is unfinished or a `Future` that a method returned is
        not done. A `ServingError` in a delta's place
        ends that request alone, all its choices. An exception means that the engine is dead:
        everything in flight fails, the engine is closed and a new one is built.
        """

    @abstractmethod
    def abort_request(self, request_id: str) -> None:
        """Forget a request and free its memory. An unknown id is no error."""

    def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        """As `Backend.end_reasoning`; on the engine thread, between steps."""
        raise UnsupportedParameterError("this engine cannot end thought")

    @abstractmethod
    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As `Backend.tokenize`; from any thread."""

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """As `Backend.detokenize`; from any thread."""

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As `Backend.tokenize_plain`; from any thread."""
        raise UnsupportedParameterError("this engine cannot treat special tokens as plain text")

    def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        """As `Backend.detokenize_plain`; from any thread."""
        raise UnsupportedParameterError("this engine cannot leave special tokens out of text")

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        """As `Backend.tokenize_media`; from any thread."""
        raise UnsupportedParameterError("this model takes text only", param="messages")

    def compile(self, grammar: Grammar) -> float:
        """Compile a constraint before requests with it are added; returns how many seconds it took.

        From any thread. `InvalidRequestError`, with `constraint` as its param, for one that cannot
        be compiled. An engine whose `ModelInfo.constraints` is true overrides this, most simply by
        a `GrammarCompiler`.
        """
        raise UnsupportedParameterError(
            "this engine does not support constrained decoding", param="constraint"
        )

    def embed(self, prompts: Sequence[Sequence[int]]) -> Later[list[list[float]]]:
        """As `Backend.embed`; on the engine thread, between steps."""
        raise InvalidRequestError("this model does not support embeddings", param="model")

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        """As `Backend.tokenize_pair`; from any thread."""
        raise InvalidRequestError("this model does not support reranking", param="model")

    def rerank(self, pairs: Sequence[Sequence[int]]) -> Later[list[float]]:
        """As `Backend.rerank`; on the engine thread, between steps."""
        raise InvalidRequestError("this model does not support reranking", param="model")

    def classify(self, prompts: Sequence[Sequence[int]]) -> Later[list[list[float]]]:
        """As `Backend.classify`; on the engine thread, between steps."""
        raise InvalidRequestError("this model does not classify texts", param="model")

    def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        """As `Backend.load_adapter`, of a name that was never loaded before; between steps."""
        raise UnsupportedParameterError("this engine cannot load adapters", param="loras")

    def unload_adapter(self, name: str) -> None:  # noqa: B027  (for engines that load some)
        """Free an adapter that no request uses or will use; an unknown one is no error."""

    def stats(self) -> EngineStats | None:
        """The engine's stats, except `steps`; on the engine thread, between steps.

        Called about twice a second while there is work, so it may take no longer than a step's
        bookkeeping. None for an engine that has none.
        """
        return None

    def close(self) -> None:  # noqa: B027  (most engines have nothing to free)
        """Free everything; called once, last, on the engine thread."""


CONCURRENT_METHODS = frozenset(
    method.__name__
    for method in (
        Engine.tokenize,
        Engine.detokenize,
        Engine.tokenize_plain,
        Engine.detokenize_plain,
        Engine.tokenize_pair,
        Engine.tokenize_media,
        Engine.compile,
    )
)
"""Called from any thread, while a step may be running; all others between steps."""
