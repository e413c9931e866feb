"""What the event loop and an engine say to each other: commands one way, events the other."""

from dataclasses import dataclass

from core.contract.errors import ServingError
from core.contract.grammar import Grammar
from core.contract.types import Delta, EngineStats, GenerationRequest, Lora, ModelInfo


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Call `Engine.tokenize`, or `tokenize_plain`; the `Answer` has the same number."""

    number: int
    text: str
    add_special_tokens: bool
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Call `Engine.detokenize`, or `detokenize_plain`; the `Answer` has the same number."""

    number: int
    token_ids: tuple[int, ...]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class TokenizePair:
    """Call `Engine.tokenize_pair`; the `Answer` has the same number."""

    number: int
    query: str
    document: str


@dataclass(frozen=True, slots=True)
class Compile:
    """Call `Engine.compile`; the `Answer` has the same number."""

    number: int
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class Embed:
    """Call `Engine.embed`; the `Answer` has the same number."""

    number: int
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rerank:
    """Call `Engine.rerank`; the `Answer` has the same number."""

    number: int
    pairs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Call `Engine.load_adapter`; the `Answer` has the same number."""

    number: int
    name: str
    loras: tuple[Lora, ...]


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Call `Engine.unload_adapter`."""

    name: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer between two steps, with the same number."""

    number: int


class Close:
    """Close the engine; nothing is sent after it."""


TokenizerCall = Tokenize | Detokenize | TokenizePair | Compile
Call = TokenizerCall | Embed | Rerank | LoadAdapter | Ping
Command = GenerationRequest | Abort | Call | UnloadAdapter | Close


@dataclass(frozen=True, slots=True)
class Started:
    """The engine is built and takes commands."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The engine could not be built."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Answer:
    """What a `Call` gave, or raised."""

    number: int
    result: list[int] | str | float | list[list[float]] | list[float] | BaseException | None


@dataclass(frozen=True, slots=True)
class Died:
    """The engine raised an exception and is being closed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing is left of the engine; the last event.

    `reason` is why, or None if that has been said, or was wanted.
    """

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the engine tells of itself, a while after the last report or when its work is done."""

    stats: EngineStats


Output = tuple[str, Delta | ServingError]
Event = Started | NotStarted | list[Output] | Report | Answer | Died | Gone
"""A list is what one step gave."""
