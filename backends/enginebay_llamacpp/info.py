"""The `ModelInfo` of a model, read from its file."""

from typing import Any

from enginebay import ModelInfo, NumpyRunner
from enginebay_llamacpp.library import llama
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.tokenizer import Tokenizer

_DEFAULTS = {
    "temperature": (llama.LLAMA_MODEL_META_KEY_SAMPLING_TEMP, float),
    "top_p": (llama.LLAMA_MODEL_META_KEY_SAMPLING_TOP_P, float),
    "top_k": (llama.LLAMA_MODEL_META_KEY_SAMPLING_TOP_K, int),
    "min_p": (llama.LLAMA_MODEL_META_KEY_SAMPLING_MIN_P, float),
    "xtc_probability": (llama.LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY, float),
    "xtc_threshold": (llama.LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD, float),
    "mirostat": (llama.LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT, int),
    "mirostat_tau": (llama.LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU, float),
    "mirostat_eta": (llama.LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA, float),
    "penalty_last_n": (llama.LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N, int),
    "repetition_penalty": (llama.LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT, float),
}


def model_info(
    model: Model, tokenizer: Tokenizer, context_length: int, adapters: tuple[str, ...]
) -> ModelInfo:
    """`context_length`: tokens that one sequence of the context can hold."""
    template = llama.llama_model_chat_template(model.pointer, None)
    return ModelInfo(
        context_length=context_length,
        vocab_size=model.vocab_size,
        longest_token=tokenizer.longest_token,
        chat_template=template.decode(errors="replace") if template else None,
        chat_templates=model.named_metadata("tokenizer.chat_template."),
        special_tokens=tokenizer.special_tokens,
        defaults=_sampling_defaults(model),
        adapters=adapters,
        unsupported=NumpyRunner.unsupported,
    )


def _sampling_defaults(model: Model) -> dict[str, Any]:
    """Sampling params that the model's author wrote into the file."""
    defaults: dict[str, Any] = {}
    for name, (key, kind) in _DEFAULTS.items():
        key_name = llama.llama_model_meta_key_str(key)
        text = model.metadata(key_name.decode()) if key_name else None
        if text is not None:
            defaults[name] = kind(float(text))
    return defaults
