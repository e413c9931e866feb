"""TabbyAPI's settings and their equivalents here, for users who migrate.

Names: https://github.com/theroyallab/tabbyAPI, config_sample.yml and api_tokens.yml, and those of
its older versions.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.config.problems import KeyPath

_OPTIONS = "in `options` of the model"
_NOTHING = "nothing"

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "network": {
        "host": "`server.host`",
        "port": "`server.port`",
        "disable_auth": "`server.auth`: `none` for true, `required` for false",
        "disable_fetch_requests": "`server.fetch_media`, the opposite",
        "send_tracebacks": _NOTHING,
        "api_servers": _NOTHING,
        "sse_ping_interval": "`server.ping_interval`, more than 0",
    },
    "logging": {
        "log_prompt": "`server.log_prompts`",
        "log_generation_params": "`server.log_level: info`, the default",
        "log_requests": "`server.log_level: info`, the default",
        "log_chat_completion_requests": "`server.capture`",
    },
    "model": {
        "model_dir": "`server.model_dir`",
        "inline_model_loading": "`loading.from_model_dir`, and `load: request` of each of `models`",
        "use_dummy_models": "`server.use_dummy_models`",
        "dummy_model_names": "`server.dummy_model_names`",
        "model_name": "`name` and `path` of the first of `models`",
        "use_as_default": _NOTHING,
        "backend": "`backend` of the model",
        "max_seq_len": f"`context_length` {_OPTIONS}",
        "cache_size": f"`cache_tokens` {_OPTIONS}",
        "cache_mode": f"`cache_type` {_OPTIONS}, or `cache_type_k` and `cache_type_v`",
        "tensor_parallel": f"`tensor_parallel` {_OPTIONS}, or `split_mode: tensor`",
        "tensor_parallel_backend": _NOTHING,
        "gpu_split_auto": _NOTHING,
        "autosplit_reserve": f"`autosplit_reserve` {_OPTIONS}",
        "gpu_split": f"`gpu_split` {_OPTIONS}, or `tensor_split`",
        "cpu_moe_offload_layers": _NOTHING,
        "rope_scale": f"`rope_scale` {_OPTIONS}, or its inverse, `rope_freq_scale`",
        "rope_alpha": f"`rope_alpha` {_OPTIONS}",
        "num_experts_per_token": f"`experts_per_token` {_OPTIONS}",
        "chunk_size": f"`prefill_tokens` {_OPTIONS}",
        "output_chunking": _NOTHING,
        "max_batch_size": f"`max_batch_size` {_OPTIONS}",
        "prompt_template": "`chat_template` of the model; files stay in `templates/`",
        "vision": _NOTHING,
        "template_vars_default": "`template_vars` of the model",
        "template_vars_force": "`force_template_vars` of the model",
        "force_enable_thinking": "`force_template_vars: {enable_thinking: true}` of the model",
        "reasoning": "`reasoning` of the model; `auto`, the default, finds the format",
        "reasoning_start_token": "`reasoning` of the model; `auto`, the default, finds the format",
        "reasoning_end_token": "`reasoning` of the model; `auto`, the default, finds the format",
        "start_in_reasoning": "`reasoning_start` of the model",
        "tool_calls_in_reasoning": "`tools_in_reasoning` of the model",
        "reasoning_budget_tokens": "`reasoning_budget` of the model",
        "reasoning_budget_message": "`reasoning_budget_message` of the model",
        "reasoning_suppress_header": _NOTHING,
        "tool_format": "`tools` of the model; `auto`, the default, finds the format",
        "harmony": "`reasoning` and `tools` of the model: `harmony`; `auto` finds it",
        "muse_glimmer": "`reasoning` and `tools` of the model: `muse`; `auto` finds it",
    },
    "draft_model": {
        "draft_mode": f"`draft_model` or `prompt_lookup` {_OPTIONS}",
        "draft_model_dir": f"`draft_model` {_OPTIONS}, a path",
        "draft_model_name": f"`draft_model` {_OPTIONS}, a path",
        "draft_rope_scale": _NOTHING,
        "draft_rope_alpha": f"`draft_rope_alpha` {_OPTIONS}",
        "draft_cache_mode": f"`draft_cache_type` {_OPTIONS}",
        "draft_gpu_split": _NOTHING,
        "draft_num_tokens": f"`draft_tokens` {_OPTIONS}",
        "dynamic_draft": _NOTHING,
        "ngram_match_min": _NOTHING,
    },
    "sampling": {
        "override_preset": "`sampling_preset` of the model; files stay in `sampler_overrides/`",
    },
    "lora": {
        "lora_dir": "`server.lora_dir`",
        "loras": f"`adapters` {_OPTIONS}, requested by name",
    },
    "embeddings": {
        "embedding_model_dir": "`server.model_dir`",
        "embeddings_device": f"`device` {_OPTIONS}, or `gpu_layers`: 0 is the CPU",
        "embedding_model_name": "one more of `models`",
    },
    "memory": {
        "sysmem_recurrent_cache": _NOTHING,
        "sysmem_kv_cache": "`loading.cache_ram`, where the backend can",
        "cuda_malloc_async": _NOTHING,
    },
    "developer": {
        "unsafe_launch": _NOTHING,
        "disable_request_streaming": _NOTHING,
        "realtime_process_priority": _NOTHING,
        "seqlog": "`server.log_format: json`",
        "seqlog_server_url": _NOTHING,
        "seqlog_api_key": _NOTHING,
    },
}
"""The equivalent of each setting of its `config.yml`, by section and name."""

KEYS: Mapping[str, str] = {
    "api_key": "`{name: user, key: ...}` in the list `keys`",
    "admin_key": "`{name: admin, role: admin, key: ...}` in the list `keys`",
}
"""The same for its `api_tokens.yml`; here that is the keys file."""


def settings_of_tabbyapi(data: Mapping[Any, Any]) -> Iterator[tuple[KeyPath, str]]:
    """What to write instead of each TabbyAPI setting in a config."""
    for section, settings in SETTINGS.items():
        written = data.get(section)
        if not isinstance(written, dict) or not settings.keys() & written.keys():
            continue
        there = {name: settings.get(name) for name, value in written.items() if value is not None}
        for name, here in there.items():
            yield (section, name), _message(here) if here else "unknown key, in TabbyAPI too"
        if not there:
            yield (section,), "is a TabbyAPI section; delete it"


def setting_of_tabbyapi(name: str) -> str | None:
    """The equivalent of the TabbyAPI setting of this name; None if there is none."""
    found = [settings[name] for settings in SETTINGS.values() if name in settings]
    return found[0] if found and found[0] != _NOTHING else None


def keys_of_tabbyapi(data: Mapping[Any, Any]) -> Iterator[tuple[KeyPath, str]]:
    """What to write instead of TabbyAPI's keys in a keys file."""
    for name, here in KEYS.items():
        if name in data:
            yield (name,), _message(here)


def _message(here: str) -> str:
    if here == _NOTHING:
        return "is a TabbyAPI setting with no counterpart here; delete it"
    return f"is a TabbyAPI setting; here it is {here}"
