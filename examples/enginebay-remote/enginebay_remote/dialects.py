"""What servers call sampling params in `/v1/completions`, and which of them they know."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from enginebay import GenerationRequest, RepetitionDetection, SamplingParams
from enginebay_remote.options import Server

ALL = frozenset(field.name for field in fields(SamplingParams))
OPENAI = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "seed", "stop", "logprobs"),
    }
)
COMMON = OPENAI | {"top_k", "min_p", "repetition_penalty", "ignore_eos"}
TOKENS = frozenset({"min_tokens", "stop_token_ids", "skip_special_tokens"})

# Servers have defaults of their own for these, from a generation_config.json or built in.
_ALWAYS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "skip_special_tokens"),
)
_NEUTRAL = SamplingParams()
_LARGEST_BIAS = 100.0  # what OpenAI's API allows


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of server is asked.

    `known`: the `SamplingParams` fields it honours; `names`: what it calls them, where that is
    something else. `constant`: fields of every request. `least_logprobs`: fewer give none.
    `bans`, `salts`, `ranks`: whether it takes `banned_tokens`, `cache_salt`, any `priority`.
    """

    known: frozenset[str]
    names: Mapping[str, str]
    constant: Mapping[str, Any]
    least_logprobs: int = 0
    bans: bool = False
    salts: bool = False
    ranks: bool = False

    def body(self, request: GenerationRequest, room: int, known: frozenset[str]) -> dict[str, Any]:
        """The request without `model` and `prompt`; `room`: tokens left in the context."""
        sampling = request.sampling
        body: dict[str, Any] = {
            **self.constant,
            "max_tokens": min(sampling.max_tokens or room, room),
        }
        for name in known - {"max_tokens", "logprobs", "logit_bias"}:
            value = getattr(sampling, name)
            if name in _ALWAYS or value != getattr(_NEUTRAL, name):
                body[self.names.get(name, name)] = _sent(value)
        if sampling.format_marks and "skip_special_tokens" in body:
            body["skip_special_tokens"] = False  # else the server leaves out the marks as well
        if body.get("top_k") == 0:
            body["top_k"] = -1  # off in every dialect; 0 is an error in some
        if sampling.logit_bias and "logit_bias" in known:
            body |= bias_fields(sampling.logit_bias, bans=self.bans)
        if request.n > 1:
            body["n"] = request.n
        if self.salts and request.cache_salt is not None:
            body["cache_salt"] = request.cache_salt
        if self.ranks and request.priority:
            body["priority"] = request.priority
        return body


def _sent(value: Any) -> Any:
    """A param as JSON has it."""
    if isinstance(value, RepetitionDetection):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def bias_fields(logit_bias: Mapping[int, float], *, bans: bool) -> dict[str, Any]:
    """`logit_bias` within what servers take; `bans`: there are `banned_tokens` beside it."""
    banned = [id for id, bias in logit_bias.items() if bans and bias == -math.inf]
    bias = {
        str(id): max(-_LARGEST_BIAS, min(value, _LARGEST_BIAS))
        for id, value in logit_bias.items()
        if id not in banned
    }
    return ({"logit_bias": bias} if bias else {}) | ({"banned_tokens": banned} if banned else {})


DIALECTS: Mapping[Server, Dialect] = {
    "enginebay": Dialect(
        known=ALL - {"constraint", "reasoning_budget", "format_marks", "stop_scope"},
        names={},
        constant={},
        bans=True,
        salts=True,
        ranks=True,
    ),
    "vllm": Dialect(
        known=COMMON | TOKENS | {"include_stop_str_in_output", "allowed_token_ids"},
        names={},
        constant={"spaces_between_special_tokens": False},
        salts=True,
    ),
    # A seed counts only where the server was started with deterministic inference.
    "sglang": Dialect(known=(COMMON | TOKENS) - {"seed"}, names={}, constant={}),
    "llama-server": Dialect(
        known=COMMON
        | {
            *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier"),
            *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau"),
            *("mirostat_eta", "dynatemp_range", "dynatemp_exponent", "penalty_last_n"),
        },
        names={"repetition_penalty": "repeat_penalty", "penalty_last_n": "repeat_last_n"},
        constant={},
        least_logprobs=1,
    ),
    "other": Dialect(known=OPENAI, names={}, constant={}),
}

TRIAL: Mapping[str, Any] = {
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 2,
    "min_p": 0.01,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"0": 1},
    "seed": 1,
    "stop": ["\u2403"],
    "stop_token_ids": [0],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "allowed_token_ids": [0, 1, 2, 3],
    "logprobs": 0,
    "prompt_logprobs": 0,
    "temperature_last": True,
    "typical_p": 0.9,
    "top_n_sigma": 2,
    "xtc_probability": 0.1,
    "xtc_threshold": 0.2,
    "dry_multiplier": 0.1,
    "dry_base": 2,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["\u2403"],
    "mirostat": 2,
    "mirostat_tau": 4,
    "mirostat_eta": 0.2,
    "dynatemp_range": 0.2,
    "dynatemp_exponent": 2,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.5,
    "penalty_last_n": 9,
    "smoothing_factor": 0.1,
    "top_a": 0.1,
    "tfs": 0.9,
    "skew": 0.1,
    "banned_strings": ["\u2403"],
    "token_healing": True,
    "loop_detect_window": 16_384,
    "repetition_detection": {"max_pattern_size": 4096, "min_pattern_size": 4096, "min_count": 99},
}
"""Every sampling param of Enginebay off its default: its answer names those it cannot honour."""
