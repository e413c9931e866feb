"""Sampling params: frozen, picklable, independent of HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from enginebay.contract.grammar import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """The maximum reasoning tokens of a choice, over all its reasoning sections.

    Reasoning begins after the text `start`, or with the completion (`starts_inside`), and lasts
    until the text `end`. When the budget is used up, `close_token_ids` are forced, and again
    whenever the model reopens reasoning.
    """

    tokens: int
    start: str
    end: str
    close_token_ids: tuple[int, ...]
    starts_inside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideMarks:
    """The texts around an aside: reasoning or a tool call, which is no part of the answer.

    An aside lasts from one of `starts` to one of `ends`, or to the end of the completion.
    An empty end makes a start a mark without an aside. `opens_with`: characters of which one must
    follow a start, whitespace aside; empty: anything may follow. `header`: a regular expression for
    the text before an end, which the end needs to count. `comes`: such an aside begins at any time,
    until one has ended (`once`), or only before the answer (`first`).
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    opens_with: str = ""
    header: str = ""
    comes: Literal["often", "once", "first"] = "often"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopScope:
    """Where stop strings count: in the answer, not in `asides` and not in the whitespace after one.

    `begins`: the completion begins inside the first of the `asides` (`aside`), where an aside or
    the answer may begin (`before`), or in the middle of an answer (`answer`). `anywhere`: the stop
    strings that count everywhere, which are those that end the model's turn.
    """

    asides: tuple[AsideMarks, ...]
    begins: Literal["aside", "before", "answer"] = "before"
    anywhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """When a choice repeats itself: it ends with the same tokens `min_count` times in a row.

    They are from `min_pattern_size` to `max_pattern_size` tokens; 0 of the latter is off.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling params. Names and meanings follow OpenAI and vLLM.

    `max_tokens`: None means up to the model's context length.
    `temperature`: 0 is greedy. `top_k`: 0 is off. `min_p`: relative to the likeliest token.
    `repetition_penalty`: over prompt and completion, 1 is off (Keskar et al., 2019, CTRL).
    `logprobs`: None is off, k asks for each token's logprob and the k likeliest tokens, taken from
    the model's own distribution, before penalties, bias and temperature.
    `prompt_logprobs`: the same for the tokens of the prompt, which is then computed whole.
    `seed`: the same seed gives the same tokens, whatever else is in the batch.
    `allowed_token_ids`: only these can be chosen, any if empty. A `logit_bias` of minus infinity
    bans a token.
    `include_stop_str_in_output`: the text ends with the stop string, or the stop token, that was
    met. `skip_special_tokens`: special tokens are left out of the text, except those that occur in
    one of the `format_marks`, which are the texts that the parsers of the answer's formats read.
    Stop strings find a special token by its text, whether or not it is left out.
    `stop_scope`: the part of the text in which stop strings count, None for all of it;
    `enginebay.StopStrings` finds them there.

    `banned_strings`: texts that the completion never has, whatever their case; tokens that began
    one are rolled back. `token_healing`: the prompt's last token is sampled again among the tokens
    that begin with its text; only the added text belongs to the completion.

    Order: penalties, DRY and `logit_bias`, then smoothing, temperature, top-nσ, top_k, typical_p,
    top_p, top_a, min_p, tail-free, XTC, and skew in the draw. `temperature_last` applies
    temperature after all of them. Mirostat uses only smoothing and temperature. At temperature 0
    only what comes before smoothing counts.

    `typical_p`: locally typical sampling (https://arxiv.org/abs/2202.00666), 1 is off.
    `top_n_sigma`: only logits within this many standard deviations of the highest one
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
    `smoothing_factor`: logits become minus this factor times the squared distance to the highest
    one (https://github.com/oobabooga/text-generation-webui/pull/5403), 0 is off.
    `top_a`: only tokens at least as likely as this times the square of the highest probability,
    0 is off. `tfs`: tail-free sampling (https://www.trentonbricken.com/Tail-Free-Sampling), 1 is
    off. `skew`: the draw's random number to the power of `exp(-skew)`, over tokens from the
    likeliest on: below 0 it prefers likely tokens, above 0 unlikely ones.
    `adaptive_*`: prefers tokens near this probability, going by the mean of the last ones, which
    decays so (https://github.com/ggml-org/llama.cpp/pull/17927). A negative target is off.
    `penalty_last_n`: the tokens that penalties look back at, -1 is all of them.
    `constraint`: the grammar of the whole completion, special tokens included; it takes precedence
    over everything that bans tokens. Only where `ModelInfo.constraints` says so.
    `loop_detect_window`: a choice ends when its last tokens, so many, are a pattern that occurs at
    least twice in them; 0 and 1 are off. `repetition_detection`: the same for patterns of given
    lengths, None is off. Such a choice ends with `stop` and the `stop_reason` "repetition", not
    before `min_tokens`, and not where its constraint does not let it end;
    `enginebay.RepetitionWatch` says when.
    `reasoning_budget`: forces the end of reasoning; `enginebay.BudgetWatch` says when. Forced
    tokens are tokens of the completion like any others.
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
    stop_scope: StopScope | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    format_marks: tuple[str, ...] = ()
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
    loop_detect_window: int = 0
    repetition_detection: RepetitionDetection | None = None
    constraint: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None
