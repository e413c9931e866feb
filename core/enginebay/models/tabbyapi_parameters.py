"""TabbyAPI's parameters of a model, as options of whatever backend runs it here, and back.

Names and meanings: https://github.com/theroyallab/tabbyAPI/wiki, "API reference", and the fields of
its `ModelLoadRequest`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.config.schema import ModelConfig
from enginebay.config.walk import Schema, schema_at
from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError
from enginebay.contract.registers import BackendEntry
from enginebay.models.check_config import options_schema, validated_options

Convert = Callable[[Any, Schema], Any]
"""Converts a parameter's value to an option of this schema; None if impossible."""


def _same(value: Any, option: Schema) -> Any:
    return value


def _cache_type(value: Any, option: Schema) -> Any:
    """`Q8` is `q8` or `q8_0`, `FP16` is `f16`, whichever the option knows."""
    wanted = str(value).lower().replace("fp", "f")
    known = option.get("enum", ())
    return next((name for name in (wanted, f"{wanted}_0") if name in known), None)


def _inverse(value: Any, option: Schema) -> Any:
    return 1 / value if value else None


def _tensor(value: Any, option: Schema) -> Any:
    return "tensor"


@dataclass(frozen=True, slots=True)
class _Parameter:
    """The corresponding options, from the first group of which the backend has any.

    `neutral`: values without effect.
    """

    groups: tuple[Mapping[str, Convert], ...] = ()
    neutral: tuple[object, ...] = ()


_PARAMETERS: Mapping[str, _Parameter] = {
    "max_seq_len": _Parameter(({"context_length": _same},), (-1,)),
    "cache_size": _Parameter(({"cache_tokens": _same},)),
    "cache_mode": _Parameter(
        (
            {"cache_type": _cache_type},
            {"cache_type_k": _cache_type, "cache_type_v": _cache_type},
        ),
        ("FP16",),
    ),
    "max_batch_size": _Parameter(({"max_batch_size": _same},)),
    "chunk_size": _Parameter(({"batch_tokens": _same}, {"prefill_tokens": _same})),
    "tensor_parallel": _Parameter(({"tensor_parallel": _same}, {"split_mode": _tensor}), (False,)),
    "tensor_parallel_backend": _Parameter(neutral=("native",)),
    "gpu_split": _Parameter(({"gpu_split": _same}, {"tensor_split": _same}), ([],)),
    "gpu_split_auto": _Parameter(neutral=(True,)),
    "autosplit_reserve": _Parameter(({"autosplit_reserve": _same},), ([],)),
    "rope_scale": _Parameter(({"rope_scale": _same}, {"rope_freq_scale": _inverse}), (1,)),
    "rope_alpha": _Parameter(({"rope_alpha": _same},), (1,)),
    "num_experts_per_token": _Parameter(({"experts_per_token": _same},)),
    "output_chunking": _Parameter(neutral=(True,)),
    "fasttensors": _Parameter(neutral=(False,)),
    "vision": _Parameter(neutral=(False,)),
    "override_base_seq_len": _Parameter(),
    "draft_model_name": _Parameter(({"draft_model": _same},)),
    "draft_num_tokens": _Parameter(({"draft_tokens": _same},)),
    "draft_cache_mode": _Parameter(({"draft_cache_type": _cache_type},), ("FP16",)),
    "draft_rope_alpha": _Parameter(({"draft_rope_alpha": _same},), (1,)),
    "draft_rope_scale": _Parameter(({"draft_rope_scale": _same},), (1,)),
    "draft_gpu_split": _Parameter(({"draft_gpu_split": _same},), ([],)),
    "embeddings_device": _Parameter(({"device": _same},), ("auto",)),
}


def with_parameters(
    config: ModelConfig, entry: BackendEntry, parameters: Mapping[str, Any]
) -> tuple[ModelConfig, list[str]]:
    """A model's config with these parameters, and the names of unsupported ones.

    `InvalidRequestError` for options that the backend rejects.
    """
    schema = options_schema(entry)
    options = dict(config.options)
    unsupported = []
    for name, value in parameters.items():
        known = _PARAMETERS.get(name, _Parameter())
        if value is None or value in known.neutral:
            continue
        if found := _options_for(known, value, schema):
            options |= found
        else:
            unsupported.append(name)
    changed = config.model_copy(update={"options": options})
    try:
        validated_options(changed, entry)
    except BackendUnavailableError as error:
        raise InvalidRequestError(error.message, param="options") from error
    return changed, unsupported


def _options_for(parameter: _Parameter, value: Any, schema: Schema) -> dict[str, Any]:
    for group in parameter.groups:
        known = {name: convert for name, convert in group.items() if schema_at(schema, (name,))}
        values = {
            name: convert(value, schema_at(schema, (name,))) for name, convert in known.items()
        }
        if values and None not in values.values():
            return values
    return {}


def parameters_of(config: ModelConfig, context_length: int | None) -> dict[str, Any]:
    """The parameters of a TabbyAPI model card, as far as they were set."""
    options = config.options
    parameters: dict[str, Any] = {
        name: options[option]
        for name, parameter in _PARAMETERS.items()
        for group in parameter.groups[:1]
        for option, convert in group.items()
        if convert is _same and options.get(option) is not None
    }
    cache_type = options.get("cache_type") or options.get("cache_type_k") or "f16"
    parameters["cache_mode"] = str(cache_type).upper().removesuffix("_0").replace("F16", "FP16")
    parameters["max_seq_len"] = context_length
    if draft := parameters.pop("draft_model_name", None):
        parameters["draft"] = {"id": Path(draft).stem}
    return parameters
