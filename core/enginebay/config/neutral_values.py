"""Fields of other servers that have no effect here, and their values that ask for nothing.

The names come from OpenAI, vLLM, SGLang, llama.cpp, TabbyAPI, text-generation-webui, transformers
and others. SillyTavern sends many of them with every request, switched
off.
"""

from collections.abc import Mapping
from typing import Any

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "auto_max_new_tokens": (False,),
    "best_of": (1,),
    "cache_prompt": (True,),
    "cfg_scale": (0, 1),
    "detokenize": (True,),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "diversity_penalty": (0,),
    "early_stopping": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "flat_logprobs": (False,),
    "generate_window": (0,),
    "grammar_retain_state": (False,),
    "guidance_scale": (0, 1),
    "id_slot": (-1,),
    "include_obfuscation": (False,),
    "length_penalty": (0, 1),
    "max_tokens_second": (0,),
    "min_keep": (0,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_probs": (0,),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "num_beams": (1,),
    "parse_tool_calls": (True,),
    "penalize_nl": (False,),
    "penalty_alpha": (0,),
    "post_sampling_probs": (False,),
    "prompt_lookup_num_tokens": (0,),
    "reasoning_in_content": (False,),
    "rep_pen_size": (0,),
    "render_special": (False,),
    "rep_pen_slope": (0, 1),
    "repetition_decay": (0,),
    "return_hidden_states": (False,),
    "return_logprob": (False,),
    "return_prompt_text": (False,),
    "return_tokens": (False,),
    "sampler_order": ([6, 0, 1, 3, 4, 2, 5],),
    "service_tier": ("auto", "default"),
    "smoothing_curve": (1,),
    "speculative_ngram": (False,),
    "static_cache": (False,),
    "store": (False,),
    "stream_reasoning": (True,),
    "t_max_prompt_ms": (0, -1),
    "top_logprobs_num": (0,),
    "trim_stop": (True,),
    "truncation_side": ("left",),
    "use_beam_search": (False,),
}
"""By field, what it may say without asking for anything: what happens here anyway."""

_NOTES = frozenset(("api_server", "api_type", "legacy_api"))  # SillyTavern's, to itself
_EMPTY: tuple[Any, ...] = ("", "[]", [], {}, None)


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a field that has no effect here says nothing, or asks for what happens anyway."""
    return name in _NOTES or value in _EMPTY or value in NEUTRAL.get(name, ())
