"""Data passed between the endpoint layer and an engine: frozen, picklable dataclasses.

No HTTP, no `stream`: an engine sees prompt tokens and sampling params, and answers with deltas of
text and tokens. A backend whose model takes messages (`ModelInfo.chats`) gets a `Chat` instead of
tokens, and answers with deltas of parts. New fields get defaults, so that no plugin breaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from enginebay.contract.chat import Chat
from enginebay.contract.media import MediaSpan, Modality
from enginebay.contract.sampling_params import SamplingParams

EngineFinishReason = Literal["stop", "length", "content_filter"]
"""Why a choice ended; `content_filter` comes only from remote servers that filter content."""

FinishReason = Literal["stop", "length", "content_filter", "tool_calls", "function_call", "abort"]
"""Why an answer ended, on the wire.

`function_call` is `tool_calls` for requests with OpenAI's old `functions`; `abort`: the server
itself ended it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, prefilled once, decoded into `n` choices with indices 0 to n - 1.

    `chat`: what a model that chats gets instead of `prompt_token_ids`, which are then empty.
    `media`: what its placeholders stand for, as `tokenize_media` said; the tokens in them mean
    nothing.
    `adapter`: one of `ModelInfo.adapters`, whose weights are added to the model's (LoRA).
    `priority`: a request with a lower number starts first, and is preempted last.
    `cache_salt`: only requests with the same salt share cached prefixes.
    `reports_prefill`: whether deltas may say how far the prompt is read (`Delta.prefill`).
    `predicted_token_ids`: what the answer will be for the most part, if the client knows; they are
    drafted, and change nothing.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    adapter: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    chat: Chat | None = None
    media: tuple[MediaSpan, ...] = ()
    reports_prefill: bool = False
    predicted_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lora:
    """Files of a LoRA (Hu et al., 2021): the absolute path of a folder or file, and its strength.

    `scaling` multiplies the files' own scaling; 0 has no effect.
    """

    path: str
    scaling: float = 1.0


def added_bytes(token: str, text_bytes: bytes | None) -> bytes:
    """The bytes of a token: its own ones, or those of its text if it has no others."""
    return token.encode(errors="replace") if text_bytes is None else text_bytes


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One candidate token and its natural-log probability.

    `token`: its text, with U+FFFD in place of bytes that are no text by themselves. `text_bytes`:
    the bytes that it adds to the completion's text, if they are not those of `token`.
    """

    token_id: int
    token: str
    logprob: float
    text_bytes: bytes | None = None

    @property
    def added_bytes(self) -> bytes:
        """The bytes that the token adds to the completion's text."""
        return added_bytes(self.token, self.text_bytes)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its natural-log probability and the likeliest candidates, best first.

    `rank`, of tokens of prompts: the token's place among all by probability, 1 for the likeliest,
    ties in the order of ids; None where the engine cannot say. `token` and `text_bytes`: see
    `TopLogprob`. The `added_bytes` of a completion's tokens, joined, are the bytes of its text.
    """

    token_id: int
    token: str
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    rank: int | None = None
    text_bytes: bytes | None = None

    @property
    def added_bytes(self) -> bytes:
        """The bytes that the token adds to the completion's text."""
        return added_bytes(self.token, self.text_bytes)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer; `logprobs` of the tokens it is made of, when asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Reasoning text, before or between parts of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of tool call number `index` of its choice.

    The first piece has the `name`; later ones only more `arguments` (JSON text). The first piece
    has the `id`, too, if the model wrote one; else the collector assigns one.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """Refusal text, where a server separates it from content.

    No parser creates one.
    """

    text: str


Part = ContentDelta | ReasoningDelta | ToolCallDelta | RefusalDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """The usage of a request as reported by the server that ran it, over all choices.

    `reasoning_tokens`: None if not reported. `media_tokens`: those of the prompt that stand for
    media, by kind.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None
    media_tokens: Mapping[Modality, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefill:
    """How far a prompt is read: `done` of `total` tokens, of which `cached` were there before."""

    total: int
    cached: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What choice `index` gained.

    `text` is whole characters. `token_ids` are all tokens sampled since the choice's last delta, an
    end-of-sequence token included although it has no text. `logprobs` (if requested) has one entry
    per token that is part of the completion's text. `finish_reason` is set on a choice's last delta
    only; `stop_reason` then says which stop string or stop token id it was, None for the
    end-of-sequence token. On one delta of a request, the first or, where that is not known before,
    the last, `prefill_tokens` are the prompt tokens that were computed and `cached_tokens` those
    the engine still had; together they are the prompt, whatever `n` is. `prompt_logprobs` (if
    requested) are on the first: one entry per prompt token, None for the first token.
    `grammar_init_s` on it are the seconds it took to compile the request's constraint, `grammar_s`
    on every delta those spent applying it. `drafted_tokens` are those that were
    drafted for the choice since its last delta, `accepted_tokens` those of its tokens that were
    drafted; known of a whole completion at the latest. A delta joined of several has the characters
    and tokens of each in `pieces`.

    Deltas of a chat have no text and no tokens. `parts` are what the choice gained, already
    separated; logprobs are those of its content, with a `token_id` of -1 where that is not known.
    `usage` is what the request has used by now; the last one counts, and parts after it as a token
    each: what is known of an answer that is cut off.

    A delta with `prefill` has nothing else, and comes before the first token, any number of times,
    if the request asks for such (`GenerationRequest.reports_prefill`).
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: EngineFinishReason | None = None
    stop_reason: str | int | None = None
    prefill_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    grammar_init_s: float = 0.0
    grammar_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] = ()
    usage: TokenCounts | None = None
    prefill: Prefill | None = None


@dataclass(slots=True)  # one a token: a frozen one costs four times as much to make
class Update:
    """What choice `index` of an answer gained; its last one has the `finish_reason`.

    `tokens` is how many tokens the choice has by now, `token_ids` are those it gained.
    `prompt_logprobs` come with the first update of a request, if it asks for them. One with
    `prefill` says only how far the prompt is read, to those who ask for that.
    """

    index: int
    parts: list[Part]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    token_ids: tuple[int, ...] = ()
    prefill: Prefill | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the endpoint layer must know about a loaded model.

    `context_length`: tokens of prompt and completion together. It, and `vocab_size`, may be 0 of a
    model that chats, where they are not known.
    `longest_token`: characters of the longest token, so that a prompt that cannot fit is refused
    before it is tokenized.
    `chat_template`: Jinja source, or None for a model that has none. `chat_templates`: others by
    name; `tool_use` takes precedence when a request has tools.
    `special_tokens`: template variables such as `bos_token`, as text.
    `defaults`: the model's own sampling defaults (`generation_config.json`).
    `unsupported`: `SamplingParams` fields that this engine cannot honour; of a model that chats
    also fields of `Chat`.
    `constraints`: whether `SamplingParams.constraint` is supported. If not, none is sent.
    `adapters`: names of the LoRA adapters a request may ask for; clients send them as `model`.
    `embedding_size`: dimensions of an embedding, None for a model without embeddings.
    `shorter_embeddings`: None unless the model was trained so that its embeddings may be cut
    (Matryoshka, Kusupati et al., 2022); the sizes they may be cut to, empty for any.
    `prompts`: texts by name that its embeddings want in front of inputs of a kind (`query`);
    `default_prompt`: the name of the one that is used if a request names none.
    `reranks`: it says how relevant a document is to a query (`Backend.rerank`).
    `labels`: the classes a classifier tells apart (`Backend.classify`); a reward model has one.
    `multi_label`: several of them may apply to a text at once.
    `max_batch_size`: how many choices are decoded, or texts embedded, at once; only slightly more
    are admitted to the engine at a time. None if unknown; then all are admitted.
    `generates`: False for a model that only embeds, reranks or classifies.
    `chats`: it takes `GenerationRequest.chat` and no prompts: a remote server renders the template
    and separates reasoning and tool calls from content. It serves chat completions only.
    `modalities`: the kinds of media it takes in a prompt (`Backend.tokenize_media`) or a chat.
    `placeholders`: for each kind the text that stands for one item in its chat template, such as
    `<image>`; a kind without one is written by no template.
    `media_options`: the names of `Media.options` that it heeds, such as `max_pixels`.
    `reports_prefill`: it says how far a prompt is read, if asked (`Delta.prefill`).
    `predictions`: it drafts from `GenerationRequest.predicted_token_ids`.
    `limits`: what limits its memory and concurrency, and the options that change it, for the log
    and for `enginebay models inspect`, such as `KV cache 65536 tokens (1.1 GiB), concurrent
    completions: 16 (max_batch_size)`. It includes `max_batch_size` if that is known.
    """

    context_length: int
    vocab_size: int
    longest_token: int = 256
    chat_template: str | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()
    constraints: bool = False
    adapters: tuple[str, ...] = ()
    embedding_size: int | None = None
    shorter_embeddings: tuple[int, ...] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    reranks: bool = False
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    max_batch_size: int | None = None
    generates: bool = True
    chats: bool = False
    modalities: frozenset[Modality] = frozenset()
    placeholders: Mapping[Modality, str] = field(default_factory=dict)
    media_options: frozenset[str] = frozenset()
    reports_prefill: bool = False
    predictions: bool = False
    limits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's stats; None is unknown.

    `running`, `waiting`: choices being computed, and choices waiting for room. `kv_used`: tokens
    that running choices hold in the key-value memory, of the `kv_total` it has room for; prefixes
    that are only cached can be evicted, so they do not count. The rest are counts since the engine
    was built: `steps`, which whoever drives the engine counts; `cache_queries` and `cache_hits`,
    tokens of prompts that were looked up in the prefix cache and found there; `preempted`,
    preempted choices; `drafted` and `accepted`, draft tokens and those the model accepted.
    `saved_ram` and `saved_disk` are bytes of sequences that left the memory and were saved;
    `sequences_saved` and `tokens_restored` count what was saved, and what came back.
    """

    running: int | None = None
    waiting: int | None = None
    kv_used: int | None = None
    kv_total: int | None = None
    steps: int = 0
    cache_queries: int | None = None
    cache_hits: int | None = None
    preempted: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    saved_ram: int | None = None
    saved_disk: int | None = None
    sequences_saved: int | None = None
    tokens_restored: int | None = None

    @property
    def kv_usage(self) -> float | None:
        """The share of the memory in use, from 0 to 1; None if unknown."""
        if self.kv_used is None or not self.kv_total:
            return None
        return self.kv_used / self.kv_total
