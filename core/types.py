"""What crosses between the endpoint layer and an engine: frozen, picklable dataclasses.

No HTTP, no `stream`: an engine sees prompt tokens and sampling params, and answers with deltas of
text and tokens. A backend whose model takes messages (`ModelInfo.chats`) sees a `Chat` in the place
of tokens, and answers with deltas of parts. New fields get defaults, so that no plugin breaks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.conversation import Chat
from core.grammar.expressions import Grammar

EngineFinishReason = Literal["stop", "length", "content_filter"]
"""Why a choice ended; `content_filter` is for models of others, who leave out what they filter."""

FinishReason = Literal["stop", "length", "content_filter", "tool_calls", "function_call", "abort"]
"""Why an answer ended, on the wire.

`function_call` is `tool_calls` for requests with OpenAI's old `functions`; `abort`: the server
itself ended it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """How many tokens a choice may think, in all its stretches of thought together.

    Thought begins behind the text `start`, or with the completion (`starts_inside`), and goes on to
    the text `end`. When the budget is used up, the next tokens are those of `close_token_ids`,
    whatever the model would rather say, and whenever it opens thought again.
    """

    tokens: int
    start: str
    end: str
    close_token_ids: tuple[int, ...]
    starts_inside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Names and meanings are those of OpenAI and vLLM.

    `max_tokens`: None means up to the model's context length.
    `temperature`: 0 is greedy. `top_k`: 0 is off. `min_p`: relative to the likeliest token.
    `repetition_penalty`: over prompt and completion, 1 is off (Keskar et al., 2019, CTRL).
    `logprobs`: None is off, k asks for each token's logprob and the k likeliest beside it, taken
    from the model's own distribution, before penalties, bias and temperature.
    `prompt_logprobs`: the same for the tokens of the prompt, which is then computed whole.
    `seed`: the same seed gives the same tokens, whatever else is in the batch.
    `allowed_token_ids`: only these can be chosen, any if empty. A `logit_bias` of minus infinity
    bans a token.
    `include_stop_str_in_output`: the text ends with the stop string, or the stop token, that was
    met. `skip_special_tokens`: special tokens are no text.

    `banned_strings`: texts that the completion never has, whatever their case; the tokens that
    began one are taken back. `token_healing`: the prompt's last token may grow: it is chosen again
    among the tokens that begin with its text, of which only what is added is text of the
    completion.

    Order: penalties, DRY and `logit_bias`, then smoothing, temperature, top-nσ, top_k, typical_p,
    top_p, top_a, min_p, tail-free, XTC, and skew in the draw. `temperature_last` puts temperature
    behind them all. Mirostat knows only smoothing and temperature. At temperature 0 only what comes
    before smoothing counts.

    `typical_p`: locally typical sampling (https://arxiv.org/abs/2202.00666), 1 is off.
    `top_n_sigma`: only logits within so many standard deviations of the highest one
    (https://arxiv.org/abs/2411.07641), 0 is off.
    `xtc_probability`, `xtc_threshold`: how often all but the last of the tokens at least this
    likely are left out (https://github.com/oobabooga/text-generation-webui/pull/6335), 0 is off.
    `dry_*`: a token that would make a repeated sequence longer than `dry_allowed_length` loses
    `dry_multiplier * dry_base ** (length - dry_allowed_length)`; sought in the last
    `dry_penalty_last_n` tokens (-1: all), and no further back than a sequence breaker
    (https://github.com/oobabooga/text-generation-webui/pull/5677). `dry_multiplier` 0 is off.
    `mirostat*`: version 1 or 2, 0 is off; holds the surprise of tokens at `mirostat_tau` bits,
    learning at the rate `mirostat_eta` (https://arxiv.org/abs/2007.14966).
    `dynatemp_*`: the temperature is up to this range lower or higher, as entropy to the power of
    the exponent says (https://arxiv.org/abs/2309.02772), 0 is off.
    `smoothing_factor`: logits are so many times minus the square of how far they are below the
    highest one (https://github.com/oobabooga/text-generation-webui/pull/5403), 0 is off.
    `top_a`: only tokens at least as likely as this times the square of the highest probability,
    0 is off. `tfs`: tail-free sampling (https://www.trentonbricken.com/Tail-Free-Sampling), 1 is
    off. `skew`: the draw's random number to the power of `exp(-skew)`, over tokens from the
    likeliest on: below 0 it prefers likely tokens, above 0 unlikely ones.
    `adaptive_*`: prefers tokens near this probability, going by the mean of the last ones, which
    decays so (https://github.com/ggml-org/llama.cpp/pull/17927). A negative target is off.
    `penalty_last_n`: the tokens that penalties look back at, -1 is all of them.
    `constraint`: the grammar that the whole completion keeps to, special tokens included; nothing
    that bans tokens goes before it. Only where `ModelInfo.constraints` says so.
    `reasoning_budget`: forces the end of thought; `enginebay.BudgetWatch` says when. Forced tokens
    are tokens of the completion like any others.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    temperature_last: bool = False
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    penalty_last_n: int = -1
    smoothing_factor: float = 0.0
    top_a: float = 0.0
    tfs: float = 1.0
    skew: float = 0.0
    banned_strings: tuple[str, ...] = ()
    token_healing: bool = False
    constraint: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, prefilled once, decoded into `n` choices with indices 0 to n - 1.

    `chat`: what a model that chats gets in the place of `prompt_token_ids`, which are empty then.
    `adapter`: one of `ModelInfo.adapters`, whose weights are added to the model's (LoRA).
    `priority`: a request with a lower number starts first, and is preempted last.
    `cache_salt`: only requests with the same salt share what a prefix cache remembers.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    adapter: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    chat: Chat | None = None


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One candidate token and its natural-log probability."""

    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token, its natural-log probability and the likeliest candidates, best first."""

    token_id: int
    token: str
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer; `logprobs` of the tokens it is made of, when asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text the model thinks aloud before or between its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of tool call number `index` of its choice.

    The first piece has the `name`; later ones only more `arguments` (JSON text). The first piece
    has the `id`, too, if the model wrote one; else the collector gives one.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """Text in which a model says that it will not answer, where a server tells that from content.

    No parser makes one.
    """

    text: str


Part = ContentDelta | ReasoningDelta | ToolCallDelta | RefusalDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """The usage of a request as the server that ran it tells it, of all choices together.

    `reasoning_tokens`: None if it does not say.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What choice `index` gained.

    `text` is whole characters. `token_ids` are all tokens sampled since the choice's last delta,
    an end-of-sequence token included although it has no text. `logprobs` (when asked for) has one
    entry a token that is part of the completion's text. `finish_reason` is set on a choice's last
    delta only; `stop_reason` then says which stop string or stop token id it was, None for the
    end-of-sequence token. On one delta of a request, the first or, where that is not known before,
    the last, `prefill_tokens` are the prompt tokens that were computed and `cached_tokens` those
    the engine still had; together they are the prompt, whatever `n` is. `prompt_logprobs` (when
    asked for) are on the first: an entry a token of the prompt, None for the first.
    `grammar_init_s` on it are the seconds it took to have the request's constraint ready,
    `grammar_s` on every delta those it took to keep to it. A delta joined of several has the
    characters and tokens of each in `pieces`.

    Deltas of a chat have no text and no tokens. `parts` are what the choice gained, told apart
    already; logprobs are those of its content, with a `token_id` of -1 where that is not known.
    `usage` is what the request has used by now; the last one counts.
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
    pieces: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] = ()
    usage: TokenCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the endpoint layer must know of a loaded model.

    `context_length`: tokens of prompt and completion together. It, and `vocab_size`, may be 0 of a
    model that chats, where they are not known.
    `longest_token`: characters of the longest token, so that a prompt that cannot fit is refused
    before it is tokenized.
    `chat_template`: Jinja source, or None for a model that has none. `chat_templates`: others by
    name; `tool_use` goes before it when a request has tools.
    `special_tokens`: template variables such as `bos_token`, as text.
    `defaults`: sampling defaults that the model brings along (`generation_config.json`).
    `unsupported`: `SamplingParams` fields that this engine cannot honour; of a model that chats
    also fields of `Chat`.
    `constraints`: whether `SamplingParams.constraint` is kept. Where it is not, nobody sends one.
    `adapters`: names of the LoRA adapters a request may ask for; clients send them as `model`.
    `embedding_size`: numbers of an embedding, None for a model that makes none.
    `generates`: False for a model that makes embeddings only.
    `chats`: it takes `GenerationRequest.chat`, and no prompts: somebody else renders the template
    and tells reasoning and tool calls from content. It is asked through chat completions only.
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
    generates: bool = True
    chats: bool = False


ReportProgress = Callable[[str, float], None]
"""`report(stage, fraction)`: how far loading is, from 0 to 1; may be called on any thread."""


def no_progress(stage: str, fraction: float) -> None:
    """A `ReportProgress` for callers who do not watch."""


Isolation = Literal["thread", "process"]
"""Whether an engine runs on a thread of the server's process or in a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """What a backend's `create` gets: one entry of `models` in the config.

    `path` is absolute when it names something on disk. `base` is the config file's folder, where
    relative paths in `options` start. `options` has been validated by the option
    class the backend registered with, if any. `isolation` is None for the backend's own default.
    """

    name: str
    path: str
    base: str = "."
    options: Any = None
    report_progress: ReportProgress = no_progress
    isolation: Isolation | None = None
