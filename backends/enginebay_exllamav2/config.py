"""From a model's folder and options to the library's configuration, or to an error."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.library import exllamav2
from enginebay_exllamav2.options import ExLlamaV2Options, padded
from enginebay_exllamav2.rope import Rope

logger = logging.getLogger(__name__)

ARCHITECTURES = frozenset(
    {
        "CohereForCausalLM",
        "DbrxForCausalLM",
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Glm4ForCausalLM",
        "GraniteForCausalLM",
        "IndexForCausalLM",
        "InternLM2ForCausalLM",
        "LlamaForCausalLM",
        "LlavaForConditionalGeneration",
        "MiniCPMForCausalLM",
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MixtralForCausalLM",
        "OrionForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Starcoder2ForCausalLM",
        "YiForCausalLM",
    }
)
"""What exllamav2 0.3.2 runs correctly; `vision/families.py` has the towers of vision models.

It knows a few more, but adds positions to Cohere2's full-attention layers, which have none, and
asserts on GPT-2's learned ones. Any other it loads as Llama, which is silently wrong.
"""

# Those whose every layer has the sliding window that their configuration names, if it names one;
# exllamav2 gives these layers all tokens.
_WINDOWS_IGNORED = {"MistralForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM"} | {
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Starcoder2ForCausalLM",
}

# exllamav2 takes the mean off their queries and keys, too, which these models do not.
_RMS_HEAD_NORMS = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}

STEP_TOKENS = 8
"""Tokens of one choice in a decoding pass, at most: the generator's `max_q_size`."""


def library_config(checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options) -> Any:
    """An `ExLlamaV2Config` by the folder and the options; its `rope` is ours.

    `config.rope.context_length` are the tokens of prompt and answer together.
    """
    check_architecture(checkpoint)
    settings = text_settings(checkpoint.config)
    config = _read(checkpoint)
    check_dimensions(checkpoint, config)
    _check_cache_type(checkpoint, options, config)
    rope = _rope(checkpoint, options, settings)
    length = _context_length(checkpoint, options, config, settings, rope)
    config.rope = replace(rope, context_length=length)
    config.rotary_embedding_base = rope.base or config.rotary_embedding_base
    if config.rotary_embedding_base_alt:
        config.rotary_embedding_base_alt = rope.local_base or config.rotary_embedding_base_alt
    config.partial_rotary_factor = rope.rotary_share or config.partial_rotary_factor
    config.scale_pos_emb = rope.scale
    config.mrope_section = rope.sections
    _set_windows(checkpoint, options, config, settings)
    _set_experts(checkpoint, options, config)
    _set_sizes(options, config, length)
    if config.architecture in _RMS_HEAD_NORMS:
        config.arch.lm.headnorm = "rmsnorm"
    # The library's own path through torch's attention lets prompts see what comes after them.
    config.no_sdpa = True
    config.no_flash_attn = False  # `choose_attention` says which function is called
    return config


def check_architecture(checkpoint: ExLlamaV2Checkpoint) -> None:
    """Refuse architectures that exllamav2 would load as another one."""
    names = checkpoint.config.get("architectures") or []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise checkpoint.unavailable(
            f"exllamav2 does not support {checkpoint.architecture}; it supports "
            f"{', '.join(sorted(ARCHITECTURES))}; use the backend hf"
        )


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of the language part: `text_config`, overridden by the keys beside it."""
    text = config.get("text_config")
    return {**(text if isinstance(text, dict) else {}), **config}


def check_dimensions(checkpoint: ExLlamaV2Checkpoint, config: Any) -> None:
    """Refuse sizes that the library's kernels or padded tensors do not support."""
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    reasons = {
        f"head_dim {size} is not a multiple of 8 up to 256": size % 8 or size > 256,
        f"{heads} attention heads cannot share {kv_heads} key/value heads": heads % kv_heads,
        f"its heads together have {heads * size} dimensions, not a multiple of 32": heads
        * size
        % 32,
        f"its keys have {kv_heads * size} dimensions, not a multiple of 32": kv_heads * size % 32,
        f"hidden_size {config.hidden_size} is not a multiple of 32 up to 32768": (
            config.hidden_size % 32 or config.hidden_size > 32768
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise checkpoint.unavailable(f"exllamav2 cannot run it: {reason}; use the backend hf")


def _check_cache_type(
    checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, config: Any
) -> None:
    """A quantized cache has a scale for 32 numbers of a head, and none for a rest."""
    if options.cache_type != "f16" and config.head_dim % 32:
        raise checkpoint.unavailable(
            f"head_dim {config.head_dim} is not a multiple of 32, which cache_type "
            f"{options.cache_type} needs; set it to f16"
        )


def _read(checkpoint: ExLlamaV2Checkpoint) -> Any:
    config = exllamav2.ExLlamaV2Config()
    config.model_dir = str(checkpoint.path)
    try:
        config.prepare()
    except Exception as error:
        detail = str(error).removeprefix(" ## ")
        raise checkpoint.unavailable(
            f"exllamav2 {exllamav2.__version__} cannot read it: {type(error).__name__}: {detail}"
        ) from error
    return config


def _rope(
    checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, settings: Mapping[str, Any]
) -> Rope:
    try:
        rope = Rope.of(settings)
    except ValueError as error:
        raise checkpoint.unavailable(f"it has {error}; use the backend hf") from error
    if options.rope_scale:
        rope = replace(rope, kind="linear", settings={"factor": options.rope_scale})
    if options.yarn_factor:
        original = options.yarn_orig_ctx or rope.settings.get("original_max_position_embeddings")
        yarn = {"factor": options.yarn_factor, "original_max_position_embeddings": original}
        rope = replace(rope, kind="yarn", settings=yarn)
    base = options.rope_freq_base or rope.base
    return replace(rope, base=base, alpha=options.rope_alpha or 1.0)


def _context_length(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    config: Any,
    settings: Mapping[str, Any],
    rope: Rope,
) -> int:
    trained: int = config.max_seq_len
    longest, wanted = max(trained, rope.longest_context), options.context_length
    if wanted and wanted > longest and not options.extends_context:
        raise checkpoint.unavailable(
            f"context_length {wanted} exceeds the {longest} tokens the model was trained for; "
            "lower it, or extend the model with rope_alpha or yarn_factor"
        )
    window = _ignored_window(config.architecture, settings)
    if window and (wanted or trained) > window:
        if wanted is None:
            logger.warning(
                "%s: context limited to %d tokens, its sliding window, which exllamav2 does not "
                "apply; context_length can be set higher at your own risk",
                checkpoint.path,
                window,
            )
            return window
        logger.warning(
            "%s: beyond %d tokens answers differ from the model's own because exllamav2 does not "
            "apply its sliding window",
            checkpoint.path,
            window,
        )
    return wanted or trained


def _ignored_window(architecture: str, settings: Mapping[str, Any]) -> int | None:
    window = settings.get("sliding_window")
    layers = settings.get("layer_types")
    if architecture not in _WINDOWS_IGNORED or not window:
        return None
    if settings.get("use_sliding_window") is False:
        return None
    return None if layers and "sliding_attention" not in layers else int(window)


def _set_windows(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    config: Any,
    settings: Mapping[str, Any],
) -> None:
    """Which layers have a sliding window, and how wide it is."""
    if not (config.arch.lm.alternating_swa and config.sliding_window):
        return
    if layers := settings.get("layer_types"):
        full = [index for index, kind in enumerate(layers) if kind == "full_attention"]
        pattern = full[0] + 1 if full else len(layers) + 1
        if full != list(range(pattern - 1, len(layers), pattern)) or pattern < 2:
            raise checkpoint.unavailable(
                "exllamav2 cannot apply sliding windows to the layers named by its layer_types; "
                "use the backend hf"
            )
        config.sliding_window_pattern = pattern
    # flash-attention counts the tokens before a query, configurations the query's own, too.
    config.sliding_window -= 1


def _set_experts(checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, config: Any) -> None:
    wanted = options.experts_per_token
    if wanted is None:
        return
    if not config.num_experts or wanted > config.num_experts:
        raise checkpoint.unavailable(
            f"experts_per_token is {wanted}, but the model has {config.num_experts or 'no'} experts"
        )
    config.num_experts_per_token = wanted


def _set_sizes(options: ExLlamaV2Options, config: Any, length: int) -> None:
    """How much is computed at once; positions are tabulated for a pass's tokens at least."""
    decoding = padded(options.max_batch_size * STEP_TOKENS)
    config.max_input_len = max(options.prefill_tokens, decoding)
    config.max_attention_size = config.max_input_len**2
    config.max_output_len = 2 * STEP_TOKENS  # logits of a pass's last tokens only: less memory
    config.max_seq_len = max(padded(length + STEP_TOKENS), config.max_input_len)
