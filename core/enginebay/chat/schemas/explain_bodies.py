"""The answer of `/v1/chat/completions/explain`."""

from typing import Any, Literal

from pydantic import BaseModel

from enginebay.chat.schemas.error_bodies import ErrorObject
from enginebay.models.overrides import Source


class FormatReport(BaseModel):
    """A reasoning or tool format: its name (None for none) and how it was detected."""

    name: str | None
    evidence: str


class TemplateReport(BaseModel):
    """What a chat template is and supports, found by rendering probe messages.

    `content`: whether it reads content as a text or a list of parts. `arguments`: whether it reads
    those of earlier calls as objects or JSON text. `variables`: for `chat_template_kwargs`.
    `bos`: where the BOS of prompts comes from. `mistakes`: undefined names that it uses.
    """

    name: str
    bos: str
    system: bool
    several_systems: bool
    later_systems: bool
    developer: bool
    tools: bool
    tool_results: bool
    reasoning: bool
    documents: bool
    content: Literal["string", "openai"]
    arguments: Literal["object", "string"] | None
    variables: list[str]
    mistakes: list[str]
    stop_strings: list[str]
    turn_end: str | None


class ModelReport(BaseModel):
    """What is known of a model; `defaults` are its own sampling params.

    `constraints`: whether its engine supports constrained decoding. `limits`, `embedding_size`,
    `shorter_embeddings`, `prompts`, `default_prompt`, `labels`, `placeholders` and `media_options`
    are those of `ModelInfo`.
    """

    id: str
    backend: str
    context_length: int
    vocab_size: int
    limits: str
    capabilities: list[str]
    embedding_size: int | None
    shorter_embeddings: tuple[int, ...] | None
    prompts: dict[str, str]
    default_prompt: str | None
    labels: list[str]
    placeholders: dict[str, str]
    media_options: list[str]
    special_tokens: dict[str, str]
    defaults: dict[str, Any]
    configured: dict[str, Any]
    unsupported: list[str]
    constraints: bool
    adapters: list[str]
    templates: list[str]
    template: TemplateReport | None
    reasoning: FormatReport
    tools: FormatReport


class SamplingValue(BaseModel):
    """A sampling param and where its value comes from."""

    value: Any
    source: Source


class Token(BaseModel):
    """A token of the prompt."""

    id: int
    text: str


class MediaReport(BaseModel):
    """A picture, sound or video of the prompt, and which tokens stand for it.

    `param`: its path in the request. `type` is what its bytes are; `bytes`, how many. `options` of
    the request that apply to it. `start`: the first of its `tokens`, of the prompt's.
    """

    param: str
    kind: str
    type: str
    bytes: int
    options: dict[str, Any]
    start: int
    tokens: int


class StopReport(BaseModel):
    """What ends the answer beside the end-of-sequence token."""

    strings: list[str]
    token_ids: list[int]


class BosReport(BaseModel):
    """Whether the prompt begins with a BOS token, how many of them, and why."""

    text: str | None
    count: int
    reason: str


class Explanation(BaseModel):
    """The plan of a chat request, without running it.

    `prompt_tokens` and `tokens` are None for a prompt that is too long; `error` is then what the
    chat route would answer. `media`: the items in it. `dropped_messages`: how many of the oldest
    are left out of the chat; `truncated_tokens`: how many were cut off at the beginning. `room`:
    tokens left for the answer; `max_seconds`: how long it may take. `notes`: what was changed in
    the messages. `ignored`: fields that have no effect. `headers`: those of the answer that
    report on parameters.
    `constraint`: the grammar of the answer, special tokens as text
    (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md); None if unconstrained.
    """

    object: Literal["chat.completion.explanation"]
    model: ModelReport
    prompt: str
    prompt_tokens: int | None
    tokens: list[Token] | None
    media: list[MediaReport]
    dropped_messages: int
    truncated_tokens: int
    context_length: int
    room: int
    max_tokens: int
    max_seconds: float | None
    starts_in_reasoning: bool
    bos: BosReport
    sampling: dict[str, SamplingValue]
    stop: StopReport
    constraint: str | None
    notes: list[str]
    ignored: list[str]
    headers: dict[str, str]
    error: ErrorObject | None
